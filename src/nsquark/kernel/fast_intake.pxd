from libc.stdint cimport int64_t, uint8_t

from nsquark.kernel.fast cimport BatchWriter

cdef enum:
    MOST_KEPT = 64 << 10


cdef class AnswerQueue:
    cdef public object queue, transport
    cdef public bint ended, closed
    cdef public int fd


cdef class Answer:
    cdef readonly AnswerQueue answers
    cdef readonly object error
    cdef readonly Py_ssize_t count
    cdef public bytes data
    cdef public bint last

    cdef bint sent(self) except -1


cdef class Intake:
    cdef BatchWriter writer
    cdef object published, commit
    cdef Py_ssize_t large, too_much
    cdef public list receipts
    cdef public int64_t since
    cdef public Py_ssize_t consumers
    cdef public bint open

    cpdef added(self, receipt, Py_ssize_t size, int64_t now)


cdef class Source:
    cdef AnswerQueue answers
    cdef int64_t max_msg_size, max_body_size
    cdef Intake intake
    cdef bytes line
    cdef object error
    cdef bint mpubs
    cdef public int64_t taken, heard
    cdef readonly bytes kept

    cdef Py_ssize_t take_bytes(self, const uint8_t *p, Py_ssize_t end, int64_t now) except -1
    cdef bint begins(self, const uint8_t *p, Py_ssize_t size) noexcept
