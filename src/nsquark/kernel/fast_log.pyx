# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `pure_log`, which says what everything is for."""

import os
from bisect import bisect_right
from operator import attrgetter

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsquark.kernel.fast_intake import settle_all

cimport cython

from nsquark.kernel.fast cimport Gathered, crc_of, gather_run
from nsquark.kernel.fast_intake cimport Intake

cdef extern from "bigendian.h":
    void nq_put32(uint8_t *p, uint32_t v) nogil
    void nq_put64(uint8_t *p, uint64_t v) nogil

cdef extern from *:
    int __builtin_clzll(unsigned long long) nogil

cdef enum:
    BLOCK = 12
    FINISH = 17

cdef object position_of = attrgetter("position")


cdef class Tally:
    def __cinit__(self):
        self.spilled = 0

    @property
    def counts(self):
        return [self.buckets[number] for number in range(64)]

    @property
    def total_ns(self):
        return self.spilled + self.total

    def observe(self, int64_t ns, int64_t count=1):
        self.note(ns, count)

    cdef int note(self, int64_t ns, int64_t count) except -1:
        cdef uint64_t bucket
        if ns > 0:
            bucket = <uint64_t> (ns - 1) >> 14
            self.buckets[64 - __builtin_clzll(bucket) if bucket else 0] += count
            if ns < 1 << 40 and 0 < count < 1 << 20 and self.total < <int64_t> 1 << 62:
                self.total += ns * count
            else:
                self.spilled += self.total + <object> ns * count
                self.total = 0
        else:
            self.buckets[0] += count
        self.count += count
        return 0


cdef class Extent:
    def __init__(self, uint64_t end, int64_t stride):
        self.end = end
        self.stride = stride
        self.marks = []

    cpdef written(self, uint64_t position, Py_ssize_t count, int64_t size):
        cdef Py_ssize_t marks = len(self.marks)
        if self.marked_to == self.size:
            if not marks or self.size - <int64_t> (<tuple> self.marks[marks - 1])[1] >= self.stride:
                self.marks.append((position, self.size))
            self.marked_to += size
        self.size += size
        self.end = position + <uint64_t> count


@cython.freelist(64)
cdef class Chunk:
    def __init__(self, uint64_t position, uint64_t end, bytes data not None, segment, int64_t offset):
        self.position = position
        self.end = end
        self.data = data
        self.segment = segment
        self.offset = offset


cdef class LogEnd:
    def __init__(self, int64_t max_bytes_per_file, int64_t max_messages, int64_t max_bytes):
        self.max_bytes_per_file = max_bytes_per_file
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.segments = []
        self.chunks = []
        self.fd = -1

    def commit(self):
        cdef BatchWriter writer = self.writer
        cdef uint64_t position = self.end
        cdef Py_ssize_t count = writer.count, size
        cdef Extent segment = None
        cdef Chunk chunk
        cdef int64_t offset = 0
        cdef bytes data
        if not count:
            return 0
        data = writer.take()
        size = len(data)
        if self.segments:
            try:
                segment = self.write(data, size)
            except OSError:
                writer.renumber(position, writer.next_id)
                raise
            offset = segment.size
            segment.written(position, count, size)
        self.end = position + <uint64_t> count
        self.unsynced += count
        chunk = Chunk.__new__(Chunk)
        chunk.position = position
        chunk.end = self.end
        chunk.data = data
        chunk.segment = segment
        chunk.offset = offset
        self.chunks.append(chunk)
        self.chunk_bytes += size
        if segment is not None and (
            self.chunk_bytes > self.max_bytes
            or <int64_t> (self.end - (<Chunk> self.chunks[0]).position) > self.max_messages
        ):
            self.shorten()
        return count

    def shorten(self):
        cdef list chunks = self.chunks
        cdef Chunk chunk
        cdef Py_ssize_t gone = 0
        cdef int64_t messages = <int64_t> self.end - (self.max_messages - self.max_messages // 4)
        while gone < len(chunks) - 1:
            chunk = <Chunk> chunks[gone]
            if self.chunk_bytes <= self.max_bytes * 3 // 4 and <int64_t> chunk.end > messages:
                break
            self.chunk_bytes -= len(chunk.data)
            gone += 1
        del chunks[:gone]

    cdef Extent write(self, bytes data, Py_ssize_t size):
        cdef Extent segment = self.segments[len(self.segments) - 1]
        cdef Py_ssize_t done
        if self.torn or (segment.size and segment.size + size > self.max_bytes_per_file):
            self.make_room(size)
            segment = self.segments[len(self.segments) - 1]
        try:
            done = os.write(self.fd, data)
            while done < size:
                done += <Py_ssize_t> os.write(self.fd, memoryview(data)[done:])
        except OSError:
            self.undo()
            raise
        return segment

    def chunk_at(self, uint64_t position):
        cdef list chunks = self.chunks
        cdef Py_ssize_t count = len(chunks)
        cdef Chunk chunk
        if not count or position < (<Chunk> chunks[0]).position or position >= self.end:
            return None
        chunk = <Chunk> chunks[count - 1]
        if position < chunk.position:
            chunk = chunks[<Py_ssize_t> bisect_right(chunks, position, key=position_of) - 1]
        return chunk if position < chunk.end else None


@cython.freelist(16)
cdef class Run:
    def __init__(self, uint64_t position, int64_t count, uint64_t first_id, frames, int64_t due=0,
                 int64_t published=0):
        self.position = position
        self.count = count
        self.first_id = first_id
        self.frames = frames
        self.due = due
        self.published = published


cdef class LogCursor:
    def __init__(self, LogEnd log not None, uint64_t position):
        self.log = log
        self.position = position
        self.data = b""

    cpdef Run take(self, int64_t want, int64_t max_bytes):
        cdef LogEnd log = self.log
        cdef Chunk chunk
        cdef Gathered run
        cdef Run result
        if self.at >= len(self.data):
            if not log.first <= self.position < log.end:
                return None
            chunk = log.chunk_at(self.position)
            if chunk is None or chunk.position != self.position or chunk.data is self.data:
                return None
            self.data = chunk.data
            self.segment = chunk.segment
            self.base = chunk.offset
            self.at = 0
            self.remaining = 0
        frames = gather_run(self.data, self.at, len(self.data), self.remaining, want, max_bytes, &run)
        if run.count == 0:
            return None
        result = Run.__new__(Run)
        result.position = self.position
        result.count = run.count
        result.first_id = run.first
        result.frames = frames
        result.published = run.published
        self.position += <uint64_t> run.count
        self.at = run.at
        self.remaining = run.remaining
        return result


cdef class Records:
    def __init__(self):
        self.fd = -1
        self.records = bytearray(b"NQJ1\0\0\0\0\0\0\0\0")

    cdef bint is_dirty(self):
        return self.growing or PyByteArray_GET_SIZE(self.records) > BLOCK

    @property
    def dirty(self):
        return self.is_dirty()

    cpdef add(self, bytes record):
        if self.growing:
            self.put_fin()
        self.records += record

    cdef int put_fin(self) except -1:
        cdef uint64_t count
        cdef Py_ssize_t size
        cdef uint8_t *p
        while self.start < self.end:
            count = min(self.end - self.start, <uint64_t> 0xFFFFFFFF)
            size = PyByteArray_GET_SIZE(self.records)
            PyByteArray_Resize(self.records, size + FINISH)
            p = <uint8_t *> PyByteArray_AS_STRING(self.records) + size
            p[0] = b"F"
            nq_put32(p + 1, self.number)
            nq_put64(p + 5, self.start)
            nq_put32(p + 13, <uint32_t> count)
            self.start += count
        self.growing = False
        return 0

    cpdef finish(self, uint32_t number, uint64_t start, uint64_t end):
        if self.growing:
            if self.number == number and self.end == start:
                self.end = end
                return
            self.put_fin()
        self.growing = True
        self.number = number
        self.start = start
        self.end = end

    def drop(self):
        PyByteArray_Resize(self.records, BLOCK)
        self.growing = False

    cpdef bytes block(self):
        cdef Py_ssize_t size
        cdef uint8_t *p
        cdef bytes block
        if self.growing:
            self.put_fin()
        size = PyByteArray_GET_SIZE(self.records)
        p = <uint8_t *> PyByteArray_AS_STRING(self.records)
        nq_put32(p + 8, <uint32_t> (size - BLOCK))
        nq_put32(p + 4, crc_of(p + 8, <size_t> size - 8))
        block = PyBytes_FromStringAndSize(<const char *> p, size)
        PyByteArray_Resize(self.records, BLOCK)
        return block

    def flush(self):
        cdef bytes block
        cdef Py_ssize_t done
        if not self.is_dirty():
            return
        block = self.block()
        if self.fd < 0:
            return
        if self.copy is not None:
            self.copy(block)
        try:
            done = os.write(self.fd, block)
            while done < len(block):
                done += <Py_ssize_t> os.write(self.fd, memoryview(block)[done:])
        except OSError:
            self.undo()
            raise
        self.size += len(block)
        self.unsynced = True


cdef class Committer:
    def __init__(self, clock, Tally times not None, tuple heeded not None, int64_t sync_every):
        self.clock = clock
        self.publish_times = times
        self.heeded = heeded
        self.sync_every = sync_every
        self.active = True

    cdef bint is_heeded(self) except -1:
        if self.log.unsynced >= self.sync_every and not self.syncs_soon:
            return True
        for each in self.heeded:
            if len(each):
                return True
        return False

    def commit(self):
        cdef LogEnd log = self.log
        cdef Intake intake = self.intake
        cdef uint64_t first
        cdef int64_t size
        cdef list receipts
        if self.exiting or not log.writer.count:
            return
        first = log.end
        size = log.writer.body_bytes
        receipts = intake.receipts
        intake.receipts = []
        try:
            count = log.commit()
        except OSError as error:
            self.failed(error, first, receipts)
            return
        self.message_count += <int64_t> count
        self.message_bytes += size
        self.active = True
        self.publish_times.note(<int64_t> self.clock() - intake.since, count)
        if self.is_heeded():
            self.stored(first, receipts)
        else:
            settle_all(receipts)
