cimport cython

from nsquark.nsqd.core.answers cimport settle_all


@cython.final
cdef class Turn:
    cdef readonly object clock, monotonic
    cdef public object send_copies
    cdef object _schedule
    cdef readonly bint scheduled
    cdef bint _queued
    cdef dict _topics, _journals
    cdef readonly dict _channels, _pumps
    cdef list _stored
    cdef readonly object _left

    cpdef published(self, topic)
    cpdef ready(self, channel)
    cpdef pumps(self, topic)
    cpdef stored(self, list receipts)
    cpdef journaled(self, topic)
    cpdef copies_wait(self)
    cdef _wake(self)
    cpdef hold(self)

    @cython.locals(topics=dict, pumps=dict, channels=dict, stored=list, journals=dict)
    cpdef run(self)
    cdef _take_turns(self, dict channels, now, monotonic)
