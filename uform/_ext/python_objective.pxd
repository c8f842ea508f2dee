cdef object register_python_objective(object made)
