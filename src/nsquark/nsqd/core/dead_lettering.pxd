from nsquark.nsqd.core.redelivery cimport RequeuedQueue


cdef class DeadLettering(RequeuedQueue):
    cdef object _channel
