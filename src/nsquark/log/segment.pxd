cimport cython
from libc.stdint cimport int64_t, uint64_t


@cython.final
cdef class Segment:
    cdef public uint64_t base, end
    cdef public int64_t start, size, stride, marked_to, openings, reader, read_from
    cdef public list marks, pieces, lost
    cdef public object path, archived, store
    cdef public double modified
    cdef public bint verified, suspected

    @cython.locals(mark=tuple)
    cpdef add(self, uint64_t position, int64_t count, int64_t size)
