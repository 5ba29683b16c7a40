cimport cython

from libc.stdint cimport int64_t, uint64_t

from nsquark.kernel.fast cimport write_some
from nsquark.nsqd.core.answers cimport AnswerQueue as FastAnswerQueue
from nsquark.nsqd.core.in_flight cimport Flight


@cython.final
cdef class Consumer:
    cdef public object connection, send, channel
    cdef public FastAnswerQueue answers
    cdef public int64_t msg_timeout_ns, ready_count, in_flight_count, message_count, finish_count, requeue_count
    cdef public int sample_rate
    cdef public bint writable
    cdef public list flights
    cdef public uint64_t next_deadline

    cpdef int64_t room(self)

    @cython.locals(answers=FastAnswerQueue, done=Py_ssize_t)
    cpdef put(self, frames, bint alone)

    @cython.locals(flights=list, last=Flight)
    cpdef add(self, Flight flight)

    @cython.locals(flights=list, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, flight=Flight)
    cdef Py_ssize_t _place(self, uint64_t message) except -2

    @cython.locals(at=Py_ssize_t, flight=Flight)
    cpdef Flight find(self, uint64_t message)

    @cython.locals(pieces=list, flights=list, last=uint64_t, flight_last=uint64_t, at=Py_ssize_t, flight=Flight,
                   number=int64_t, before=int64_t, behind=int64_t)
    cpdef list take(self, uint64_t first, int64_t count)
