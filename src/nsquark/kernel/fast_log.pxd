from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsquark.kernel.fast cimport BatchWriter
from nsquark.kernel.fast_intake cimport Intake


cdef class Tally:
    cdef public int64_t count
    cdef int64_t total
    cdef int64_t buckets[64]
    cdef object spilled  # what did not fit into `total`

    cdef int note(self, int64_t ns, int64_t count) except -1


cdef class Extent:
    cdef public uint64_t end
    cdef public int64_t size, stride, marked_to
    cdef public list marks

    cpdef written(self, uint64_t position, Py_ssize_t count, int64_t size)


cdef class Chunk:
    cdef readonly uint64_t position, end
    cdef readonly bytes data
    cdef readonly object segment
    cdef readonly int64_t offset


cdef class LogEnd:
    cdef public BatchWriter writer
    cdef public int64_t max_bytes_per_file, max_messages, max_bytes, chunk_bytes, unsynced
    cdef public list segments, chunks
    cdef public uint64_t first, end
    cdef public int fd
    cdef public bint torn

    cdef Extent write(self, bytes data, Py_ssize_t size)


cdef class Run:
    cdef public uint64_t position, first_id
    cdef public int64_t count, due, published
    cdef public object frames


cdef class LogCursor:
    cdef public LogEnd log
    cdef public uint64_t position
    cdef public bytes data
    cdef public Py_ssize_t at
    cdef public int64_t base, remaining
    cdef public object segment

    cpdef Run take(self, int64_t want, int64_t max_bytes)


cdef class Records:
    cdef public int fd
    cdef public int64_t size
    cdef public bint unsynced
    cdef public object copy
    cdef bytearray records
    cdef bint growing  # the last F record
    cdef uint32_t number
    cdef uint64_t start, end

    cdef bint is_dirty(self)
    cdef int put_fin(self) except -1
    cpdef finish(self, uint32_t number, uint64_t start, uint64_t end)
    cpdef add(self, bytes record)
    cpdef bytes block(self)


cdef class Committer:
    cdef public LogEnd log
    cdef public Intake intake
    cdef public object clock
    cdef public Tally publish_times
    cdef public tuple heeded
    cdef public int64_t sync_every, message_count, message_bytes
    cdef public uint64_t pumped
    cdef public bint syncs_soon, exiting, active

    cdef bint is_heeded(self) except -1
