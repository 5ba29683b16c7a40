cimport cython
from libc.stdint cimport int64_t

cdef int64_t _SMALL_NS, _SMALL_COUNT, _ROOM


@cython.final
cdef class Histogram:
    cdef public int64_t count
    cdef int64_t _counts[64]
    cdef int64_t _total
    cdef object _large

    @cython.locals(bucket=Py_ssize_t, rest=int64_t, exact=object)
    cpdef int observe(self, int64_t ns, int64_t count=*) except -1
