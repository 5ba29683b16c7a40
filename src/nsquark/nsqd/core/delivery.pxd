cimport cython

from libc.stdint cimport int64_t, uint64_t

from nsquark.log.cursor cimport Run as FastRun
from nsquark.nsqd.core.backlog cimport Backlog
from nsquark.nsqd.core.consumer cimport Consumer
from nsquark.nsqd.core.in_flight cimport Flight, new_flight
from nsquark.nsqd.core.redelivery cimport RequeuedQueue, RequeuedRange
from nsquark.nsqd.stats.histogram cimport Histogram as FastHistogram

cdef int64_t MOST_ROOM


cdef class ChannelDelivery(Backlog):
    cdef public FastHistogram delivery_times
    cdef public dict ready
    cdef public list deliveries
    cdef public object latency, max_attempts
    cdef public int64_t max_runs
    cdef public bint listed, paused, exiting, unreadable

    cdef deliver_soon(self)
    cdef listen(self)
    cdef wake_at(self, uint64_t monotonic)
    cdef index_first(self, segment)

    cpdef bint offer(self, Consumer consumer) except -1
    cpdef has_room(self, Consumer consumer)
    cpdef release(self, Consumer consumer, int64_t number)
    cpdef deliver(self, int64_t now, int64_t monotonic)

    @cython.locals(ready=dict, available=int64_t, before=int64_t, room=int64_t, free=int64_t, want=int64_t,
                   share=int64_t, sent=int64_t, round_left=Py_ssize_t, idle=Py_ssize_t, runs=Py_ssize_t,
                   consumer=Consumer, leader=Consumer)
    cdef _share_out(self, int64_t now, int64_t monotonic)

    @cython.locals(room=int64_t, entry=RequeuedRange, run=FastRun)
    cdef int64_t _send(self, Consumer consumer, int64_t want, int64_t now, int64_t monotonic) except -1

    @cython.locals(number=int64_t, deadline=uint64_t, flight=Flight)
    cpdef send_run(self, Consumer consumer, FastRun run, frames, int64_t attempts, uint64_t monotonic,
                   bint alone=*)

    cdef _note_delivery(self, Flight flight, Consumer consumer)
    cdef _send_sample(self, Consumer consumer, FastRun run, int64_t monotonic)

    @cython.locals(requeued=RequeuedQueue, entry=RequeuedRange, position=uint64_t, number=int64_t, attempts=int64_t,
                   gone=int64_t, run=FastRun)
    cdef int64_t _send_requeued(self, Consumer consumer, int64_t want, int64_t monotonic) except -1

    cdef _drop_excess(self)

    cdef _can_read(self)
    cpdef bint is_worn_out(self, int64_t attempts) except -1


@cython.locals(consumer=Consumer)
cdef Consumer _next_of(dict ready)


@cython.locals(consumer=Consumer, room=int64_t)
cdef int64_t _room_of(dict ready) except? -1
