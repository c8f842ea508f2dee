"""The CUDA driver without a toolkit: free memory, ballast that fills it, and a kernel that faults on purpose."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

SUCCESS, ILLEGAL_ADDRESS = 0, 700
# Waits for the given nanoseconds, then writes to an address that no allocation holds.
FAULTY_PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry fault(.param .u64 wait) {
    .reg .u64 %begin, %now, %wait, %address;
    .reg .u32 %value;
    .reg .pred %early;
    ld.param.u64 %wait, [wait];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %early, %now, %wait;
    @%early bra again;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""


def has_primary_context(index: int) -> bool:
    """Whether this process has the context on a GPU that the runtime uses. Makes none."""
    library = ctypes.CDLL("libcuda.so.1")
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    for result in (
        library.cuInit(0),
        library.cuDeviceGet(ctypes.byref(device), index),
        library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)),
    ):
        if result != SUCCESS:
            raise RuntimeError(f"the driver answered {result}")
    return active.value != 0


class Driver:
    """The driver on one GPU, in the context that the runtime uses as well."""

    def __init__(self, index: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self._device = device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != SUCCESS:
            raise RuntimeError(f"{name} answered {result}")

    @contextmanager
    def context(self) -> Iterator[int]:
        """A context of the caller's own, current for this thread."""
        context = ctypes.c_void_p()
        self._call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), self._device)
        try:
            yield context.value or 0
        finally:
            self._call("cuCtxDestroy_v2", context)

    def current_context(self) -> int:
        """The one that this thread's calls go to, 0 where it has none."""
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value or 0

    def free_bytes(self) -> int:
        """Free memory of the GPU, whoever uses the rest."""
        free, whole = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole))
        return free.value

    @contextmanager
    def ballast(self, leave: int) -> Iterator[None]:
        """Fills the memory but for about `leave` bytes."""
        memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(self.free_bytes() - leave))
        try:
            yield
        finally:
            self._call("cuMemFree_v2", memory)

    @contextmanager
    def no_room(self) -> Iterator[None]:
        """Fills the memory whole: the last bytes in ever smaller pieces."""
        taken = []
        size = self.free_bytes()
        while size >= 1 << 12:
            memory = ctypes.c_uint64()
            if self._library.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == SUCCESS:
                taken.append(memory)
            else:
                size //= 2
        try:
            yield
        finally:
            for memory in taken:
                self._call("cuMemFree_v2", memory)

    def fault(self, after: float = 0.0) -> None:
        """Starts a kernel that writes where it may not once `after` seconds are over. Does not wait for it."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), FAULTY_PTX)
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, b"fault")
        wait = ctypes.c_uint64(int(after * 1e9))
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(wait), ctypes.c_void_p))
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 1)  # does not order itself after the legacy stream
        self._call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)

    def wait(self) -> int:
        """Waits for all work of the context; answers the driver's code."""
        return int(self._library.cuCtxSynchronize())
