# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The world of a run: the devices that step together."""

cimport cython

from uform._ext.executor cimport Executor
from uform._ext.fields cimport as_double, as_enum, as_int32, as_path, as_str, shown
from uform._ext.record cimport Record, refuse_unknown

import errno
import os

from uform._ext.enums import GPUClass, MultimemTier
from uform._ext.status import MeshError


@cython.final
cdef class MeshOptions(Record):
    """MeshOptions(*, host_domain_index=0, host_domain_count=0, directory=None, job=None, timeout_seconds=0.0)\n--\n\n\
How the processes of a run find each other.

    Attributes:
        host_domain_index: this process's place among them.
        host_domain_count: the processes of the run; 0 derives 1.
        directory: a directory that every one of them sees, for the exchange of addresses; not needed by a single one.
        job: the run's name within the directory.
        timeout_seconds: how long to wait for a peer; 0 derives 300.
    """

    _fields = ("host_domain_index", "host_domain_count", "directory", "job", "timeout_seconds")

    def __cinit__(
        self,
        *positional,
        host_domain_index=0,
        host_domain_count=0,
        directory=None,
        job=None,
        timeout_seconds=0.0,
        **unknown,
    ):
        refuse_unknown(MeshOptions, positional, unknown)
        self.host_domain_index = as_int32(host_domain_index, "MeshOptions.host_domain_index")
        self.host_domain_count = as_int32(host_domain_count, "MeshOptions.host_domain_count")
        if directory is not None:
            as_path(directory, "MeshOptions.directory")
        self.directory = directory
        self.job = None if job is None else _job_name(job, "MeshOptions.job")
        self.timeout_seconds = as_double(timeout_seconds, "MeshOptions.timeout_seconds")
        _check_options(self)


@cython.final
cdef class MeshDescription(Record):
    """MeshDescription(*, host_domain_index=0, host_domain_count=0, devices_per_host=0, world_size=0, \
gpu_class=GPUClass.NONE, multimem_tier=MultimemTier.NONE, transport='', job=None)\n--\n\n\
What a mesh found.

    Attributes:
        host_domain_index: this process's place.
        host_domain_count: the processes of the run.
        devices_per_host: devices of this process.
        world_size: devices of the run.
        gpu_class: the class that every GPU of the run dispatches as.
        multimem_tier: what all devices of the run can do among themselves.
        transport: how they exchange.
        job: the run's name.
    """

    _fields = (
        "host_domain_index", "host_domain_count", "devices_per_host", "world_size", "gpu_class", "multimem_tier",
        "transport", "job",
    )

    def __cinit__(
        self,
        *positional,
        host_domain_index=0,
        host_domain_count=0,
        devices_per_host=0,
        world_size=0,
        gpu_class=GPUClass.NONE,
        multimem_tier=MultimemTier.NONE,
        transport="",
        job=None,
        **unknown,
    ):
        refuse_unknown(MeshDescription, positional, unknown)
        self.host_domain_index = as_int32(host_domain_index, "MeshDescription.host_domain_index")
        self.host_domain_count = as_int32(host_domain_count, "MeshDescription.host_domain_count")
        self.devices_per_host = as_int32(devices_per_host, "MeshDescription.devices_per_host")
        self.world_size = as_int32(world_size, "MeshDescription.world_size")
        self.gpu_class = as_enum(GPUClass, gpu_class, "MeshDescription.gpu_class")
        self.multimem_tier = as_enum(MultimemTier, multimem_tier, "MeshDescription.multimem_tier")
        self.transport = as_str(transport, "MeshDescription.transport")
        self.job = None if job is None else as_str(job, "MeshDescription.job")


@cython.final
cdef class Mesh:
    """The devices that step together, made by `Mesh.bootstrap`."""

    def __init__(self, *args, **kwargs) -> None:
        raise TypeError("Mesh() is not how meshes are made: use Mesh.bootstrap()")

    @classmethod
    def bootstrap(cls, executor: Executor, options: MeshOptions, /) -> Mesh:
        """Finds the peers and connects to them.

        Args:
            executor: this process's devices.
            options: where the peers are found.

        Raises:
            OSError: the directory is missing, is none, or cannot be written into.
            MeshError: more than one process is asked for, which this version does not connect.
        """
        if not isinstance(executor, Executor):
            raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
        if not isinstance(options, MeshOptions):
            raise TypeError(f"options is of type {type(options).__name__}: expected MeshOptions")
        (<Executor>executor).open()
        _check_directory(options.directory)
        if options.host_domain_count > 1:
            raise MeshError(f"MeshOptions.host_domain_count is {options.host_domain_count}: this version trains on the "
                            "devices of one process")
        cdef Mesh made = Mesh.__new__(Mesh)
        made.executor = executor
        made.options = options
        return made

    def __reduce__(self):
        raise TypeError("a Mesh cannot be pickled or copied: each process bootstraps its own")

    def describe(self) -> MeshDescription:
        """What the mesh found."""
        if self.executor is None:
            raise ValueError("the mesh is not initialised: use Mesh.bootstrap()")
        devices = len(self.executor.devices)
        return MeshDescription(
            host_domain_index=self.options.host_domain_index,
            host_domain_count=1,
            devices_per_host=devices,
            world_size=devices,
            gpu_class=self.executor.gpu_class,
            multimem_tier=MultimemTier.NONE,
            transport="in-process",
            job=self.options.job,
        )


cdef str _job_name(object value, str field):
    """A name that a file within the directory can have."""
    name = as_str(value, field)
    if "\0" in name or "/" in name:
        raise ValueError(f"{field} is {shown(name)}: a name holds no NUL and no slash")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} is {shown(name)}: no text, {error.reason}") from None
    return name


cdef int _check_options(MeshOptions options) except -1:
    count = max(options.host_domain_count, 1)
    if options.host_domain_count < 0:
        raise ValueError(f"MeshOptions.host_domain_count is {options.host_domain_count}: expected at least 0")
    if not 0 <= options.host_domain_index < count:
        raise ValueError(f"MeshOptions.host_domain_index is {options.host_domain_index}: expected 0 to {count - 1}, "
                         "below host_domain_count")
    if options.timeout_seconds < 0:
        raise ValueError(f"MeshOptions.timeout_seconds is {options.timeout_seconds}: expected at least 0")
    return 0


cdef int _check_directory(object directory) except -1:
    if directory is None:
        return 0
    if not os.path.isdir(directory):
        code = errno.ENOTDIR if os.path.exists(directory) else errno.ENOENT
    elif not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        code = errno.EACCES
    else:
        return 0
    raise OSError(code, f"MeshOptions.directory: {os.strerror(code)}", os.fsdecode(directory))
