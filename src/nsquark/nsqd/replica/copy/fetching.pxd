cimport cython


cdef class FrameStream:
    cdef object __weakref__
    cdef readonly object head, ended
    cdef public object end
    cdef object _buffer, _received, _transport
    cdef object _room
    cdef int _fd

    cpdef write(self, bytes data)
    cpdef get_buffer(self, sizehint)
    cpdef buffer_updated(self, Py_ssize_t nbytes)
    cpdef _take(self, data)
