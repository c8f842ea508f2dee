cdef object export(object owner, void* data, int axes, const Py_ssize_t* extents, int code, int bits, bint versioned)
