from uform._ext.c_api cimport (
    uform_choices_t,
    uform_late_interaction_t,
    uform_plugin_option_t,
    uform_trainer_options_t,
)
from uform._ext.progress cimport Progress


cdef class TrainerOptions:
    """A run's configuration as the C API takes it, and what keeps its memory in place."""
    cdef uform_trainer_options_t c
    cdef uform_late_interaction_t late_interaction
    cdef uform_choices_t choices
    cdef uform_plugin_option_t* plugins
    cdef Progress progress
    cdef list keepers


cdef TrainerOptions as_trainer_options(dict given)
