from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsquark.kernel.fast_intake cimport AnswerQueue
from nsquark.kernel.fast_log cimport Committer, LogCursor, Records, Run, Tally


cdef class Outlet


cdef class Flight:
    cdef uint64_t begin  # `end` can be 2**64
    cdef int64_t count
    cdef public uint64_t position, deadline
    cdef public int64_t attempts, delivered
    cdef public object published


cdef class Taker:
    cdef public object send
    cdef public Outlet outlet
    cdef public AnswerQueue answers
    cdef public int64_t msg_timeout_ns, ready_count, in_flight_count, message_count, finish_count, requeue_count
    cdef public int sample_rate
    cdef public bint writable
    cdef public list flights
    cdef public uint64_t next_deadline

    cdef int64_t room(self)
    cpdef add(self, Flight flight)
    cpdef put(self, frames, bint alone)


cdef class Outlet:
    cdef public Committer topic
    cdef public LogCursor cursor
    cdef public Tally delivery_times
    cdef public Records journal
    cdef public object again, skipped, latency
    cdef public list deliveries
    cdef public dict ready
    cdef public uint32_t number
    cdef public int64_t max_run_bytes, max_runs, in_flight_count
    cdef public bint paused, exiting, unreadable, bounded, listed

    cdef bint deliver_in_order(self, int64_t now, int64_t monotonic) except -1
    cpdef bint offer(self, Taker consumer) except -1
    cpdef take_off(self, Taker consumer, Run run, frames, int64_t attempts, int64_t monotonic, bint alone=*)
    cdef int64_t finish_first(self, Taker consumer, uint64_t first, int64_t count) except -1
    cpdef finished(self, uint64_t start, uint64_t end)
    cpdef landed(self, Taker consumer, int64_t number)
