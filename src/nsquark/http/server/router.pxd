cimport cython


@cython.final
cdef class Route:
    cdef readonly object handler, max_body, too_big
    cdef readonly bint keeps_body, logged


@cython.final
cdef class Target:
    cdef readonly bytes method, uri
    cdef readonly Route route
    cdef readonly str path, argument
    cdef readonly object query
