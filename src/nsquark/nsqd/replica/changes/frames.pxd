cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef object _REST_OF_HEAD, _DATA, _PATH
cdef Py_ssize_t HEAD_SIZE, PATH_SIZE, DATA_SIZE
cdef int _BATCHES


@cython.final
cdef class Operation:
    cdef readonly bytes letter
    cdef readonly str path
    cdef readonly uint64_t offset
    cdef readonly object data


@cython.final
cdef class Frame:
    cdef readonly int64_t term, sequence
    cdef readonly list operations


@cython.final
cdef class PackedFrame:
    cdef readonly list parts
    cdef readonly int64_t sequence
    cdef readonly Py_ssize_t size


cpdef tuple pack_operation(bytes path, offset, data)
cdef _crc(list parts)


@cython.final
cdef class FrameParser:
    cdef object _buffer

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, length=Py_ssize_t, found=list, operations=list)
    cpdef list feed(self, data)
    cdef Py_ssize_t _missing(self) except? -1


@cython.locals(begin=Py_ssize_t, since=Py_ssize_t, size=Py_ssize_t, length=Py_ssize_t, letter=bytes, found=list,
               checked=list)
cpdef tuple operations_of(frame, Py_ssize_t at, Py_ssize_t end)


cpdef bytes pack_answer(int64_t term, int64_t written, int64_t synced)
