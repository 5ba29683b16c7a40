cimport cython
from libc.stdint cimport int64_t


cdef class Following:
    cdef readonly object directory
    cdef readonly int64_t term, written, synced
    cdef object _settings, _session
    cdef list _actions
    cdef str _me
    cdef double _heard, _moved, _try_at
    cdef int64_t _refused, _refused_in, _invited_in
    cdef bint _caught_up

    cpdef wrote(self, double now, int64_t term, int64_t first, int64_t last)
    cpdef _acknowledge(self)
