cimport cython

from nsquark.nsqd.replica.automaton.automaton cimport Automaton as FastAutomaton


@cython.final
cdef class Performing:
    cdef FastAutomaton _automaton
    cdef object _ended, _fence, _ask
    cdef dict _handlers
    cdef bint _performing

    @cython.locals(automaton=FastAutomaton)
    cpdef perform(self)
