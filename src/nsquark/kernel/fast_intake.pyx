# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `pure_intake`, which says what everything is for."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t

cimport cython

cdef extern from "<unistd.h>":
    Py_ssize_t write(int fd, const void *data, size_t size) nogil

cdef bytes OK = b"\0\0\0\x06\0\0\0\0OK"
cdef enum:
    OK_SIZE = 10
    MANY = 512
cdef bytes OKS = OK * MANY
cdef const char *OKS_AT = PyBytes_AS_STRING(OKS)


cdef class AnswerQueue:
    def __cinit__(self, *args, **kwargs):
        self.fd = -1


@cython.freelist(256)
cdef class Answer:
    def __cinit__(self, AnswerQueue answers not None, error, Py_ssize_t count):
        self.answers = answers
        self.error = error
        self.count = count
        self.data = b""
        self.last = False

    cdef bint sent(self) except -1:
        # Whether all of it is sent and forgotten; what is sent of it in part is all the same its beginning.
        cdef AnswerQueue answers = self.answers
        cdef Py_ssize_t size = self.count * OK_SIZE, done
        if answers.fd < 0 or self.count > MANY or answers.ended or answers.closed or len(answers.queue) != 1:
            return False
        transport = answers.transport
        if transport.get_write_buffer_size() or transport.is_closing():
            return False
        done = write(answers.fd, OKS_AT, <size_t> size)
        answers.queue.clear()
        if done != size:  # full or broken: the transport finds out
            transport.write(OKS[max(done, 0):size])
        return True

    def settle(self, reason):
        if reason is not None:
            self.answers.refuse(self, reason)
        elif not self.sent():
            self.data = OK * self.count
            self.answers.flush()


def settle_all(list receipts):
    failure = None
    for receipt in receipts:
        try:
            if type(receipt) is not Answer or not (<Answer> receipt).sent():
                receipt.settle(None)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


cdef class Intake:
    def __cinit__(self, BatchWriter writer not None, published, commit, Py_ssize_t large, Py_ssize_t too_much):
        self.writer = writer
        self.published = published
        self.commit = commit
        self.large = large
        self.too_much = too_much
        self.receipts = []
        self.since = 0
        self.consumers = 0
        self.open = True

    cpdef added(self, receipt, Py_ssize_t size, int64_t now):
        cdef Py_ssize_t waiting
        self.receipts.append(receipt)
        waiting = len(self.receipts)
        if waiting == 1:
            self.since = now
        if size >= self.large and not self.consumers:
            self.commit()
        elif waiting == 1:
            self.published()
        elif waiting % 64 == 0 and <Py_ssize_t> self.writer.used > self.too_much:
            self.commit()


cdef class Source:
    def __cinit__(self, AnswerQueue answers not None, int64_t max_msg_size, int64_t max_body_size):
        self.answers = answers
        self.max_msg_size = max_msg_size
        self.max_body_size = max_body_size
        self.intake = None
        self.line = b""
        self.taken = self.heard = 0

    @property
    def following(self):
        return self.intake is not None

    def follow(self, Intake intake not None, bytes line not None, error):
        self.intake = intake
        self.line = line
        self.error = error
        self.mpubs = line.startswith(b"M")

    def forget(self):
        self.intake = None

    def take(self, data, Py_ssize_t end, int64_t now):
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.take_bytes(<const uint8_t *> view.buf, min(end, view.len), now)
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t take_bytes(self, const uint8_t *p, Py_ssize_t end, int64_t now) except -1:
        cdef Intake intake = self.intake
        cdef BatchWriter writer
        cdef Answer answer
        cdef Py_ssize_t commands, before
        cdef int64_t size
        if intake is None or not intake.open:
            return 0
        writer = intake.writer
        before, size = writer.count, writer.body_bytes
        if self.mpubs:
            commands = writer.take_mpubs(p, end, self.line, self.max_msg_size, self.max_body_size, now)
        else:
            commands = writer.take_pubs(p, end, self.line, self.max_msg_size, now)
        if commands:
            self.taken += writer.count - before
            size = writer.body_bytes - size
            answer = Answer.__new__(Answer, self.answers, self.error, commands)
            self.answers.queue.append(answer)
            intake.added(answer, size, now)
        return commands
