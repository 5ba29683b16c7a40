cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.core.answers cimport settle_all


@cython.final
cdef class CommitGate:
    cdef public str refusing
    cdef readonly int64_t committed
    cdef int64_t _sequence
    cdef object _schedule, _flush, _awaited
    cdef list _unsent
    cdef readonly object _waiting

    cpdef then(self, step)
    cpdef sent(self, int64_t sequence)
    cpdef commit(self, int64_t sequence)
    @cython.locals(steps=list)
    cdef _take(self)


@cython.final
cdef class CopiedAndSynced:
    cdef list _receipts
    cdef int _left
