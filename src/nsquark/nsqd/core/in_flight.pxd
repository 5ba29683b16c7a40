cimport cython

from libc.stdint cimport int64_t, uint64_t


@cython.final
@cython.freelist(256)
cdef class Flight:
    cdef public uint64_t first, position, deadline
    cdef public int64_t count, attempts, delivered
    cdef public object published

    @cython.locals(first=uint64_t, position=uint64_t, piece=Flight)
    cdef Flight piece(self, int64_t skip, int64_t count)
    cdef void drop_front(self, int64_t count) noexcept


@cython.locals(flight=Flight)
cpdef Flight new_flight(uint64_t first, int64_t count, uint64_t position, int64_t attempts, int64_t delivered,
                        uint64_t deadline)
