cimport cython
from libc.stdint cimport int64_t

from nsquark.nsqd.replica.changes.frames cimport PackedFrame as FastPackedFrame
from nsquark.nsqd.replica.changes.frames cimport pack_operation


@cython.final
cdef class AppendedFile:
    cdef readonly object path
    cdef readonly str name
    cdef readonly bytes head


@cython.final
cdef class Recorder:
    cdef object __weakref__
    cdef public int64_t term, sequence
    cdef public str stream
    cdef public int64_t backlog_bytes
    cdef public set followers
    cdef public object touched, _operations
    cdef object _root, _relative, _loop, _thread, _backlog, _timer, _later, _flushed, _wake
    cdef dict _names, _appended
    cdef double _wanted_until
    cdef bint _scheduled, _awaited, _gathers, _changed

    @cython.locals(file=AppendedFile)
    cpdef appended(self, path, offset, data)
    cdef AppendedFile _find_appended(self, path)
    cdef _add(self, bytes letter, path, offset=*, data=*)
    @cython.locals(size=int64_t)
    cdef _add_operation(self, str name, tuple operation)
    cdef _changed_file(self, str name)
    cdef _schedule(self)
    cpdef schedule(self)
    @cython.locals(operations=list, operation=tuple, size=int64_t)
    cpdef flush(self)
    cdef _send(self, FastPackedFrame frame)
    cpdef flush_if_changed(self)
