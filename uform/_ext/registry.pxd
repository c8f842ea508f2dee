cdef int load_plugin(str name) except -1
cdef int load_all_plugins() except -1
cdef bytes pack_fields(str name, object values)
cdef object foreign_modalities()
