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
cdef class DeferredBlock:
    cdef public object dues, positions, numbers, attempts

    cdef insert(self, Py_ssize_t at, due, position, number, attempts)
    cpdef entry(self, Py_ssize_t at)
    cdef remove(self, Py_ssize_t first, Py_ssize_t last)
    cdef DeferredBlock split(self)


@cython.final
cdef class DeferredQueue:
    cdef list _blocks, _starts, _keys
    cdef Py_ssize_t _entries
    cdef readonly int64_t count

    @cython.locals(block=DeferredBlock, index=Py_ssize_t, other=DeferredBlock)
    cpdef push(self, due, position, number, attempts)

    @cython.locals(block=DeferredBlock, index=Py_ssize_t, at=Py_ssize_t)
    cpdef pop(self)

    @cython.locals(block=DeferredBlock, index=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t)
    cpdef drop(self, start, end)

    cdef Py_ssize_t _block_of(self, position)

    @cython.locals(block=DeferredBlock, at=Py_ssize_t)
    cdef _find(self, key)

    @cython.locals(block=DeferredBlock, index=Py_ssize_t, at=Py_ssize_t)
    cdef _cut(self, position)

    cdef _forget_stale(self)
