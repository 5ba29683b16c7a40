# What other compiled modules may call without going through Python.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef struct Gathered:
    int64_t count, remaining, timestamp
    uint64_t first
    Py_ssize_t at


cdef object gather_run(data, Py_ssize_t start, Py_ssize_t end, int64_t remaining, int64_t want,
                       int64_t max_bytes, bint whatever_due, Gathered *run)
cpdef (uint64_t, int64_t) next_fins(data, Py_ssize_t start, Py_ssize_t end) except *
cpdef bytes unfinished_command(data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t max_msg_size,
                               int64_t max_body_size)
cpdef bytes command_line(data, Py_ssize_t start, Py_ssize_t end, bytes command, Py_ssize_t longest)
cpdef Py_ssize_t write_some(int fd, data, Py_ssize_t end=*) except -1


@cython.final
cdef class LargePub:
    # The body comes behind the room for the headers of a batch and of its frame, so that the block can become a
    # batch. The block is a bytes object to which the LargePub holds the only reference, or None once it is a batch.
    cdef object block
    cdef uint8_t *body
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t size, have

    cdef int resize(self, Py_ssize_t room) except -1
    cdef int received(self, Py_ssize_t count) except -1


cpdef LargePub begin_large_pub(data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t smallest,
                               int64_t max_msg_size)


@cython.final
cdef class BatchWriter:
    # The writer fills a bytes object to which it holds the only reference. `take` cuts that object to size and
    # hands it over.
    cdef object block
    cdef uint8_t *data
    cdef size_t used, room, usual
    cdef Py_ssize_t batch
    cdef int64_t due
    cdef uint64_t batch_position, ids_end
    cdef public uint64_t position, next_id
    cdef readonly Py_ssize_t count, commands
    cdef readonly int64_t body_bytes

    cpdef bytes take(self)
    cpdef renumber(self, uint64_t position, uint64_t next_id)
    cpdef use_ids(self, uint64_t first, int64_t count)
    cdef int64_t unused_ids(self) noexcept
    cdef int reserve(self, size_t more) except -1
    cdef int grow(self, size_t room) except -1
    cdef int open_batch(self, int64_t timestamp, int64_t due) except -1
    cdef int seal(self) except -1
    cdef void add(self, const uint8_t *body, uint32_t size, uint64_t timestamp) noexcept
    cdef void add_head(self, uint32_t size, uint64_t timestamp) noexcept
    cpdef add_large(self, LargePub large, int64_t timestamp)
    cdef add_run(self, data, Py_ssize_t start, Py_ssize_t count, Py_ssize_t line, int64_t timestamp, int64_t due)
    cpdef Py_ssize_t add_whole_pubs(self, data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t max_msg_size,
                                    int64_t timestamp) except -1
    cpdef Py_ssize_t add_whole_mpubs(self, data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t max_msg_size,
                                     int64_t max_body_size, int64_t timestamp) except -1


@cython.final
cdef class BatchReader:
    cdef public bytes data
    cdef public Py_ssize_t at
    cdef public int64_t remaining
    cdef public bint whatever_due
    cdef readonly int64_t count, timestamp
    cdef readonly uint64_t first_id

    cpdef gather(self, int64_t want, int64_t max_bytes)


@cython.final
cdef class BlockWriter:
    cdef bytearray block
    cdef readonly Py_ssize_t size

    cdef uint8_t *grow(self, Py_ssize_t more) except NULL
    cpdef add(self, bytes record)
    cpdef add_range(self, bytes letter, uint32_t number, uint64_t start, uint32_t count)
    cpdef bytes take(self)
    cpdef drop(self)
