cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsquark.kernel.fast cimport BlockWriter as FastBlockWriter

cdef uint64_t _MAX_COUNT


cdef class JournalRecords:
    cdef public bint dirty, incomplete, unsynced, resting
    cdef public int fd
    cdef public int64_t size
    cdef public object copy
    cdef FastBlockWriter _block
    cdef bint _gathers, _growing
    cdef uint32_t _number
    cdef uint64_t _start, _end

    cpdef finish(self, uint32_t number, uint64_t start, uint64_t end)

    @cython.locals(count=uint64_t)
    cdef _add_range(self)
    cpdef add(self, bytes record)
    cpdef bytes block(self)
    cpdef drop(self)

    @cython.locals(block=bytes, size=int64_t, done=int64_t)
    cpdef flush(self)
