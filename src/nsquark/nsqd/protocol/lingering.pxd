cimport cython
from libc.stdint cimport int64_t

cdef int64_t SLOW, QUICK
cdef int ROUND, MOST_AWAKE, FEWEST_RESTS, MOST_RESTS


@cython.final
cdef class Lingering:
    cdef readonly bint awake
    cdef readonly int64_t last
    cdef int _count, _rounds, _rests, _next_rests
    cdef int64_t _sum, _asleep

    @cython.locals(last=int64_t)
    cpdef came(self, int64_t now, int ready)
    cdef _judge(self, int64_t average)
