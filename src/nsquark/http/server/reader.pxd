cimport cython

from nsquark.http.server.message cimport Request, Response
from nsquark.http.server.router cimport Route, Target


@cython.final
cdef class RequestReader:
    cdef object _connection, _router, _limits, _parser
    cdef readonly object requests
    cdef public bint partial, completed, continue_due, done, unread
    cdef public Py_ssize_t taken
    cdef list _url, _between
    cdef readonly list _body
    cdef dict _headers
    cdef readonly object on_message_begin, on_url, on_header, on_body
    cdef Request _request
    cdef object _length
    cdef bint _ordinary
    cdef Py_ssize_t _body_size, _body_parts
    cdef bytes _replay, _last_head
    cdef tuple _last_known
    cdef dict _last_heads

    cpdef feed(self, bytes data)
    @cython.locals(known=dict, size=Py_ssize_t, start=Py_ssize_t, body=Py_ssize_t, end=Py_ssize_t,
                   length=Py_ssize_t, head=tuple, last=bytes, request=Request, target=Target)
    cdef Py_ssize_t _take_known(self, bytes data) except -1
    cdef _remember(self, bytes data)
    cdef _parse(self, bytes data)
