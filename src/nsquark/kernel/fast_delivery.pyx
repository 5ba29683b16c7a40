# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `pure_delivery`, which says what everything is for."""

from bisect import bisect_right
from operator import attrgetter

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsquark.kernel.fast import timestamps

cimport cython

from nsquark.kernel.fast cimport fin_run

cdef extern from "<unistd.h>":
    Py_ssize_t write(int fd, const void *data, size_t size) nogil

cdef enum:
    FIN = 21
    MOST_NOTED = 10000

cdef object first_of = attrgetter("first")


@cython.freelist(256)
cdef class Flight:
    def __init__(self, uint64_t first, end, uint64_t position, int64_t attempts, int64_t delivered,
                 uint64_t deadline):
        self.begin = first
        self.count = end - first
        self.position = position
        self.attempts = attempts
        self.delivered = delivered
        self.deadline = deadline
        self.published = ()

    @property
    def first(self):
        return self.begin

    @first.setter
    def first(self, uint64_t first):
        self.count -= <int64_t> (first - self.begin)
        self.begin = first

    @property
    def end(self):
        return <object> self.begin + self.count

    @end.setter
    def end(self, end):
        self.count = end - self.begin

    def piece(self, uint64_t first, end):
        cdef Flight piece = Flight(
            first, end, self.position + first - self.begin, self.attempts, self.delivered, self.deadline
        )
        piece.published = self.published
        return piece


cdef class Taker:
    def __init__(self, send, AnswerQueue answers, int64_t msg_timeout_ns, int sample_rate):
        self.send = send
        self.answers = answers
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        self.writable = True
        self.flights = []
        self.next_deadline = <uint64_t> 1 << 63

    cdef int64_t room(self):
        return self.ready_count - self.in_flight_count if self.writable and self.outlet is not None else 0

    @property
    def free(self):
        return self.room()

    cpdef add(self, Flight flight):
        cdef list flights = self.flights
        cdef Py_ssize_t count = len(flights)
        if count and flight.begin < (<Flight> flights[count - 1]).begin:
            flights.insert(bisect_right(flights, flight.begin, key=first_of), flight)
        else:
            flights.append(flight)
        if flight.deadline < self.next_deadline:
            self.next_deadline = flight.deadline

    cpdef put(self, frames, bint alone):
        cdef AnswerQueue answers = self.answers
        cdef Py_buffer view
        cdef Py_ssize_t done, size
        if alone and answers is not None and answers.fd >= 0:
            transport = answers.transport
            if not transport.get_write_buffer_size() and not transport.is_closing():
                PyObject_GetBuffer(frames, &view, PyBUF_SIMPLE)
                size = view.len
                done = write(answers.fd, view.buf, <size_t> size)
                PyBuffer_Release(&view)
                if done == size:
                    return
                if done > 0:
                    frames = memoryview(frames)[done:]
        self.send(frames)


cdef class Outlet:
    def __init__(self, Committer topic not None, uint32_t number, Tally times not None, int64_t max_run_bytes):
        self.topic = topic
        self.number = number
        self.delivery_times = times
        self.max_run_bytes = max_run_bytes
        self.ready = {}
        self.max_runs = 128

    def deliver(self, int64_t now, int64_t monotonic):
        if not self.paused and not self.exiting and self.ready and not self.deliver_in_order(now, monotonic):
            self.deliver_rest(now, monotonic)
        if self.bounded:
            self.drop_excess()

    cdef bint deliver_in_order(self, int64_t now, int64_t monotonic) except -1:
        # Whether all is done that can be; where it is not, what is done is a beginning. The same as
        # `deliver_rest`, for what the cursor finds in memory.
        cdef dict ready = self.ready
        cdef int64_t available, free, want, share, room = 0
        cdef Py_ssize_t others, round_left = 0, place, runs = 0
        cdef PyObject *key
        cdef Taker consumer, leader = None
        cdef Run run
        if self.unreadable or self.latency is not None or self.again.count or self.skipped.count:
            return False
        available = <int64_t> (self.topic.pumped - self.cursor.position)
        while available > 0 and ready:
            place = 0
            PyDict_Next(ready, &place, &key, NULL)
            consumer = <Taker?> <object> key
            if consumer.sample_rate:
                return False
            if round_left == 0:
                if runs >= self.max_runs:
                    self.topic.channel_ready(self)
                    break
                round_left = len(ready)
                if 1 < round_left <= available:
                    room = 0
                    for each in ready:
                        room += (<Taker?> each).room()
                    leader = consumer
            others = len(ready) - 1
            free = consumer.room()
            if free > 0:
                want = min(free, available)
                if others:
                    if available <= others:
                        want = 1
                    else:
                        share = max(room, free)
                        want = min(want, (available * free + share - 1) // share)
                    room -= free
                run = self.cursor.take(want, self.max_run_bytes)
                if run is None:
                    return False
                del ready[consumer]
                round_left -= 1
                runs += 1
                self.delivery_times.note(now - run.published, run.count)
                available -= run.count
                self.take_off(consumer, run, run.frames, 1, monotonic, run.count == want)
                self.offer(consumer)
            else:
                del ready[consumer]
                round_left -= 1
        if leader is not None and leader in ready:
            ready[leader] = ready.pop(leader)
        return True

    cpdef bint offer(self, Taker consumer) except -1:
        # The only way into `ready`. A consumer without an outlet has no room.
        if consumer.room() <= 0:
            return False
        self.ready[consumer] = None
        if not self.listed:
            self.topic.list_channel(self)
        return True

    cpdef take_off(self, Taker consumer, Run run, frames, int64_t attempts, int64_t monotonic, bint alone=False):
        cdef int64_t number = run.count
        cdef uint64_t deadline = <uint64_t> monotonic + <uint64_t> consumer.msg_timeout_ns  # can be 2**63 or more
        cdef Flight flight
        if consumer.outlet is not self:
            self.not_sent(run, attempts - 1)
            return
        if deadline < consumer.next_deadline:
            self.topic.wake_channel(self, deadline)
        flight = Flight.__new__(Flight)
        flight.begin = run.first_id
        flight.count = number
        flight.position = run.position
        flight.attempts = attempts
        flight.delivered = monotonic
        flight.deadline = deadline
        flight.published = timestamps(frames, run.first_id) if self.latency is not None else ()
        consumer.add(flight)
        consumer.in_flight_count += number
        consumer.message_count += number
        self.in_flight_count += number
        if self.deliveries is not None:
            if len(self.deliveries) < MOST_NOTED:
                self.deliveries.append((run.first_id, <object> run.first_id + number, consumer))
            else:
                self.deliveries = None
        consumer.put(frames, alone)

    def finish(self, Taker consumer not None, uint64_t first, end):
        cdef int64_t count = end - first, done = self.finish_first(consumer, first, count)
        return [] if done == count else self.finish_pieces(consumer, <object> first + done, end)

    def finish_read(self, Taker consumer not None, data, Py_ssize_t end):
        cdef Py_buffer view
        cdef Py_ssize_t at = 0
        cdef uint64_t first = 0
        cdef int64_t count, done
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            end = min(end, view.len)
            while True:
                count = fin_run(<const uint8_t *> view.buf + at, end - at, &first)
                done = self.finish_first(consumer, first, count)
                at += FIN * done
                if done == 0 or done < count:
                    return at
        finally:
            PyBuffer_Release(&view)

    cdef int64_t finish_first(self, Taker consumer, uint64_t first, int64_t count) except -1:
        # How many of the ids are the first that the consumer has: the usual case is all of them.
        cdef list flights = consumer.flights
        cdef Flight flight
        cdef int64_t number, done = 0
        if self.latency is not None:
            return 0
        while done < count and flights:
            flight = <Flight> flights[0]
            if flight.begin != first + <uint64_t> done:
                break
            number = min(count - done, flight.count)
            self.finished(flight.position, flight.position + <uint64_t> number)
            if number == flight.count:
                del flights[0]
            else:
                flight.begin += <uint64_t> number
                flight.count -= number
                flight.position += <uint64_t> number
            done += number
        if done:
            consumer.finish_count += done
            self.landed(consumer, done)
        return done

    cpdef finished(self, uint64_t start, uint64_t end):
        cdef Records journal = self.journal
        if journal is not None:
            if not journal.is_dirty():
                self.topic.journaled()
            journal.finish(self.number, start, end)

    cpdef landed(self, Taker consumer, int64_t number):
        self.in_flight_count -= number
        consumer.in_flight_count -= number
        if self.offer(consumer) and (self.cursor.position < self.topic.pumped or self.again.count):
            self.topic.channel_ready(self)
