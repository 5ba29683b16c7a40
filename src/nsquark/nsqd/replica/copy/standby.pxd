cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.replica.changes.frames cimport Frame as FastFrame
from nsquark.nsqd.replica.changes.frames cimport FrameParser as FastFrameParser
from nsquark.nsqd.replica.copy.fetching cimport FrameStream
from nsquark.nsqd.replica.copy.warm_copy cimport WarmCopy as FastWarmCopy


cdef class Standby:
    cdef readonly object directory
    cdef readonly str problem
    cdef readonly bint connected
    cdef readonly int64_t written, synced, end
    cdef object _options, _reports, _task, _ending, _may_fetch, _known
    cdef FrameStream _connection
    cdef str _incarnation, _stream
    cdef bint _waits_for_disk, _settled
    cdef FastWarmCopy _copy
    cdef object _doubtful, _compared
    cdef int64_t _term, _settled_at
    cdef FastFrameParser _parser
    cdef readonly object _syncing
    cdef public double _sync_at

    cpdef acknowledge(self, int64_t term, int64_t written, int64_t synced)
    @cython.locals(term=int64_t, before=int64_t, now=double)
    cpdef _received(self, data)
    @cython.locals(sequence=int64_t, operations=list)
    cdef _apply(self, FastFrame frame, int64_t term)
