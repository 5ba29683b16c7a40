cimport cython
from libc.stdint cimport int64_t, uint64_t

from nsquark.nsqd.replica.changes.frames cimport Frame as FastFrame
from nsquark.nsqd.replica.changes.frames cimport Operation as FastOperation


cdef class WarmCopy:
    cdef readonly object directory
    cdef object _diverged
    cdef dict _open
    cdef set _unsynced

    @cython.locals(operation=FastOperation, letter=bytes)
    cpdef apply(self, FastFrame frame, bint lenient)
    @cython.locals(path=str, offset=uint64_t, length=int64_t, size=uint64_t, done=int64_t, end=uint64_t, known=tuple)
    cdef _append(self, FastOperation operation, bint lenient)
