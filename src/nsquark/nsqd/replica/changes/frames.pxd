cimport cython
from libc.stdint cimport int64_t

cdef object _REST_OF_HEAD, _DATA, _PATH
cdef Py_ssize_t HEAD_SIZE


@cython.final
cdef class PackedFrame:
    cdef readonly list parts
    cdef readonly int64_t sequence
    cdef readonly Py_ssize_t size


cpdef tuple pack_operation(bytes path, offset, data)
@cython.locals(data=bytes)
cdef _crc(list parts)


@cython.final
cdef class FrameParser:
    cdef object _buffer

    cdef Py_ssize_t _missing(self) except? -1


@cython.locals(begin=Py_ssize_t, size=Py_ssize_t, length=Py_ssize_t, letter=bytes, found=list, checked=list)
cpdef tuple _operations(frame, Py_ssize_t at, Py_ssize_t end)
