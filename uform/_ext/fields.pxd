from libc.stdint cimport int32_t, int64_t, uint64_t


cdef int64_t as_integer(object value, str field, int64_t least, int64_t most) except? -1
cdef int32_t as_int32(object value, str field) except? -1
cdef int64_t as_int64(object value, str field) except? -1
cdef uint64_t as_uint64(object value, str field) except? 0
cdef double as_double(object value, str field) except? -1
cdef object as_enum(object enum, object value, str field)
cdef bytes as_path(object value, str field)
