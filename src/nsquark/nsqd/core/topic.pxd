cimport cython
from libc.stdint cimport int64_t

from nsquark.kernel.fast cimport BatchWriter as FastBatchWriter
from nsquark.log.topic_log cimport TopicLog as FastTopicLog
from nsquark.nsqd.stats.histogram cimport Histogram as FastHistogram
from nsquark.nsqd.core.answers cimport settle_all
from nsquark.nsqd.core.publish cimport PendingPublishes as FastPendingPublishes
from nsquark.nsqd.core.topic_channels cimport TopicChannels


cdef class Topic(TopicChannels):
    cdef public FastHistogram publish_times
    cdef public object trimming, epoch, retention, origin
    cdef object _limits
    cdef public list unsynced_receipts
    cdef public int64_t sync_every, message_count, message_bytes
    cdef public bint keeps_dead_letters, syncs_soon

    cdef _hold(self, deferred)
    @cython.locals(log=FastTopicLog, pending=FastPendingPublishes, writer=FastBatchWriter, first=int64_t, size=int64_t,
                   receipts=list, count=int64_t, now=int64_t)
    cpdef commit(self)
    cdef _show(self)
    cdef _wait_for_copies(self, list receipts)
    cdef _stored(self, int64_t first, list receipts)
    cdef _not_stored(self, error, int64_t first, list receipts)
