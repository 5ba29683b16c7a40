cimport cython
from libc.stdint cimport int64_t

from nsquark.kernel.fast cimport BatchWriter as FastBatchWriter
from nsquark.kernel.fast cimport LargePub as FastLargePub
from nsquark.kernel.fast cimport begin_large_pub, unfinished_command
from nsquark.nsqd.core.answers cimport AnswerQueue as FastAnswerQueue

cdef Py_ssize_t MOST_KEPT, LARGE_BODY, EXPECT_FROM, LOOK_EVERY


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
    cdef bytes _line
    cdef object _error
    cdef bint _mpubs
    cdef public int64_t taken, heard
    cdef readonly bytes kept
    cdef public FastLargePub large
    cdef public Py_ssize_t expected

    @cython.locals(pending=PendingPublishes, writer=FastBatchWriter, count=Py_ssize_t, commands=Py_ssize_t,
                   size=int64_t, stop=Py_ssize_t)
    cpdef Py_ssize_t take(self, data, Py_ssize_t start, Py_ssize_t end, int64_t now, int64_t monotonic,
                          bint direct=*) except -1
    @cython.locals(pending=PendingPublishes, writer=FastBatchWriter, large=FastLargePub, size=Py_ssize_t)
    cpdef bint take_large(self, int64_t now, int64_t monotonic) except -1
