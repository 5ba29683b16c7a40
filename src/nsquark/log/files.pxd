cimport cython
from libc.stdint cimport int64_t

from nsquark.log.segment cimport Segment as FastSegment


@cython.final
cdef class LogFiles:
    cdef public object directory, limits, lost, cut, store
    cdef public list segments, archived, expired, unread, deferred, records, found
    cdef public int64_t max_bytes_per_file, term, archived_size
    cdef public int fd
    cdef public bint torn
    cdef bint _closed
    cdef int64_t _full
    cdef object _unsynced, _grown

    @cython.locals(segment=FastSegment, done=int64_t)
    cpdef FastSegment write(self, bytes data, int64_t size)
