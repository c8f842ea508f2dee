# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Executors: the devices that trainers and models are made on."""

cimport cython
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport getpid

from uform._ext.c_api cimport (
    uform_executor_device,
    uform_executor_devices,
    uform_executor_free,
    uform_executor_gemm,
    uform_executor_gpu_class,
    uform_executor_init_ram,
    uform_executor_init_vram,
    uform_executor_kind,
    uform_executor_kind_vram_k,
    uform_executor_t,
    uform_executor_threads,
)
from uform._ext.fields cimport as_int32, as_sequence, refused
from uform._ext.status cimport check
from uform._ext.turns cimport Devices, Turns

import importlib.util
import os
import pathlib

from uform._ext.enums import GPUClass
from uform._ext.worker import Worker, is_own_thread


def find_blas() -> str | None:
    """The shared library whose GEMM RAM executors use, or None for the plain GEMM.

    It is the environment variable UFORM_BLAS, where "plain" asks for the plain GEMM; else that of the scipy-openblas32
    package, where it is installed.
    """
    asked = os.environ.get("UFORM_BLAS")
    if asked:
        return None if asked == "plain" else asked
    package = importlib.util.find_spec("scipy_openblas32")
    if package is None or not package.submodule_search_locations:
        return None
    folder = pathlib.Path(package.submodule_search_locations[0]) / "lib"
    found = sorted(folder.glob("libscipy_openblas*.so*")) + sorted(folder.glob("libscipy_openblas*.dylib"))
    return str(found[0]) if found else None


@cython.final
cdef class Executor:
    """The devices that trainers and models live on, made by `Executor.for_vram` or `Executor.for_ram`.

    It lives as long as anything made on it does.
    """

    def __init__(self) -> None:
        raise TypeError("Executor() is not how executors are made: use Executor.for_ram() or Executor.for_vram()")

    def __cinit__(self):
        self.turns = Turns()
        self.held = Devices()
        self.process = getpid()

    def __dealloc__(self):
        # Freeing joins worker threads.
        with nogil:
            uform_executor_free(self.handle)

    @classmethod
    def for_vram(cls, devices: Sequence[int] | None = None) -> Executor:
        """An executor on GPUs.

        Args:
            devices: their indices; None takes every visible GPU.

        Raises:
            DeviceError: there is no driver, no such GPU, or one below the lowest supported class; or this build has no
                VRAM part.
        """
        cdef Executor made = Executor.__new__(Executor)
        cdef tuple given = () if devices is None else _indices(devices)
        cdef int32_t* indices = NULL
        cdef size_t count = len(given), place
        if devices is not None:
            if count == 0:
                raise ValueError("devices is empty: expected at least one index, or None for every visible GPU")
            indices = <int32_t*>malloc(count * sizeof(int32_t))
            if indices == NULL:
                raise MemoryError(f"no memory for {count} device indices")
            for place in range(count):
                indices[place] = given[place]
        try:
            with nogil:
                check(uform_executor_init_vram(indices, count, &made.handle))
        finally:
            free(indices)
        return made

    @classmethod
    def for_ram(cls, devices: int = 1, threads: int = 0) -> Executor:
        """The reference executor.

        Args:
            devices: virtual devices in this process.
            threads: worker threads in all; 0 takes the size of the process's affinity mask.

        Raises:
            OSError: the environment variable UFORM_BLAS names no library with a `cblas_sgemm`.
        """
        cdef Executor made = Executor.__new__(Executor)
        cdef int32_t count = as_int32(devices, "devices"), workers = as_int32(threads, "threads")
        cdef bytes blas = None if (found := find_blas()) is None else os.fsencode(found)
        cdef const char* blas_path = NULL
        if blas is not None:
            blas_path = blas
        try:
            with nogil:
                check(uform_executor_init_ram(count, workers, blas_path, &made.handle))
        except OSError as error:
            named = "UFORM_BLAS" if os.environ.get("UFORM_BLAS") else "scipy-openblas32"
            reason = str(error).removeprefix(f"blas_path: {found}: ").removeprefix(f"{found}: ")
            raise OSError(f"{named} is {found}: {reason}") from None
        return made

    def __reduce__(self):
        raise TypeError("an Executor cannot be pickled or copied: its devices and threads are of this process")

    @property
    def devices(self) -> tuple[int, ...]:
        """The indices of its devices."""
        cdef uform_executor_t* handle = self.open()
        return tuple([uform_executor_device(handle, place) for place in range(uform_executor_devices(handle))])

    @property
    def kind(self) -> str:
        """`"ram"` or `"vram"`."""
        return "vram" if uform_executor_kind(self.open()) == uform_executor_kind_vram_k else "ram"

    @property
    def threads(self) -> int:
        """Worker threads in all."""
        return uform_executor_threads(self.open())

    @property
    def gemm(self) -> str:
        """What multiplies matrices: on RAM `"openblas"` or `"plain"`."""
        return uform_executor_gemm(self.open()).decode()

    @property
    def gpu_class(self) -> GPUClass:
        """The class that its GPUs dispatch as: the lowest of them; NONE on RAM."""
        return GPUClass(uform_executor_gpu_class(self.open()))

    def __repr__(self) -> str:
        return f"<Executor {self.kind} devices={list(self.devices)} threads={self.threads}>"

    def _submit(self, call: Callable[[], object], on: Executor | None = None) -> Future[object]:
        """Has the executor's worker call, after all that was submitted before.

        Args:
            call: what is called.
            on: the executor whose devices it works on, where it works on any.
        """
        self.check_process()
        if not callable(call):
            raise refused("call", call, "a callable")
        if self.worker is None:
            worker = Worker(self.turns)
            if self.worker is None:  # no other thread has made one meanwhile
                self.worker = worker
        return self.worker.submit(call, None if on is None else (<Executor?>on).held)

    cdef int enter(self) except -1:
        """Begins a call on the devices, after all that was submitted before; one from within a call is refused.

        On a worker's own thread, in a callback of a deferred call, it comes next: what was submitted waits for that
        thread. So it does from within a call on other devices.
        """
        self.begin(self)
        try:
            self.held.enter()
        except BaseException:
            self.end()
            raise
        return 0

    cdef int leave(self) except -1:
        self.held.leave()
        return self.end()

    cdef int begin(self, Executor on) except -1:
        """Begins a call in this executor's order that will work on the devices of another one."""
        self.check_process()
        on.check_process()
        return self.turns.enter(on.held, is_own_thread())

    cdef int end(self) except -1:
        return self.turns.leave()

    cdef int check_process(self) except -1:
        if self.process != getpid():
            raise RuntimeError("the executor was made in the process that this one was forked from, where its threads "
                               "stayed: make an executor here")
        return 0

    cdef uform_executor_t* open(self) except NULL:
        if self.handle == NULL:
            raise ValueError("the executor is not initialised: use Executor.for_ram() or Executor.for_vram()")
        return self.handle


cdef tuple _indices(object devices):
    given = as_sequence(devices, "devices", "a sequence of int")
    return tuple([as_int32(index, f"devices[{place}]") for place, index in enumerate(given)])
