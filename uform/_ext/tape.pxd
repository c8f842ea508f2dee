from libc.stdint cimport uint8_t, uint64_t


cdef class Tape:
    """Texts end to end: text `i` is `data[offsets[i]:offsets[i + 1]]`."""
    cdef const uint8_t* data
    cdef size_t bytes
    cdef const uint64_t* offsets
    cdef size_t count
    cdef object keeper
    cdef int check(self, size_t place, str field) except -1
    cdef Tape checked(self, str field)
    cdef object text(self, size_t place, str field)


cdef Tape as_tape(object texts, str field)
cdef Tape as_texts(object texts, str field)
cdef Tape joined(list texts)
cdef object encoded(object text, str field)
