cimport cython

from nsquark.kernel.fast cimport write_some

cdef Py_ssize_t MOST_AT_ONCE, OK_SIZE
cdef bytes OKS


@cython.final
cdef class AnswerQueue:
    cdef public list queue
    cdef public object transport
    cdef public bint ended, closed, layered, refused, settling
    cdef public int fd
    cdef public object write_now
    cdef object _write, _end

    @cython.locals(answer=PublishAnswer)
    cpdef PublishAnswer expect(self, error, Py_ssize_t count=*)
    @cython.locals(done=Py_ssize_t, size=Py_ssize_t)
    cdef bint send_now(self, PublishAnswer answer) except -1
    cdef bint can_pass(self) except -1
    @cython.locals(queue=list, ready=list, done=Py_ssize_t)
    cpdef flush(self)


@cython.final
@cython.freelist(256)
cdef class PublishAnswer:
    cdef readonly AnswerQueue answers
    cdef readonly object error
    cdef readonly Py_ssize_t count
    cdef public bytes data
    cdef public bint last

    @cython.locals(answers=AnswerQueue)
    cpdef settle(self, reason)


@cython.locals(settling=list, answer=PublishAnswer, answers=AnswerQueue)
cpdef settle_all(list receipts)
