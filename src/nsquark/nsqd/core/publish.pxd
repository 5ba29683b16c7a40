cimport cython
from libc.stdint cimport int64_t

from nsquark.kernel.fast cimport BatchWriter as FastBatchWriter
from nsquark.kernel.fast cimport LargePub as FastLargePub
from nsquark.kernel.fast cimport begin_large_pub, command_line, unfinished_command
from nsquark.nsqd.core.answers cimport AnswerQueue as FastAnswerQueue

cdef Py_ssize_t MOST_KEPT, LARGE_BODY, EXPECT_FROM, LOOK_EVERY, LONGEST_LINE, MOST_TURNS


@cython.final
cdef class PendingPublishes:
    cdef readonly FastBatchWriter writer
    cdef object _published, _commit
    cdef Py_ssize_t _large, _too_much
    cdef public list receipts
    cdef public int64_t since
    cdef public Py_ssize_t consumers
    cdef public bint open

    @cython.locals(receipts=list, waiting=Py_ssize_t)
    cpdef added(self, receipt, Py_ssize_t size, int64_t now)
    cpdef added_large(self, receipt, int64_t now)
    cpdef store(self)
    @cython.locals(receipts=list)
    cpdef list take_receipts(self)


@cython.final
cdef class PublishStream:
    cdef FastAnswerQueue _answers
    cdef int64_t _max_msg_size, _max_body_size
    cdef PendingPublishes _pending
    cdef dict _counts, _topics
    cdef str _name
    cdef bytes _line, _command
    cdef object _error
    cdef bint _mpubs
    cdef int64_t _taken
    cdef public int64_t heard
    cdef readonly bytes kept
    cdef public FastLargePub large
    cdef public Py_ssize_t expected

    cpdef count_taken(self)

    @cython.locals(topics=dict, line=bytes, name=str, pending=PendingPublishes)
    cdef PendingPublishes _turn_to_next(self, data, Py_ssize_t start, Py_ssize_t end)

    @cython.locals(pending=PendingPublishes, following=PendingPublishes, writer=FastBatchWriter, count=Py_ssize_t,
                   commands=Py_ssize_t, size=int64_t, stop=Py_ssize_t, turn=Py_ssize_t)
    cpdef Py_ssize_t take(self, data, Py_ssize_t start, Py_ssize_t end, int64_t now, int64_t monotonic,
                          bint direct=*) except -1
    @cython.locals(pending=PendingPublishes, writer=FastBatchWriter, large=FastLargePub, size=Py_ssize_t)
    cpdef bint take_large(self, int64_t now, int64_t monotonic) except -1
