cdef object decode(int modality, Py_ssize_t item, object encoded, object shape)
