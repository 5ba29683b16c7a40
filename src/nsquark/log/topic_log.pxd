cimport cython
from libc.stdint cimport int64_t, uint64_t

from nsquark.kernel.fast cimport BatchWriter as FastBatchWriter
from nsquark.log.files cimport LogFiles as FastLogFiles
from nsquark.log.segment cimport Segment as FastSegment
from nsquark.log.tail cimport Tail as FastTail


@cython.final
cdef class TopicLog:
    cdef public FastBatchWriter writer
    cdef public FastTail tail
    cdef public FastLogFiles files
    cdef public object directory, limits, lost
    cdef public uint64_t first, end
    cdef public int64_t unsynced
    cdef object _lease, _idle_at

    cdef _prepare_ids(self, int64_t count)

    @cython.locals(writer=FastBatchWriter, position=uint64_t, count=int64_t, data=bytes, size=int64_t,
                   segment=FastSegment, offset=int64_t)
    cpdef int64_t commit(self) except -1
