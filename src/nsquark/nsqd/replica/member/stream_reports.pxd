from libc.stdint cimport int64_t

from nsquark.nsqd.replica.automaton.actions cimport Acknowledge as FastAcknowledge
from nsquark.nsqd.replica.automaton.automaton cimport Automaton as FastAutomaton


cdef class StreamReports:
    cdef object _member, _perform, _time
    cdef FastAutomaton _automaton

    cpdef acknowledge(self, FastAcknowledge action)
    cpdef frames_written(self, int64_t term, int64_t first, int64_t last)
