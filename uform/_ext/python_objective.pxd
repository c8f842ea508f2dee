cdef object register_python_objective(object made)
cdef object begin_holding()
cdef list end_holding(object before)
