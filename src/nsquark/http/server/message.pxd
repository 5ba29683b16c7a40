cimport cython


cdef class Response:
    cdef readonly object status
    cdef readonly bytes head, body
    cdef bytes _packed, _packed_with

    cpdef bytes pack(self, bytes end_of_head)


cdef class PendingResponse:
    cdef object _connection
    cdef Request _request
    cdef Response _response

    cpdef resolve(self, Response response)
    cpdef Response attach(self, connection, Request request)


@cython.final
@cython.freelist(64)
cdef class Request:
    cdef readonly object http_connection, target, headers
    cdef public bytes body, connection_header
    cdef public bint body_begun
    cdef public object grants
    cdef public Response response
    cdef public double started
