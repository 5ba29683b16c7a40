cimport cython
from libc.stdint cimport int64_t


cdef class CommitRule:
    cdef readonly str me
    cdef public int64_t revision, local
    cdef public frozenset isr
    cdef readonly frozenset awaited
    cdef readonly dict acknowledged
    cdef dict _being_added

    cpdef _update(self)
    @cython.locals(least=int64_t, sequence=int64_t)
    cpdef int64_t committed(self) except? -2
    cpdef acknowledge(self, str member, int64_t sequence)
    cpdef add(self, str member)
