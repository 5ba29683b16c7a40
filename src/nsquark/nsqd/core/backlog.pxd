cimport cython

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsquark.log.cursor cimport Cursor as FastCursor
from nsquark.log.cursor cimport Run as FastRun
from nsquark.log.journal.records cimport JournalRecords as FastJournal
from nsquark.nsqd.core.redelivery cimport DeferredQueue, RequeuedQueue
from nsquark.nsqd.core.topic_channels cimport TopicChannels as FastTopic

cdef int64_t MAX_RUN_BYTES


cdef class Backlog:
    cdef public FastTopic topic
    cdef public FastCursor cursor
    cdef public FastJournal journal
    cdef public object name, skipped, emptied
    cdef public RequeuedQueue requeued, dead_lettering
    cdef public DeferredQueue deferred
    cdef public dict consumers
    cdef public uint32_t number
    cdef public int64_t in_flight_count, moves
    cdef public bint ephemeral, bounded

    @cython.locals(position=uint64_t, fresh=int64_t)
    cpdef int64_t fresh_count(self) except? -1

    @cython.locals(fresh=int64_t)
    cpdef int64_t queued_count(self) except? -1

    @cython.locals(journal=FastJournal)
    cpdef finished(self, uint64_t start, uint64_t end)

    @cython.locals(ahead=int64_t, run=FastRun)
    cdef FastRun _next_run(self, int64_t want)

    @cython.locals(position=uint64_t, ahead=int64_t, run=FastRun)
    cdef FastRun _read_next(self, int64_t want)

    cpdef FastRun read_at(self, uint64_t position, int64_t want)
    cdef _lose_segment(self, error)

    cpdef record_requeue(self, uint64_t position, int64_t number, int64_t attempts, int64_t due)
    cpdef end_of_queue(self)
    cpdef push_deferred(self, int64_t due, uint64_t position, int64_t number, int64_t attempts)
    cdef wake_when_due(self, int64_t due)
    cpdef drop_waiting(self, uint64_t start, uint64_t end)
    cpdef forget_waiting(self)
