from libc.stdint cimport int32_t, int64_t, uint64_t


cdef str shown(object value)
cdef object refused(str field, object value, str expected)
cdef int64_t as_integer(object value, str field, int64_t least, int64_t most) except? -1
cdef int32_t as_int32(object value, str field) except? -1
cdef int64_t as_int64(object value, str field) except? -1
cdef uint64_t as_unsigned(object value, str field, uint64_t most) except? 0
cdef uint64_t as_uint64(object value, str field) except? 0
cdef double as_double(object value, str field) except? -1
cdef double as_real(object value, str field) except? -1
cdef object as_enum(object enumeration, object value, str field)
cdef str as_str(object value, str field)
cdef bytes as_path(object value, str field)
cdef tuple as_sequence(object source, str field, str expected, Py_ssize_t most=*)
