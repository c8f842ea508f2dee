from libc.stdint cimport int32_t

from uform._ext.executor cimport Executor
from uform._ext.record cimport Record


cdef class MeshOptions(Record):
    cdef readonly int32_t host_domain_index
    cdef readonly int32_t host_domain_count
    cdef readonly object directory
    cdef readonly str job
    cdef readonly double timeout_seconds


cdef class MeshDescription(Record):
    cdef readonly int32_t host_domain_index
    cdef readonly int32_t host_domain_count
    cdef readonly int32_t devices_per_host
    cdef readonly int32_t world_size
    cdef readonly object gpu_class
    cdef readonly object multimem_tier
    cdef readonly str transport
    cdef readonly str job


cdef class Mesh:
    cdef readonly Executor executor
    cdef readonly MeshOptions options
