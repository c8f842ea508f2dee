from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t

# Types of devices and of elements, as the specification numbers them.
cdef enum:
    DL_CPU = 1
    DL_CUDA = 2
    DL_CUDA_HOST = 3

cdef enum:
    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2
    DL_BFLOAT = 4

# What a capsule of version 1 says of its memory.
cdef enum:
    DL_READ_ONLY = 1
    DL_IS_COPIED = 2

cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset


cdef class Borrowed:
    """An array that another library handed over; it is let go of with the object."""
    cdef void* managed
    cdef bint versioned
    cdef const DLTensor* tensor
    cdef const void* data(self)
    cdef int64_t stride(self, int axis)
    cdef str type_name(self)


cdef object export(object owner, void* data, DLDevice device, int axes, const Py_ssize_t* extents, int code, int bits,
                   bint versioned, uint64_t flags)
cdef tuple device_of(object source)
cdef Borrowed borrow(object source, object stream)
