cimport cython
from libc.stdint cimport int64_t, uint64_t

from nsquark.kernel.fast cimport BatchReader as FastBatchReader
from nsquark.log.segment cimport Segment as FastSegment
from nsquark.log.tail cimport TailChunk as FastTailChunk
from nsquark.log.topic_log cimport TopicLog as FastTopicLog


@cython.final
@cython.freelist(16)
cdef class Run:
    cdef public uint64_t position, first_id
    cdef public int64_t count, due, published
    cdef public object frames


@cython.final
cdef class Cursor:
    cdef public FastTopicLog log
    cdef public uint64_t position
    cdef FastBatchReader _reader
    cdef FastSegment _segment
    cdef int64_t _base, _read_size
    cdef object _stood_at, _piece
    cdef Run _passed

    cdef _set_data(self, bytes data, int64_t base)

    @cython.locals(reader=FastBatchReader, log=FastTopicLog, chunk=FastTailChunk, run=Run)
    cpdef Run take(self, int64_t want, int64_t max_bytes)
