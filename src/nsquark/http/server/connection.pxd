cimport cython

from nsquark.kernel.fast cimport write_some
from nsquark.http.server.message cimport Request, Response, PendingResponse
from nsquark.http.server.router cimport Target
from nsquark.http.server.reader cimport RequestReader


@cython.final
cdef class HttpConnection:
    cdef object __weakref__
    cdef object _server, _limits, _transport, _turn, _body, _waiting, _unanswered
    cdef str _peer
    cdef RequestReader _reader
    cdef int _fd
    cdef bint _running, _serial, _reading, _can_write, _closing
    cdef public double deadline
    cdef double _began
    cdef Py_ssize_t _write_left
    cdef readonly object departure

    @cython.locals(reader=RequestReader)
    cpdef data_received(self, bytes data)
    @cython.locals(request=Request, response=Response, target=Target)
    cdef _run(self)
    @cython.locals(target=Target)
    cdef Response _handle(self, Request request)
    @cython.locals(first=Response)
    cpdef answer(self, Request request, Response response)
    @cython.locals(target=Target)
    cdef _write(self, Request request, Response response)
    @cython.locals(done=Py_ssize_t)
    cdef _write_now(self, transport, bytes data)
    cdef _set_deadline(self)
    cdef _watch_writing(self)
    cdef _pause_reading(self)
    cdef _resume_reading(self)
    cdef _finish(self)
    cdef _send_continue(self)
