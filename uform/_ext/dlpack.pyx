# cython: language_level=3, annotation_typing=False
"""Memory in RAM as a DLPack capsule: the structures are its specification's, version 1 and those before."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    CPU = 1
    MAJOR = 1
    MINOR = 0

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

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor* tensor) noexcept

cdef struct DLManagedTensorVersioned:
    uint32_t major
    uint32_t minor
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned* tensor) noexcept
    uint64_t flags
    DLTensor dl_tensor

# Either form with room for its extents and strides, so that one block is allocated and freed.
cdef struct Plain:
    DLManagedTensor managed
    int64_t[2] shape
    int64_t[2] strides

cdef struct Versioned:
    DLManagedTensorVersioned managed
    int64_t[2] shape
    int64_t[2] strides


cdef void _delete_plain(DLManagedTensor* tensor) noexcept with gil:
    Py_DECREF(<object>tensor.manager_ctx)
    free(tensor)


cdef void _delete_versioned(DLManagedTensorVersioned* tensor) noexcept with gil:
    Py_DECREF(<object>tensor.manager_ctx)
    free(tensor)


cdef void _drop_plain(object capsule) noexcept:
    """A capsule that a consumer has taken has another name."""
    if PyCapsule_IsValid(capsule, "dltensor"):
        _delete_plain(<DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor"))


cdef void _drop_versioned(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        _delete_versioned(<DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned"))


cdef object export(object owner, void* data, int axes, const Py_ssize_t* extents, int code, int bits, bint versioned):
    """A capsule over dense memory of at most two axes; `owner` is kept until the consumer lets go."""
    cdef Versioned* new
    cdef Plain* old
    if versioned:
        new = <Versioned*>calloc(1, sizeof(Versioned))
        if new == NULL:
            raise MemoryError("no memory for a DLPack capsule")
        new.managed.major = MAJOR
        new.managed.minor = MINOR
        new.managed.manager_ctx = <void*>owner
        new.managed.deleter = _delete_versioned
        _fill(&new.managed.dl_tensor, data, axes, extents, code, bits, new.shape, new.strides)
        Py_INCREF(owner)
        return PyCapsule_New(new, "dltensor_versioned", <void (*)(object) noexcept>_drop_versioned)
    old = <Plain*>calloc(1, sizeof(Plain))
    if old == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    old.managed.manager_ctx = <void*>owner
    old.managed.deleter = _delete_plain
    _fill(&old.managed.dl_tensor, data, axes, extents, code, bits, old.shape, old.strides)
    Py_INCREF(owner)
    return PyCapsule_New(old, "dltensor", <void (*)(object) noexcept>_drop_plain)


cdef void _fill(DLTensor* tensor, void* data, int axes, const Py_ssize_t* extents, int code, int bits, int64_t* shape,
                int64_t* strides):
    cdef int axis
    cdef int64_t step = 1
    tensor.data = data
    tensor.device.device_type = CPU
    tensor.ndim = axes
    tensor.dtype.code = code
    tensor.dtype.bits = bits
    tensor.dtype.lanes = 1
    tensor.shape = shape
    tensor.strides = strides
    for axis in reversed(range(axes)):
        shape[axis] = extents[axis]
        strides[axis] = step
        step *= extents[axis]
