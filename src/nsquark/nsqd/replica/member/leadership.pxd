cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.core.commit_gate cimport CommitGate as FastCommitGate
from nsquark.nsqd.replica.automaton.actions cimport Release as FastRelease
from nsquark.nsqd.replica.automaton.automaton cimport Automaton as FastAutomaton
from nsquark.nsqd.replica.automaton.leading cimport Leading as FastLeading
from nsquark.nsqd.stats.histogram cimport Histogram as FastHistogram


@cython.final
cdef class Leadership:
    cdef readonly FastHistogram acknowledgement_times
    cdef object _server, _time, _syncing, _flushed_at
    cdef object _member
    cdef FastAutomaton _automaton
    cdef bint _synced

    @cython.locals(automaton=FastAutomaton, leading=FastLeading, now=double, gate=FastCommitGate)
    cpdef flushed(self, int64_t sequence)
    @cython.locals(sequence=int64_t, now=double, gate=FastCommitGate)
    cpdef release(self, FastRelease action)
    @cython.locals(automaton=FastAutomaton)
    cpdef follower_answered(self, stream, int64_t term)
