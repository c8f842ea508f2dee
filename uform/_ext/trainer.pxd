from uform._ext.c_api cimport uform_pending_t, uform_step_t, uform_trainer_t
from uform._ext.choices cimport ChoiceTexts
from uform._ext.contents cimport Items
from uform._ext.deferred cimport Receiver
from uform._ext.mesh cimport Mesh
from uform._ext.progress cimport Progress
from uform._ext.rows cimport Rows
from uform._ext.stats cimport TrainerStepStats


cdef class Trainer(Receiver):
    cdef uform_trainer_t* handle
    cdef readonly Mesh mesh
    cdef list objectives  # in Python
    cdef dict shapes
    cdef dict parameters
    cdef size_t hidden
    cdef bint makes_choices
    cdef int begun  # steps that were put on their way, and whose outcomes have not been fetched
    cdef int check_made(self) except -1
    cdef int check_open(self) except -1
    cdef uform_trainer_t* enter(self) except NULL
    cdef int leave(self) except -1


cdef class StepCall:
    """One step whose arguments are read: calling it runs it, once; so do `begin` and then `finish`."""
    cdef uform_step_t c
    cdef uform_pending_t* pending
    cdef bint ended  # as it began
    cdef object answer
    cdef Trainer trainer
    cdef Items items
    cdef ChoiceTexts choices
    cdef Rows rows
    cdef TrainerStepStats stats
    cdef tuple keepers


cdef class SaveCall:
    """One save whose arguments are read: calling it runs it."""
    cdef Trainer trainer
    cdef bytes path
    cdef Progress progress
