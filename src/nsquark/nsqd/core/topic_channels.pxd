cimport cython
from libc.stdint cimport int64_t

from nsquark.log.topic_log cimport TopicLog as FastTopicLog
from nsquark.log.journal.records cimport JournalRecords as FastJournal
from nsquark.nsqd.stats.histogram cimport Histogram as FastHistogram
from nsquark.nsqd.core.publish cimport PendingPublishes as FastPendingPublishes
from nsquark.nsqd.core.turn cimport Turn as FastTurn


cdef class TopicChannels:
    cdef public FastTopicLog log
    cdef public FastJournal journal
    cdef public FastPendingPublishes pending
    cdef public object journaling, health, options, clock
    cdef public str name
    cdef public dict channels, holds
    cdef public set watchers, unconfirmed
    cdef public FastHistogram delivery_times
    cdef public object gate
    cdef public int64_t pumped, copied, passed_on, moves
    cdef public bint ephemeral, paused, starting, exiting, active, needs_slow_path
    cdef readonly object _services
    cdef FastTurn _turn
    cdef object _held
    cdef dict _listed, _problems
    cdef Py_ssize_t _durable, _next_number

    cdef _update_slow_path(self)
    cdef _tell_watchers(self)
    cpdef commit(self)
    @cython.locals(log=FastTopicLog, before=int64_t, end=int64_t, number=int64_t)
    cpdef pump(self)
    cdef int64_t _pass_deferred(self, int64_t end) except -1
    cdef _pass_lost(self, channel, int64_t start, int64_t end)
    cpdef journaled(self)
    cpdef list_channel(self, channel)
    cpdef channel_ready(self, channel)
