cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.replica.changes.frames cimport PackedFrame as FastPackedFrame

cdef Py_ssize_t MOST_PARTS

@cython.locals(done=Py_ssize_t)
cpdef bint write_at_once(transport, int fd, list parts, Py_ssize_t size) except -1


@cython.final
cdef class FollowerStream:
    cdef object __weakref__
    cdef readonly str peer, incarnation
    cdef public int64_t written, synced
    cdef object _leader, _recorder, _transport, _buffer
    cdef Py_ssize_t _limit
    cdef int _fd
    cdef double _heard

    cpdef send(self, FastPackedFrame frame)
