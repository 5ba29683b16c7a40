cimport cython

from libc.stdint cimport int64_t, uint64_t

from nsquark.kernel.fast cimport next_fins
from nsquark.nsqd.core.consumer cimport Consumer
from nsquark.nsqd.core.delivery cimport ChannelDelivery
from nsquark.nsqd.core.in_flight cimport Flight

cdef Py_ssize_t FIN_SIZE


cdef class Channel(ChannelDelivery):
    cdef public int64_t requeue_count, timeout_count, dead_count
    cdef public object wakes_at, due_timer, readership
    cdef object _passed_before, _holders, _searched

    cdef deliver_soon(self)
    cdef listen(self)
    cdef wake_at(self, uint64_t monotonic)
    cdef wake_when_due(self, int64_t due)
    cdef index_first(self, segment)

    @cython.locals(count=int64_t, done=int64_t)
    cpdef list finish(self, Consumer consumer, uint64_t first, end)

    @cython.locals(at=Py_ssize_t, first=uint64_t, count=int64_t, done=int64_t)
    cpdef Py_ssize_t finish_read(self, Consumer consumer, data, Py_ssize_t end) except -1

    @cython.locals(flights=list, flight=Flight, number=int64_t, done=int64_t)
    cpdef int64_t finish_front(self, Consumer consumer, uint64_t first, int64_t count) except -1

    @cython.locals(taken=Flight)
    cdef list _finish_scattered(self, Consumer consumer, first, count)

    @cython.locals(taken=Flight, number=int64_t)
    cpdef list requeue(self, Consumer consumer, first, end, delay_ns, now)

    @cython.locals(taken=Flight)
    cpdef bint touch(self, Consumer consumer, uint64_t message, max_timeout_ns, monotonic) except -1

    @cython.locals(position=uint64_t, number=int64_t, attempts=int64_t, sent=int64_t)
    cdef _give_back(self, Flight flight, mark, int64_t due)
