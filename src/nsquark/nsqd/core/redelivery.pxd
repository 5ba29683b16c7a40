cimport cython

from libc.stdint cimport int64_t, uint64_t


@cython.final
@cython.freelist(64)
@cython.trashcan(True)
cdef class RequeuedRange:
    cdef public uint64_t position, mark
    cdef public int64_t number, attempts
    cdef public RequeuedRange rest


cdef class RequeuedQueue:
    cdef object _entries, _by_position
    cdef Py_ssize_t _dropped
    cdef readonly int64_t count

    @cython.locals(entry=RequeuedRange)
    cpdef push(self, uint64_t position, int64_t number, int64_t attempts, uint64_t mark)

    @cython.locals(entry=RequeuedRange)
    cpdef take(self, int64_t number)

    cdef _shrink(self, RequeuedRange entry, first, last)

    @cython.locals(first=RequeuedRange)
    cdef _leave_first(self)


@cython.final
cdef class DeferredQueue:
    cdef object _by_due, _by_position
    cdef readonly int64_t count
