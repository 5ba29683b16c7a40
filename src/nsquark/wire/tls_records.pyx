# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encrypting and decrypting runs of TLS records by direct calls of OpenSSL.

pyOpenSSL makes, configures and owns the connection. It also has its own way to read and write, one record at
a time and with several Python objects for each. A `TlsRecords` calls the same functions of the same OpenSSL for
as many records as there are. It is given their addresses, so nothing is linked.

What is wrong is not judged here: `result` is what OpenSSL's function returned last, for pyOpenSSL to explain.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uintptr_t

ctypedef int (*read_function)(void *, void *, int) noexcept
ctypedef int (*write_function)(void *, const void *, int) noexcept
ctypedef int (*error_function)(void *, int) noexcept
ctypedef long (*memory_function)(void *, char **) noexcept

cdef enum:
    WANT_READ = 2  # SSL_ERROR_WANT_READ, the same in all versions
    MOST = 1 << 30  # bytes in one call: OpenSSL counts them in an int

FUNCTIONS = ("SSL_read", "SSL_write", "SSL_get_error", "BIO_read", "BIO_write", "BIO_get_mem_data")


cdef class TlsRecords:
    cdef object owner  # keeps what the pointers point to
    cdef void *ssl
    cdef void *incoming  # memory BIOs
    cdef void *outgoing
    cdef read_function ssl_read
    cdef write_function ssl_write
    cdef error_function ssl_get_error
    cdef read_function bio_read
    cdef write_function bio_write
    cdef memory_function bio_memory
    cdef readonly int result

    def __cinit__(self, owner, tuple functions, uintptr_t ssl, uintptr_t incoming, uintptr_t outgoing):
        cdef uintptr_t address
        if len(functions) != 6 or not all(functions) or not ssl or not incoming or not outgoing:
            raise ValueError("an address is missing")
        self.owner = owner
        self.ssl = <void *> ssl
        self.incoming = <void *> incoming
        self.outgoing = <void *> outgoing
        address = functions[0]
        self.ssl_read = <read_function> address
        address = functions[1]
        self.ssl_write = <write_function> address
        address = functions[2]
        self.ssl_get_error = <error_function> address
        address = functions[3]
        self.bio_read = <read_function> address
        address = functions[4]
        self.bio_write = <write_function> address
        address = functions[5]
        self.bio_memory = <memory_function> address
        self.result = 1

    def received(self, data):
        cdef Py_buffer view
        cdef Py_ssize_t done = 0
        cdef int count = 1
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        while done < view.len and count > 0:
            count = self.bio_write(self.incoming, <char *> view.buf + done, <int> min(view.len - done, MOST))
            done += count
        PyBuffer_Release(&view)
        if count <= 0:
            raise MemoryError("OpenSSL has no room for what was received")

    def read_into(self, room):
        # `result` is more than 0 unless there is something to explain: to want more is usual.
        cdef Py_buffer view
        cdef Py_ssize_t filled = 0
        cdef int count = 1
        PyObject_GetBuffer(room, &view, PyBUF_WRITABLE)
        while filled < view.len:
            count = self.ssl_read(self.ssl, <char *> view.buf + filled, <int> min(view.len - filled, MOST))
            if count <= 0:
                break
            filled += count
        PyBuffer_Release(&view)
        if count <= 0 and self.ssl_get_error(self.ssl, count) == WANT_READ:
            count = 1
        self.result = count
        return filled

    def write(self, data):
        # Returns whether all of it is encrypted.
        cdef Py_buffer view
        cdef Py_ssize_t done = 0
        cdef int count = 1
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        while done < view.len and count > 0:
            count = self.ssl_write(self.ssl, <char *> view.buf + done, <int> min(view.len - done, MOST))
            done += count
        PyBuffer_Release(&view)
        self.result = count
        return count > 0

    def to_send(self):
        cdef char *unused = NULL
        cdef long size = self.bio_memory(self.outgoing, &unused)
        if size <= 0:
            return b""
        data = PyBytes_FromStringAndSize(NULL, min(size, MOST))
        if self.bio_read(self.outgoing, PyBytes_AS_STRING(data), <int> len(data)) != len(data):
            raise MemoryError("OpenSSL has less to send than it says")
        return data
