cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Acknowledge:
    cdef readonly int64_t term, written, synced


@cython.final
cdef class Release:
    cdef readonly int64_t term, sequence
