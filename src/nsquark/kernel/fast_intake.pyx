# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `pure_intake`, which says what everything is for."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

cimport cython

cdef extern from "<unistd.h>":
    Py_ssize_t write(int fd, const void *data, size_t size) nogil

cdef extern from "bigendian.h":
    uint32_t nq_get32(const uint8_t *p) nogil

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
        self.line = self.kept = b""
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
        kept = self.kept
        self.intake = None
        self.kept = b""
        return kept

    def take(self, data, Py_ssize_t start, Py_ssize_t end, int64_t now):
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            end = min(end, view.len)
            if start < 0 or start > end:
                raise ValueError("not in the buffer")
            return self.take_bytes(<const uint8_t *> view.buf + start, end - start, now)
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t take_bytes(self, const uint8_t *p, Py_ssize_t end, int64_t now) except -1:
        cdef Intake intake = self.intake
        cdef BatchWriter writer
        cdef Answer answer
        cdef Py_ssize_t commands, before, taken = 0
        cdef int64_t size
        self.kept = b""
        if intake is None or not intake.open:
            return 0
        writer = intake.writer
        before, size = writer.count, writer.body_bytes
        if self.mpubs:
            commands = writer.take_mpubs(p, end, self.line, self.max_msg_size, self.max_body_size, now, &taken)
        else:
            commands = writer.take_pubs(p, end, self.line, self.max_msg_size, now, &taken)
        if taken < end and self.begins(p + taken, end - taken):
            self.kept = PyBytes_FromStringAndSize(<const char *> p + taken, end - taken)
            taken = end
        if commands:
            self.taken += writer.count - before
            size = writer.body_bytes - size
            answer = Answer.__new__(Answer, self.answers, self.error, commands)
            self.answers.queue.append(answer)
            intake.added(answer, size, now)  # the last thing: it may end in anything
        return taken

    cdef bint begins(self, const uint8_t *p, Py_ssize_t size) noexcept:
        cdef Py_ssize_t length = len(self.line), at = length + 8, stop
        cdef int32_t outer, count, inner
        if size > MOST_KEPT or memcmp(p, PyBytes_AS_STRING(self.line), <size_t> min(size, length)):
            return False
        if size < length + 4:
            return True
        outer = <int32_t> nq_get32(p + length)
        if outer <= 0 or size - length - 4 >= outer:
            return False
        if not self.mpubs:
            return outer <= self.max_msg_size
        if outer > self.max_body_size:
            return False
        if size < at:
            return True
        count = <int32_t> nq_get32(p + length + 4)
        if count <= 0 or count > (self.max_body_size - 4) / 5:
            return False
        stop = length + 4 + outer
        while count > 0 and size - at >= 4:
            inner = <int32_t> nq_get32(p + at)
            if inner <= 0 or inner > self.max_msg_size or stop - at - 4 < inner:
                return False
            at += 4 + inner
            count -= 1
        return count > 0 or at >= size
