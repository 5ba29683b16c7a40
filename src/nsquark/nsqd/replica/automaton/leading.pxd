cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.replica.automaton.commit_rule cimport CommitRule


cdef class Leading:
    cdef readonly str fault, refusing
    cdef readonly object state
    cdef readonly int64_t term, released, written, synced
    cdef readonly CommitRule rule
    cdef readonly bint serving
    cdef readonly object _changing
    cdef object _settings, _session, _marks, _claimed, _claimed_at, _claiming, _reclaiming, _resigning
    cdef str _me
    cdef list _actions
    cdef dict _heard
    cdef set _joined
    cdef bint _handing_over
    cdef int64_t _drained_at
    cdef double _unsynced_since, _beat_at

    cpdef wrote(self, double now, int64_t sequence)
    cpdef acknowledged(self, double now, str incarnation, int64_t term, int64_t written, int64_t synced)
    @cython.locals(rule=CommitRule)
    cpdef _add(self, str incarnation)
    @cython.locals(committed=int64_t)
    cpdef _release(self, double now)
