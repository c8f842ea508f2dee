from uform._ext.c_api cimport uform_trainer_step_stats_t


cdef class TrainerStepStats:
    cdef uform_trainer_step_stats_t c
    cdef dict _extra
    cdef void take(self, const uform_trainer_step_stats_t* reported)
