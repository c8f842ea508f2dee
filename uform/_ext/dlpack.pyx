# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Memory as DLPack capsules, handed over and taken: the structures are its specification's, version 1 and before."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from uform._ext.interpreter cimport enter_python, leave_python

import contextlib
import sys

cdef enum:
    MAJOR = 1
    MINOR = 0

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


cdef void _let_go(void* owner) noexcept nogil:
    # A consumer may outlive the interpreter, and then there is nothing to give back.
    if enter_python():
        with gil:
            Py_DECREF(<object>owner)
        leave_python()


cdef void _delete_plain(DLManagedTensor* tensor) noexcept nogil:
    _let_go(tensor.manager_ctx)
    free(tensor)


cdef void _delete_versioned(DLManagedTensorVersioned* tensor) noexcept nogil:
    _let_go(tensor.manager_ctx)
    free(tensor)


cdef void _drop_plain(object capsule) noexcept:
    """A capsule that a consumer has taken has another name."""
    if PyCapsule_IsValid(capsule, "dltensor"):
        _delete_plain(<DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor"))


cdef void _drop_versioned(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        _delete_versioned(<DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned"))


cdef object export(object owner, void* data, DLDevice device, int axes, const Py_ssize_t* extents, int code, int bits,
                   bint versioned, uint64_t flags):
    """A capsule over dense memory of at most two axes; `owner` is kept until the consumer lets go.

    Args:
        flags: DL_READ_ONLY, DL_IS_COPIED, which only a versioned capsule can say.
    """
    cdef Versioned* new
    cdef Plain* old
    if versioned:
        new = <Versioned*>calloc(1, sizeof(Versioned))
        if new == NULL:
            raise MemoryError("no memory for a DLPack capsule")
        new.managed.major = MAJOR
        new.managed.minor = MINOR
        new.managed.flags = flags
        new.managed.manager_ctx = <void*>owner
        new.managed.deleter = _delete_versioned
        _fill(&new.managed.dl_tensor, data, device, axes, extents, code, bits, new.shape, new.strides)
        Py_INCREF(owner)
        return PyCapsule_New(new, "dltensor_versioned", <void (*)(object) noexcept>_drop_versioned)
    old = <Plain*>calloc(1, sizeof(Plain))
    if old == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    old.managed.manager_ctx = <void*>owner
    old.managed.deleter = _delete_plain
    _fill(&old.managed.dl_tensor, data, device, axes, extents, code, bits, old.shape, old.strides)
    Py_INCREF(owner)
    return PyCapsule_New(old, "dltensor", <void (*)(object) noexcept>_drop_plain)


cdef void _fill(DLTensor* tensor, void* data, DLDevice device, int axes, const Py_ssize_t* extents, int code, int bits,
                int64_t* shape, int64_t* strides):
    cdef int axis
    cdef int64_t step = 1
    tensor.data = data
    tensor.device = device
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


cdef class Borrowed:

    def __dealloc__(self):
        cdef DLManagedTensor* old = <DLManagedTensor*>self.managed
        cdef DLManagedTensorVersioned* new = <DLManagedTensorVersioned*>self.managed
        if self.managed == NULL:
            return
        if self.versioned and new.deleter != NULL:
            new.deleter(new)
        elif not self.versioned and old.deleter != NULL:
            old.deleter(old)

    cdef const void* data(self):
        if self.tensor.data == NULL:
            return NULL
        return <char*>self.tensor.data + self.tensor.byte_offset

    cdef int64_t stride(self, int axis):
        """Of one axis, in elements; where the array has none, its elements lie end to end."""
        if self.tensor.strides != NULL:
            return self.tensor.strides[axis]
        cdef int64_t step = 1
        cdef int later
        for later in range(axis + 1, self.tensor.ndim):
            step *= self.tensor.shape[later]
        return step

    cdef str type_name(self):
        """The element type as NumPy would call it."""
        names = {DL_INT: "int", DL_UINT: "uint", DL_FLOAT: "float", DL_BFLOAT: "bfloat", 5: "complex", 6: "bool"}
        cdef DLDataType dtype = self.tensor.dtype
        lanes = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
        return f"{names.get(dtype.code, f'type {dtype.code} of ')}{dtype.bits}{lanes}"


cdef tuple device_of(object source):
    """DLPack's (type, index) of an array's device, or None where it is no such array."""
    if not hasattr(type(source), "__dlpack__") or not hasattr(type(source), "__dlpack_device__"):
        return None
    kind, index = source.__dlpack_device__()
    return int(kind), int(index)


cdef object _current(object source):
    """PyTorch hands over a tensor of the current GPU alone."""
    torch = sys.modules.get("torch")
    if not isinstance(source, getattr(torch, "Tensor", ())):
        return contextlib.nullcontext()
    return torch.cuda.device(source.device)


cdef Borrowed borrow(object source, object stream):
    """Takes an array without a copy; the producer makes `stream` wait for what still writes it.

    Args:
        source: has `__dlpack__`.
        stream: the handle of the stream that will read it.
    """
    with _current(source):
        try:
            capsule = source.__dlpack__(stream=stream, max_version=(MAJOR, MINOR))
        except TypeError:  # producers from before version 1
            capsule = source.__dlpack__(stream=stream)
    cdef Borrowed taken = Borrowed.__new__(Borrowed)
    cdef DLManagedTensorVersioned* new
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        new = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if new.major != MAJOR:
            raise BufferError(f"the array comes as DLPack {new.major}.{new.minor}: expected version {MAJOR}")
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
        taken.managed, taken.versioned, taken.tensor = new, True, &new.dl_tensor
    elif PyCapsule_IsValid(capsule, "dltensor"):
        taken.managed = PyCapsule_GetPointer(capsule, "dltensor")
        PyCapsule_SetName(capsule, "used_dltensor")
        taken.tensor = &(<DLManagedTensor*>taken.managed).dl_tensor
    else:
        raise BufferError(f"__dlpack__ of {type(source).__name__} answered {capsule!r}: expected a DLPack capsule")
    return taken
