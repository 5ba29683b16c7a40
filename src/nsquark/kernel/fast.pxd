# What other compiled modules may do without going through Python.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef struct Gathered:
    int64_t count, remaining, published
    uint64_t first
    Py_ssize_t at


cdef object gather_run(data, Py_ssize_t start, Py_ssize_t end, int64_t remaining, int64_t want,
                       int64_t max_bytes, Gathered *run)
cdef int64_t fin_run(const uint8_t *p, Py_ssize_t size, uint64_t *first) noexcept
cdef uint32_t crc_of(const uint8_t *p, size_t size) noexcept


cdef class BatchWriter:
    # Writes into a bytes object that nobody else has seen yet; `take` cuts it to size and hands it over.
    cdef object block
    cdef uint8_t *data
    cdef size_t used, room, usual
    cdef Py_ssize_t batch
    cdef int64_t due
    cdef uint64_t batch_position
    cdef public uint64_t position, next_id
    cdef public int64_t ids_left
    cdef readonly Py_ssize_t count
    cdef readonly int64_t body_bytes

    cpdef bytes take(self)
    cpdef renumber(self, uint64_t position, uint64_t next_id)
    cdef int reserve(self, size_t more) except -1
    cdef int grow(self, size_t room) except -1
    cdef int open_batch(self, int64_t timestamp, int64_t due) except -1
    cdef int seal(self) except -1
    cdef void add(self, const uint8_t *body, uint32_t size, uint64_t timestamp) noexcept
    cdef add_run(self, data, Py_ssize_t start, Py_ssize_t count, Py_ssize_t line, int64_t timestamp, int64_t due)
    cdef Py_ssize_t take_pubs(self, const uint8_t *p, Py_ssize_t end, bytes line, int64_t max_msg_size,
                              int64_t timestamp, Py_ssize_t *taken) except -1
    cdef Py_ssize_t take_mpubs(self, const uint8_t *p, Py_ssize_t end, bytes line, int64_t max_msg_size,
                               int64_t max_body_size, int64_t timestamp, Py_ssize_t *taken) except -1
