cimport cython
from libc.stdint cimport int64_t, uint64_t

from nsquark.log.segment cimport Segment as FastSegment


@cython.final
@cython.freelist(64)
cdef class TailChunk:
    cdef public uint64_t position, end
    cdef public bytes data
    cdef public FastSegment segment
    cdef public int64_t offset


@cython.final
cdef class Tail:
    cdef public list chunks
    cdef public uint64_t max_messages
    cdef public int64_t max_bytes, size
    cdef int64_t _kept, _kept_bytes

    @cython.locals(chunk=TailChunk, oldest=TailChunk)
    cpdef add(self, uint64_t position, uint64_t end, bytes data, FastSegment segment, int64_t offset)

    @cython.locals(chunk=TailChunk, messages=uint64_t, size=int64_t, gone=Py_ssize_t, last=Py_ssize_t)
    cpdef _shorten(self, uint64_t end)

    @cython.locals(chunk=TailChunk, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cpdef TailChunk find(self, uint64_t position)
