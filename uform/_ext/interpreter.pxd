cdef bint enter_python() noexcept nogil
cdef void leave_python() noexcept nogil
cdef bint on_main_thread() noexcept nogil
