# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""What a Python objective sees of a step: arrays on its device, and the pairs that the call names."""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from libc.stdint cimport uintptr_t

from uform._ext.buffers cimport refuse_mask
from uform._ext.dlpack cimport DL_CPU, DL_CUDA, DL_FLOAT, DL_READ_ONLY, DLDevice, export

from collections import namedtuple
from collections.abc import Iterator, Mapping

import numpy as np

cdef enum:
    HOST = -1
    ITEM_BYTES = 4

cdef char* FORMAT = b"f"


cdef class Lease:
    """Kept by whoever was handed an array's memory."""
    cdef PluginArray array

    def __dealloc__(self):
        self.array.exports -= 1


@cython.final
cdef class PluginArray:
    """Dense float32 numbers on a step's device, lent to an objective for the length of one `forward_backward`.

    In RAM it has the buffer protocol and DLPack, in a GPU's memory DLPack and the CUDA array interface, so that NumPy,
    PyTorch and others see it without a copy. A gradient in RAM is written into by item and by `+=` and its like; on a
    GPU through what DLPack hands over, as in `torch.from_dlpack(gradient).add_(more)`. Its values are complete: no
    stream has to wait for them. What is written into it on any stream of its device is awaited after the call. It must
    be let go of by then; what an objective wants to keep, it copies.

    Attributes:
        shape: its extents.
        device: `"ram"`, or `"vram:0"` with the GPU's index.
    """

    def __init__(self) -> None:
        raise TypeError("PluginArray() is not how such arrays are made: a PluginBatch has them")

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return tuple([self.extents[axis] for axis in range(self.axes)])

    @property
    def device(self) -> str:
        """Where it lies: `"ram"`, or `"vram:0"` with the GPU's index."""
        return "ram" if self.index == HOST else f"vram:{self.index}"

    def __len__(self) -> int:
        return self.extents[0]

    def __setitem__(self, key: object, value: object) -> None:
        """Writes into a gradient in RAM, as NumPy does."""
        self.check_writable()
        refuse_mask(value)
        np.asarray(self)[key] = value

    # Without these `gradient += more` would make a new array, which nothing reads.

    def __iadd__(self, other: object) -> PluginArray:
        return self.update(np.add, other)

    def __isub__(self, other: object) -> PluginArray:
        return self.update(np.subtract, other)

    def __imul__(self, other: object) -> PluginArray:
        return self.update(np.multiply, other)

    def __itruediv__(self, other: object) -> PluginArray:
        return self.update(np.true_divide, other)

    def __ifloordiv__(self, other: object) -> PluginArray:
        return self.update(np.floor_divide, other)

    def __imod__(self, other: object) -> PluginArray:
        return self.update(np.remainder, other)

    def __ipow__(self, other: object) -> PluginArray:
        return self.update(np.power, other)

    def __imatmul__(self, other: object) -> PluginArray:
        return self.update(np.matmul, other)

    def __repr__(self) -> str:
        return f"<PluginArray {self.shape} on {self.device}{'' if self.lent else ', taken back'}>"

    def __array__(self, dtype: object = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        """In RAM a view; from a GPU nothing is copied without being asked for."""
        self.check_lent()
        if self.index != HOST:
            raise TypeError(f"the array lies in {self.device}, where NumPy sees nothing: use DLPack")
        return np.array(memoryview(self), dtype=dtype, copy=copy)

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.check_lent()
        if self.index != HOST:
            raise BufferError(f"the array lies in {self.device}, which the buffer protocol cannot show: use DLPack")
        if flags & PyBUF_WRITABLE and not self.writable:
            raise BufferError("the array is not to be written: gradients alone are")
        view.buf = self.data
        view.obj = self
        view.len = ITEM_BYTES * self.extents[0] * (self.extents[1] if self.axes == 2 else 1)
        view.itemsize = ITEM_BYTES
        view.readonly = not self.writable
        view.ndim = self.axes
        view.format = FORMAT if flags & PyBUF_FORMAT else NULL
        view.shape = self.extents if flags & PyBUF_ND else NULL
        view.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: (1, 0) is the CPU, (2, 0) the first GPU."""
        if self.index == HOST:
            return DL_CPU, 0
        return DL_CUDA, self.index

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule over the array; from version 1 on it says which memory is not to be written.

        Args:
            stream: the consumer's; the values are complete, so it need not wait.
            max_version: of DLPack that the consumer takes; before 1 nothing in the capsule protects the memory.
            dl_device: where it wants the values: where they are.
            copy: True is refused.
        """
        self.check_lent()
        if copy or not (dl_device is None or dl_device == self.__dlpack_device__()):
            raise BufferError(f"the array lies in {self.device} and hands over its own memory, no copy")
        cdef DLDevice device
        device.device_type, device.device_id = self.__dlpack_device__()
        cdef Lease lease = Lease.__new__(Lease)
        lease.array = self
        self.exports += 1
        return export(lease, self.data, device, self.axes, self.extents, DL_FLOAT, 32,
                      max_version is not None and max_version[0] >= 1, 0 if self.writable else DL_READ_ONLY)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The CUDA array interface, version 3; an array in RAM has none."""
        if self.index == HOST:
            raise AttributeError("the array lies in RAM")
        self.check_lent()
        return {"shape": self.shape, "typestr": "<f4", "data": (<uintptr_t>self.data, False), "strides": None,
                "version": 3}

    cdef PluginArray update(self, object function, object other):
        """What `gradient += more` and its like do to a gradient in RAM."""
        self.check_writable()
        if self.index != HOST:
            raise TypeError(f"the array lies in {self.device}, where NumPy writes nothing: write into it by DLPack, as "
                            "in torch.from_dlpack(gradient).add_(more)")
        refuse_mask(other)
        values = np.asarray(self)
        function(values, other, out=values)
        return self

    cdef int check_writable(self) except -1:
        if not self.writable:
            raise ValueError("the array is not to be written: gradients alone are")
        return 0

    cdef int check_lent(self) except -1:
        if not self.lent:
            raise ValueError("the array was lent for one forward_backward, which is over: copy what is wanted longer")
        return 0

    cdef Py_ssize_t take_back(self):
        """Answers how many still hold its memory."""
        self.lent = False
        return self.exports


cdef PluginArray lend(void* data, tuple shape, int index, bint writable):
    cdef PluginArray made = PluginArray.__new__(PluginArray)
    made.data = data
    made.axes = len(shape)
    made.index = index
    made.lent = True
    made.writable = writable
    made.extents[0] = shape[0]
    made.extents[1] = shape[1] if made.axes == 2 else 1
    made.strides[0] = ITEM_BYTES * made.extents[1]
    made.strides[1] = ITEM_BYTES
    return made


class Pairs(namedtuple("Pairs", ("places", "weights"))):
    """Directed pairs of one kind, ascending by row and candidate.

    Attributes:
        places: int64 [pairs, 2]: the row and its candidate, both places among the batch's bags.
        weights: float32 [pairs], above 0.
    """

    __module__ = "uform"
    __slots__ = ()


class Arrays(Mapping):
    """A batch's arrays by name, which are written into and not replaced."""

    __slots__ = ("_arrays", "_of")

    def __init__(self, arrays: dict[str, PluginArray], of: str) -> None:
        self._arrays, self._of = arrays, of

    def __getitem__(self, name: str) -> PluginArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return repr(self._arrays)

    def __setitem__(self, name: object, value: object) -> None:
        if self._arrays.get(name) is not value:  # else it is the end of `gradients[name] += more`
            raise TypeError(_refusal(f"{self._of}[{name!r}]"))

    def __delitem__(self, name: object) -> None:
        raise TypeError(_refusal(f"{self._of}[{name!r}]"))


cdef str _refusal(str attribute):
    if "gradient" not in attribute:
        return f"batch.{attribute} is not to be replaced: it is only read"
    return (f"batch.{attribute} is not to be replaced, which nothing would read: write into it, as in "
            f"batch.{attribute}[...] = gradient, or torch.from_dlpack(batch.{attribute}).copy_(gradient)")


class PluginBatch:
    """One step as a Python objective sees it; arrays of the device are lent for the length of the call.

    Its attributes are set once, by the step, and cannot be replaced.

    Attributes:
        bags: `PluginArray` [bags, hidden], the bags' embeddings, of unit length, not to be written. They are this
            call's in the order in which they first appear, without those that were dropped whole.
        bags_gradient: `PluginArray` [bags, hidden] of zeros, to be overwritten with the loss's gradient.
        numbers: int64 [bags], each bag's number in the call: its row in what `step` answers.
        attract, repel, ignore: `Pairs` by place among `bags`.
        groups: int64 [bags], temperature groups.
        modalities: int64 [bags], sets of modalities, a bit each.
        sides: int64 [bags], sets of late-interaction sides: 1 query, 2 document.
        parameters: `PluginArray` by name: the objective's own, not to be written.
        parameter_gradients: `PluginArray` by name, of zeros, to be overwritten.
        share: this process's bags over the world's: 1 where there is one process. Losses and gradients are added up
            over processes.
        call: the step's number, for random draws.
        device: `"ram"`, or `"vram:0"` with the GPU's index.
    """

    __module__ = "uform"
    __slots__ = ("bags", "bags_gradient", "numbers", "attract", "repel", "ignore", "groups", "modalities", "sides",
                 "parameters", "parameter_gradients", "share", "call", "device")

    def __setattr__(self, name: str, value: object) -> None:
        if not hasattr(self, name):
            object.__setattr__(self, name, value)
        elif getattr(self, name) is not value:  # else it is the end of `batch.bags_gradient += more`
            raise AttributeError(_refusal(name))

    def __delattr__(self, name: str) -> None:
        raise AttributeError(_refusal(name))
