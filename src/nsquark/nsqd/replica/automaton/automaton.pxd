cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.replica.automaton.following cimport Following as FastFollowing
from nsquark.nsqd.replica.automaton.leading cimport Leading as FastLeading


cdef class Automaton:
    cdef readonly object state, directory
    cdef readonly str me
    cdef readonly FastLeading leading
    cdef readonly FastFollowing following
    cdef readonly list wanted
    cdef readonly object _session, _campaign, _settings
    cdef object _unanswered
    cdef bint _forced

    @cython.locals(taken=list)
    cpdef list take(self)
    @cython.locals(leading=FastLeading)
    cpdef written(self, double now, int64_t sequence)
    @cython.locals(leading=FastLeading)
    cpdef acknowledged(self, double now, str incarnation, int64_t term, int64_t written, int64_t synced)
    cpdef frames_written(self, double now, int64_t term, int64_t first, int64_t last)
