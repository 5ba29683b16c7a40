# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The sockets of all clients, read in one go.

The event loop watches one descriptor, that of the SocketPoll. When it is ready, `run` reads every socket that
has something. A client that goes on publishing in the way its PublishStream follows costs two system calls and
no Python; all others are handed what they sent.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from nsquark.kernel.fast cimport LargePub
from nsquark.nsqd.core.publish cimport MOST_KEPT, PublishStream
from nsquark.nsqd.protocol.lingering cimport Lingering

from nsquark.nsqd.protocol import lingering

cdef extern from "bigendian.h":
    uint32_t nq_get32(const uint8_t *p) nogil

cdef extern from "<sys/uio.h>":
    cdef struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>":
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    Py_ssize_t recv(int fd, void *data, size_t size, int flags) nogil
    Py_ssize_t recvmsg(int fd, msghdr *message, int flags) nogil
    int MSG_DONTWAIT

cdef extern from "<sys/epoll.h>":
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL
    int epoll_create1(int flags)
    int epoll_ctl(int poll, int what, int fd, epoll_event *event)
    int epoll_wait(int poll, epoll_event *events, int room, int timeout) nogil

cdef extern from "<time.h>":
    cdef struct timespec:
        int64_t tv_sec
        long tv_nsec
    int CLOCK_REALTIME, CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now) nogil

cdef extern from "<unistd.h>":
    int close(int fd)

cdef enum:
    ROOM = 256
    MOST_EXPECTED = 4194304  # bytes of a body for which there is room before it comes, for the length of a read


cdef inline int64_t clock(int which) noexcept nogil:
    cdef timespec now
    clock_gettime(which, &now)
    return now.tv_sec * 1000000000 + now.tv_nsec


cdef class Member:
    cdef object protocol
    cdef PublishStream stream


cdef class SocketPoll:
    cdef int poll
    cdef list members  # by descriptor
    cdef object shared  # the read buffer of all connections
    cdef object pinned  # a memoryview of it, so that it stays where it is
    cdef uint8_t *buffer
    cdef size_t size
    cdef epoll_event events[ROOM]
    cdef readonly Lingering lingering
    cdef int64_t longest  # ns to stay awake for one request

    def __cinit__(self, shared):
        cdef Py_buffer view
        self.poll = -1
        self.members = []
        self.lingering = Lingering()
        self.longest = lingering.LONGEST
        self.shared = shared
        self.pinned = memoryview(shared)
        PyObject_GetBuffer(self.pinned, &view, PyBUF_WRITABLE)
        self.buffer = <uint8_t *> view.buf
        self.size = <size_t> view.len
        PyBuffer_Release(&view)
        if self.size <= <size_t> MOST_KEPT:
            raise ValueError(f"a buffer of {self.size} bytes is too small: {MOST_KEPT} of a command are kept in it")
        self.poll = epoll_create1(EPOLL_CLOEXEC)
        if self.poll < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        self.close()

    def fileno(self):
        return self.poll

    def close(self):
        if self.poll >= 0:
            close(self.poll)
            self.poll = -1
            self.members = []

    def add(self, int fd, protocol, PublishStream stream not None):
        cdef epoll_event event
        cdef Member member = Member()
        if fd < 0:
            raise ValueError(f"{fd} is not a descriptor")
        member.protocol = protocol
        member.stream = stream
        event.events = EPOLLIN
        event.data.fd = fd
        if epoll_ctl(self.poll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        while len(self.members) <= fd:
            self.members.append(None)
        self.members[fd] = member

    def remove(self, int fd, protocol):
        # Not if the descriptor is another's by now: descriptors are used again.
        cdef epoll_event event
        if 0 <= fd < len(self.members) and self.members[fd] is not None:
            if (<Member> self.members[fd]).protocol is protocol:
                self.members[fd] = None
                epoll_ctl(self.poll, EPOLL_CTL_DEL, fd, &event)  # one that is closed has gone by itself

    def run(self):
        cdef int number, ready
        cdef int fd
        cdef int64_t monotonic
        if self.poll < 0:
            return
        ready = epoll_wait(self.poll, self.events, ROOM, 0)
        monotonic = clock(CLOCK_MONOTONIC)
        self.lingering.came(monotonic, ready)
        for number in range(ready):
            fd = self.events[number].data.fd
            member = self.members[fd] if fd < len(self.members) else None
            if member is None:
                continue  # gone since
            try:
                self.read(fd, <Member> member, monotonic)
            except Exception as error:
                self.remove(fd, (<Member> member).protocol)
                (<Member> member).protocol.failed(error)

    def linger(self):
        # Stays awake for a moment if that pays; returns whether a socket has something.
        cdef epoll_event event
        cdef int ready = 0
        cdef int64_t until
        if self.poll < 0 or not self.lingering.awake or not self.lingering.last:
            return False
        with nogil:
            until = clock(CLOCK_MONOTONIC) + self.longest
            while True:
                ready = epoll_wait(self.poll, &event, 1, 0)
                if ready != 0 or clock(CLOCK_MONOTONIC) >= until:
                    break
        return ready > 0

    cdef int read(self, int fd, Member member, int64_t monotonic) except -1:
        cdef PublishStream stream = member.stream
        cdef Py_buffer view
        cdef Py_ssize_t got, end, taken
        cdef int failure
        if stream.large is not None or (stream.expected and not stream.kept):
            got = self.read_large(fd, member, monotonic, &failure)
            if got > 0:
                return 0
        elif stream._pending is not None:
            end = len(stream.kept)
            memcpy(self.buffer, PyBytes_AS_STRING(stream.kept), <size_t> end)
            got = recv(fd, self.buffer + end, self.size - <size_t> end, MSG_DONTWAIT)
            failure = errno
            if got > 0:
                end += got
                # The time of this read: others of the run have published by the clock meanwhile.
                taken = stream.take(self.shared, 0, end, clock(CLOCK_REALTIME), monotonic, True)
                if taken < end:
                    member.protocol.left(taken, end)
                return 0
        else:
            PyObject_GetBuffer(member.protocol.get_buffer(-1), &view, PyBUF_WRITABLE)
            got = recv(fd, view.buf, <size_t> view.len, MSG_DONTWAIT)
            failure = errno  # before anything else is called
            PyBuffer_Release(&view)
            if got > 0:
                member.protocol.received(got)
                return 0
        if got == 0:
            self.remove(fd, member.protocol)
            member.protocol.ended()
        elif failure != EAGAIN and failure != EINTR:
            # Reading has taken the error off the socket: the transport would find an end like any other.
            self.remove(fd, member.protocol)
            member.protocol.lost(failure)
        return 0

    cdef Py_ssize_t read_large(self, int fd, Member member, int64_t monotonic, int *failure) except? -1:
        # Returns what recv has returned, and sets the failure.
        cdef PublishStream stream = member.stream
        cdef LargePub large = stream.large
        cdef Py_ssize_t got, taken
        if large is not None:
            got = recv(fd, large.body + large.have, <size_t> (large.room - large.have), MSG_DONTWAIT)
            failure[0] = errno
            if got > 0:
                large.received(got)
        else:
            got = self.read_expected(fd, stream, failure)
        if got <= 0:
            return got
        if stream.large is None:  # it is not what was expected, and lies in the shared buffer
            taken = stream.take(self.shared, 0, got, clock(CLOCK_REALTIME), monotonic, True)
            if taken < got:
                member.protocol.left(taken, got)
        elif stream.large.have == stream.large.size:
            if not stream.take_large(clock(CLOCK_REALTIME), monotonic):
                member.protocol.left(0, 0)
        return got

    cdef Py_ssize_t read_expected(self, int fd, PublishStream stream, int *failure) except? -1:
        # Reads as if a PUB with a body as large as the last one came next: the line to the shared buffer, the
        # body to where it stays. If it is that, it is the stream's, else all of it is put into the shared buffer.
        cdef bytes line = stream._line
        cdef size_t head = <size_t> len(line) + 4
        cdef LargePub large = LargePub(stream.expected, min(stream.expected, MOST_EXPECTED))
        cdef iovec parts[2]
        cdef msghdr message
        cdef Py_ssize_t got
        memset(&message, 0, sizeof(message))
        parts[0].iov_base = self.buffer
        parts[0].iov_len = head
        parts[1].iov_base = large.body
        parts[1].iov_len = min(<size_t> large.room, self.size - head)
        message.msg_iov = parts
        message.msg_iovlen = 2
        got = recvmsg(fd, &message, MSG_DONTWAIT)
        failure[0] = errno
        if got <= <Py_ssize_t> head:
            return got
        if (memcmp(self.buffer, PyBytes_AS_STRING(line), head - 4) == 0
                and nq_get32(self.buffer + head - 4) == <uint32_t> stream.expected):
            large.received(got - <Py_ssize_t> head)
            stream.large = large
        else:
            memcpy(self.buffer + head, large.body, <size_t> got - head)
        return got
