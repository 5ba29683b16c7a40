# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled kernel. The docstrings of `pure` say what each function does.

A function holds the buffer of its caller for the length of the call (`View`). Before it touches a byte, it
compares with `end`, which is at most the length of the buffer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **bytes, Py_ssize_t size) except -1

cdef extern from "<unistd.h>":
    Py_ssize_t write(int fd, const void *data, size_t size) nogil

cdef extern from "bigendian.h":
    uint32_t nq_get32(const uint8_t *p) nogil
    uint64_t nq_get64(const uint8_t *p) nogil
    void nq_put32(uint8_t *p, uint32_t v) nogil
    void nq_put64(uint8_t *p, uint64_t v) nogil

cdef extern from "<unistd.h>":
    Py_ssize_t write(int fd, const void *data, size_t size) nogil

cdef extern from "crc32c.h":
    uint32_t crc32c_of(const uint8_t *p, size_t n) nogil

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Frames are walked one by one, and the walk waits for memory. Prefetch the eighth frame from here, as if
       all had the same size. A prefetch of an invalid address does no harm. */
    static inline void nq_prefetch(const uint8_t *p) { __builtin_prefetch(p); }
    static inline void nq_view_none(Py_buffer *view) { view->obj = NULL; }  /* nothing to release */
    #ifdef __GLIBC__
    #include <malloc.h>
    static inline int nq_keep_freed(int largest, int most) {
        return mallopt(M_MMAP_THRESHOLD, largest) && mallopt(M_TRIM_THRESHOLD, most);
    }
    #else
    static inline int nq_keep_freed(int largest, int most) { (void) largest; (void) most; return 0; }
    #endif
    static uint8_t nq_digit[256];   /* the value of a hex digit, 0xFF for anything else */
    static char nq_pair[512];       /* the two hex digits of each byte */
    static void nq_init(void) {
        static const char digits[] = "0123456789abcdef";
        memset(nq_digit, 0xFF, sizeof nq_digit);
        for (int i = 0; i < 16; i++) nq_digit[(uint8_t)digits[i]] = i;
        for (int i = 0; i < 256; i++) { nq_pair[2 * i] = digits[i >> 4]; nq_pair[2 * i + 1] = digits[i & 15]; }
    }
    static inline int nq_parse_id(const uint8_t *p, uint64_t *id) {
        uint64_t v = 0;
        uint8_t bad = 0;
        for (int i = 0; i < 16; i++) { uint8_t d = nq_digit[p[i]]; bad |= d; v = v << 4 | (d & 15); }
        *id = v;
        return bad < 16;
    }
    static inline void nq_put_id(uint8_t *p, uint64_t id) {
        for (int i = 0; i < 8; i++) memcpy(p + 2 * i, nq_pair + 2 * (uint8_t)(id >> (56 - 8 * i)), 2);
    }
    /* The sixteen digits of an id as two words, which compare with the digits in a command. */
    static inline void nq_id_words(uint64_t id, uint64_t *high, uint64_t *low) {
        uint8_t digits[16];
        nq_put_id(digits, id);
        memcpy(high, digits, 8);
        memcpy(low, digits + 8, 8);
        *high = __builtin_bswap64(*high);
        *low = __builtin_bswap64(*low);
    }
    """
    int nq_keep_freed(int largest, int most)
    void nq_prefetch(const uint8_t *p) nogil
    void nq_view_none(Py_buffer *view)
    void nq_init()
    int nq_parse_id(const uint8_t *p, uint64_t *id) nogil
    void nq_put_id(uint8_t *p, uint64_t id) nogil
    void nq_id_words(uint64_t id, uint64_t *high, uint64_t *low) nogil

nq_init()

cdef enum:
    HEADER = 48
    FRAME = 34
    MAGIC = 0x4E514231  # NQB1; more than any frame's size field, as a body has less than 1 GiB
    SLICE_FROM = 4096
    COMPLETE = 0
    SHORT = 1
    BAD_COUNT = 2
    BAD_SIZE = 3
    TOO_BIG = 4
    BODY_TOO_BIG = 5
    IN_COUNT = 0
    IN_SIZE = 1
    IN_BODY = 2
    MAX_BODY = 0x40000000
    FIRST_ROOM = 4096


cdef struct View:
    Py_buffer buffer
    const uint8_t *p
    Py_ssize_t end


cdef int hold(View *view, object data, Py_ssize_t start, Py_ssize_t end) except -1:
    if type(data) is bytes:  # stays as it is, and where it is, as long as the caller has it
        nq_view_none(&view.buffer)
        view.buffer.buf = PyBytes_AS_STRING(data)
        view.buffer.len = PyBytes_GET_SIZE(data)
    else:
        PyObject_GetBuffer(data, &view.buffer, PyBUF_SIMPLE)
    view.p = <const uint8_t *> view.buffer.buf
    view.end = end if end < view.buffer.len else view.buffer.len
    if start < 0:
        PyBuffer_Release(&view.buffer)
        raise ValueError(f"negative offset {start}")
    return 0


def keep_freed_memory(int largest, int most):
    return bool(nq_keep_freed(largest, most))


def crc32c(data, Py_ssize_t start, Py_ssize_t end):
    cdef View view
    cdef uint32_t crc
    hold(&view, data, start, end)
    crc = crc32c_of(view.p + start, <size_t> (view.end - start)) if view.end > start else 0
    PyBuffer_Release(&view.buffer)
    return crc


def scan_fins(data, Py_ssize_t start, Py_ssize_t end):
    cdef View view
    cdef const uint8_t *p
    cdef uint64_t number = 0, first = 0, last = 0
    cdef bint some = False
    cdef list ranges = []
    hold(&view, data, start, end)
    try:
        while view.end - start >= 21:
            p = view.p + start
            if memcmp(p, b"FIN ", 4) or p[20] != 10 or not nq_parse_id(p + 4, &number):
                break
            if not some:
                some = True
                first = number
            elif number != last or last == 0:
                ranges.append((first, <object> first + (last - first)))
                first = number
            last = number + 1
            start += 21
        if some:
            ranges.append((first, <object> first + (last - first)))
    finally:
        PyBuffer_Release(&view.buffer)
    return start, ranges


cpdef (uint64_t, int64_t) next_fins(data, Py_ssize_t start, Py_ssize_t end) except *:
    cdef View view
    cdef const uint8_t *p
    cdef uint64_t first = 0, number = 0, high = 0, low = 0
    cdef int64_t count = 0
    hold(&view, data, start, end)
    p = view.p + start
    if view.end - start >= 21 and not memcmp(p, b"FIN ", 4) and p[20] == 10 and nq_parse_id(p + 4, &number):
        # The ids that follow are not parsed, but compared with the digits that the next one must have. Those
        # change in the last place only, fifteen times of sixteen. No id follows on the last one.
        first = number
        nq_id_words(number, &high, &low)
        while True:
            count += 1
            start += 21
            number += 1
            if view.end - start < 21 or number == 0:
                break
            low += 1
            if low & 0xFF == 0x3A:  # behind 9
                low += 0x27  # comes a
            elif low & 0xFF == 0x67:  # behind f
                nq_id_words(number, &high, &low)
            p = view.p + start
            if memcmp(p, b"FIN ", 4) or p[20] != 10 or nq_get64(p + 4) != high or nq_get64(p + 12) != low:
                break
    PyBuffer_Release(&view.buffer)
    return first, count


def scan_reqs(data, Py_ssize_t start, Py_ssize_t end):
    cdef View view
    cdef const uint8_t *p
    cdef const uint8_t *digits
    cdef uint64_t number = 0, first = 0, last = 0
    cdef Py_ssize_t length = 0
    cdef bint some = False
    cdef list ranges = []
    cdef bytes delay = b""
    hold(&view, data, start, end)
    try:
        digits = view.p + start + 21
        while view.end - start > 21 + length and length < 10 and 48 <= digits[length] <= 57:
            length += 1
        while length and view.end - start >= 22 + length:
            p = view.p + start
            if memcmp(p, b"REQ ", 4) or p[20] != 32 or p[21 + length] != 10 or not nq_parse_id(p + 4, &number):
                break
            if not some:
                some = True
                first = number
                delay = digits[:length]
            elif memcmp(p + 21, digits, <size_t> length):
                break
            elif number != last or last == 0:
                ranges.append((first, <object> first + (last - first)))
                first = number
            last = number + 1
            start += 22 + length
        if some:
            ranges.append((first, <object> first + (last - first)))
    finally:
        PyBuffer_Release(&view.buffer)
    return start, ranges, delay


def scan_pubs(data, Py_ssize_t start, Py_ssize_t end, int64_t max_size):
    cdef View view
    cdef const uint8_t *p
    cdef const uint8_t *line
    cdef const void *found
    cdef Py_ssize_t length = 0, count = 0
    cdef int32_t size
    hold(&view, data, start, end)
    try:
        if view.end - start < 4:
            return start, 0, 0
        line = view.p + start
        found = memchr(line, 10, <size_t> min(view.end - start, 80))
        if found == NULL or memcmp(line, b"PUB ", 4):
            return start, 0, 0
        length = <const uint8_t *> found - line + 1
        while view.end - start >= length + 4:
            p = view.p + start
            if count and memcmp(p, line, <size_t> length):
                break
            size = <int32_t> nq_get32(p + length)
            if size <= 0 or size > max_size or view.end - start - length - 4 < size:
                break
            start += length + 4 + size
            count += 1
    finally:
        PyBuffer_Release(&view.buffer)
    return start, count, length


def scan_mpub(data, Py_ssize_t start, Py_ssize_t end, int64_t max_msg_size, int64_t max_body_size,
              int64_t index, Py_ssize_t offset):
    cdef View view
    cdef int32_t count, size
    cdef Py_ssize_t at
    hold(&view, data, start, end)
    try:
        if view.end - start < 4:
            return SHORT, start, 0, IN_COUNT
        count = <int32_t> nq_get32(view.p + start)
        if count <= 0 or count > (max_body_size - 4) // 5:
            return BAD_COUNT, start, 0, count
        at = start + (offset if offset else 4)
        while index < count:
            if view.end - at < 4:
                return SHORT, at, index, IN_SIZE
            size = <int32_t> nq_get32(view.p + at)
            if size <= 0:
                return BAD_SIZE, at, index, size
            if size > max_msg_size:
                return TOO_BIG, at, index, size
            if at + 4 + size - start > max_body_size:
                return BODY_TOO_BIG, at, index, at + 4 + size - start
            if view.end - at - 4 < size:
                return SHORT, at, index, IN_BODY
            at += 4 + size
            index += 1
    finally:
        PyBuffer_Release(&view.buffer)
    return COMPLETE, at, count, 0


cpdef bytes unfinished_command(data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t max_msg_size,
                               int64_t max_body_size):
    cdef View view
    cdef Py_ssize_t length = len(line)
    hold(&view, data, start, end)
    try:
        if view.end > start and begins(view.p + start, view.end - start, PyBytes_AS_STRING(line), length,
                                       max_msg_size, max_body_size):
            return PyBytes_FromStringAndSize(<const char *> view.p + start, view.end - start)
    finally:
        PyBuffer_Release(&view.buffer)
    return b""


cpdef bytes command_line(data, Py_ssize_t start, Py_ssize_t end, bytes command, Py_ssize_t longest):
    cdef View view
    cdef const uint8_t *p
    cdef const uint8_t *feed = NULL
    cdef Py_ssize_t length = len(command), size
    hold(&view, data, start, end)
    try:
        p, size = view.p + start, view.end - start
        if longest > 0 and size >= length and not memcmp(p, PyBytes_AS_STRING(command), <size_t> length):
            feed = <const uint8_t *> memchr(p, 10, <size_t> min(size, longest))
        if feed == NULL:
            return b""
        return PyBytes_FromStringAndSize(<const char *> p, feed + 1 - p)
    finally:
        PyBuffer_Release(&view.buffer)


cdef bint begins(const uint8_t *p, Py_ssize_t size, const char *first, Py_ssize_t length, int64_t max_msg_size,
                 int64_t max_body_size) noexcept:
    cdef Py_ssize_t at = length + 8, stop
    cdef int32_t outer, count, inner
    if memcmp(p, first, <size_t> min(size, length)):
        return False
    if size < length + 4:
        return True
    outer = <int32_t> nq_get32(p + length)
    if outer <= 0 or size - length - 4 >= outer:
        return False
    if length == 0 or first[0] != b"M":
        return outer <= max_msg_size
    if outer > max_body_size:
        return False
    if size < at:
        return True
    count = <int32_t> nq_get32(p + length + 4)
    if count <= 0 or count > (max_body_size - 4) // 5:
        return False
    stop = length + 4 + outer
    while count > 0 and size - at >= 4:
        inner = <int32_t> nq_get32(p + at)
        if inner <= 0 or inner > max_msg_size or stop - at - 4 < inner:
            return False
        at += 4 + inner
        count -= 1
    return count > 0 or at > size


cpdef Py_ssize_t write_some(int fd, data, Py_ssize_t end=0x7FFFFFFFFFFFFFFF) except -1:
    cdef View view
    cdef Py_ssize_t done
    hold(&view, data, 0, end)
    done = write(fd, view.p, <size_t> max(view.end, 0))
    PyBuffer_Release(&view.buffer)
    return done if done > 0 else 0


cdef class LargePub:
    def __cinit__(self, Py_ssize_t size, Py_ssize_t room):
        if size <= 0 or size > MAX_BODY:
            raise ValueError(f"a body of {size} bytes")
        self.size = size
        self.have = 0
        self.resize(min(max(room, 1), size))

    @property
    def missing(self):
        return self.size - self.have

    cdef int resize(self, Py_ssize_t room) except -1:
        # Not with _PyBytes_Resize, which frees the old block when there is no memory for the new one.
        cdef uint8_t *body
        block = PyBytes_FromStringAndSize(NULL, HEADER + FRAME + room)
        body = <uint8_t *> PyBytes_AS_STRING(block) + HEADER + FRAME
        if self.have:
            memcpy(body, self.body, <size_t> self.have)
        self.block = block
        self.body = body
        self.room = room
        return 0

    cdef int received(self, Py_ssize_t count) except -1:
        # `count` more bytes lie behind those that were there. The room goes by what has come, not by the size.
        self.have += count
        if self.have == self.size:
            return 0
        if self.have == self.room or self.room > max(4 * self.have, FIRST_ROOM):
            self.resize(min(self.size, max(4 * self.have, FIRST_ROOM)))
        return 0

    def put(self, data):
        cdef View view
        cdef Py_ssize_t count, done = 0
        hold(&view, data, 0, view_all())
        try:
            if self.block is None:
                raise ValueError("the body is a batch")
            count = min(view.end, self.size - self.have)
            if self.room - self.have < count:
                self.resize(min(self.size, max(4 * self.have, self.have + count)))
            memcpy(self.body + self.have, view.p, <size_t> count)
            self.received(count)
        finally:
            PyBuffer_Release(&view.buffer)
        return count

    def command(self, bytes line):
        cdef uint8_t *p
        if self.block is None:
            raise ValueError("the body is a batch")
        result = PyBytes_FromStringAndSize(NULL, len(line) + 4 + self.have)
        p = <uint8_t *> PyBytes_AS_STRING(result)
        memcpy(p, PyBytes_AS_STRING(line), <size_t> len(line))
        nq_put32(p + len(line), <uint32_t> self.size)
        memcpy(p + len(line) + 4, self.body, <size_t> self.have)
        return result


cpdef LargePub begin_large_pub(data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t smallest,
                               int64_t max_msg_size):
    cdef View view
    cdef LargePub large = None
    cdef Py_ssize_t length = len(line), have
    cdef int32_t size
    hold(&view, data, start, end)
    try:
        have = view.end - start - length - 4
        if have >= 0 and not memcmp(view.p + start, PyBytes_AS_STRING(line), <size_t> length):
            size = <int32_t> nq_get32(view.p + start + length)
            if size > have and size >= smallest and 0 < size <= max_msg_size and size <= MAX_BODY:
                large = LargePub(size, max(4 * have, FIRST_ROOM))
                memcpy(large.body, view.p + start + length + 4, <size_t> have)
                large.have = have
    finally:
        PyBuffer_Release(&view.buffer)
    return large


cdef class BatchWriter:
    def __cinit__(self, uint64_t position, uint64_t next_id):
        self.block = None
        self.data = NULL
        self.used = self.room = self.usual = 0
        self.batch = -1
        self.position = position
        self.next_id = next_id
        self.ids_end = next_id
        self.count = 0
        self.commands = 0
        self.body_bytes = 0

    @property
    def size(self):
        return self.used

    @property
    def ids_left(self):
        return self.unused_ids()

    cdef int64_t unused_ids(self) noexcept:
        # modulo 2^64, as the last id is 2^64 - 1
        return <int64_t> (self.ids_end - self.next_id)

    cdef int reserve(self, size_t more) except -1:
        cdef size_t room
        if self.used + more <= self.room:
            return 0
        room = self.used + self.used // 2 + more
        if room < self.usual:
            room = self.usual
        self.grow(room)
        return 0

    cdef int grow(self, size_t room) except -1:
        # Not with _PyBytes_Resize, which frees the old block when there is no memory for the new one.
        block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> room)
        if self.used:
            memcpy(PyBytes_AS_STRING(block), self.data, self.used)
        self.block = block
        self.data = <uint8_t *> PyBytes_AS_STRING(block)
        self.room = room
        return 0

    cdef int open_batch(self, int64_t timestamp, int64_t due) except -1:
        cdef uint8_t *p
        if self.batch >= 0 and self.due != due:
            self.seal()
        if self.batch < 0:
            self.reserve(HEADER)
            p = self.data + self.used
            nq_put32(p, MAGIC)
            nq_put64(p + 16, self.position)
            nq_put64(p + 24, self.next_id)
            nq_put64(p + 32, <uint64_t> timestamp)
            nq_put64(p + 40, <uint64_t> due)
            self.batch = <Py_ssize_t> self.used
            self.batch_position = self.position
            self.due = due
            self.used += HEADER
        return 0

    cdef int seal(self) except -1:
        cdef uint8_t *p
        cdef size_t length
        if self.batch < 0:
            return 0
        p = self.data + self.batch
        length = self.used - <size_t> self.batch
        if length > 0xFFFFFFFF:
            raise OverflowError("a batch of 4 GiB or more")
        nq_put32(p + 8, <uint32_t> length)
        nq_put32(p + 12, <uint32_t> (self.position - self.batch_position))
        nq_put32(p + 4, crc32c_of(p + 8, length - 8))
        self.batch = -1
        return 0

    cdef void add(self, const uint8_t *body, uint32_t size, uint64_t timestamp) noexcept:
        # the caller has reserved FRAME + size bytes
        memcpy(self.data + self.used + FRAME, body, size)
        self.add_head(size, timestamp)

    cdef void add_head(self, uint32_t size, uint64_t timestamp) noexcept:
        # the body lies where it belongs
        cdef uint8_t *p = self.data + self.used
        nq_put32(p, size + 30)
        nq_put32(p + 4, 2)
        nq_put64(p + 8, timestamp)
        p[16] = 0
        p[17] = 1
        nq_put_id(p + 18, self.next_id)
        self.used += FRAME + size
        self.position += 1
        self.next_id += 1
        self.count += 1
        self.body_bytes += size

    cpdef renumber(self, uint64_t position, uint64_t next_id):
        self.seal()
        self.position = position
        self.next_id = next_id

    cpdef use_ids(self, uint64_t first, int64_t count):
        self.renumber(self.position, first)
        self.ids_end = first + <uint64_t> count

    def add_pubs(self, data, Py_ssize_t start, Py_ssize_t count, Py_ssize_t line, int64_t timestamp):
        return self.add_run(data, start, count, line, timestamp, 0)

    cpdef Py_ssize_t add_whole_pubs(self, data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t max_msg_size,
                                    int64_t timestamp) except -1:
        cdef View view
        cdef const uint8_t *p
        cdef const uint8_t *first
        cdef Py_ssize_t length = len(line), stop = start, count = 0
        cdef int32_t size
        hold(&view, data, start, end)
        p, end = view.p, view.end
        try:
            first = <const uint8_t *> PyBytes_AS_STRING(line)
            while end - stop >= length + 4 and not memcmp(p + stop, first, <size_t> length):
                size = <int32_t> nq_get32(p + stop + length)
                if size <= 0 or size > max_msg_size or end - stop - length - 4 < size:
                    break
                stop += length + 4 + size
                count += 1
            if count == 0 or count > self.unused_ids():
                return start
            self.open_batch(timestamp, 0)
            self.reserve(<size_t> (stop - start - count * (length + 4) + count * FRAME))
            start += length
            while start < stop:
                size = <int32_t> nq_get32(p + start)
                self.add(p + start + 4, <uint32_t> size, <uint64_t> timestamp)
                start += 4 + size + length
        finally:
            PyBuffer_Release(&view.buffer)
        self.commands += count
        return stop

    cpdef Py_ssize_t add_whole_mpubs(self, data, Py_ssize_t start, Py_ssize_t end, bytes line, int64_t max_msg_size,
                                     int64_t max_body_size, int64_t timestamp) except -1:
        cdef View view
        cdef const uint8_t *p
        cdef const uint8_t *first
        cdef Py_ssize_t length = len(line), at, stop = start, commands = 0, total = 0, all_of_it
        cdef int32_t size, count, number
        hold(&view, data, start, end)
        p, end = view.p, view.end
        try:
            first = <const uint8_t *> PyBytes_AS_STRING(line)
            while end - stop >= length + 8 and not memcmp(p + stop, first, <size_t> length):
                at = stop + length
                size = <int32_t> nq_get32(p + at)
                count = number = <int32_t> nq_get32(p + at + 4)
                if size <= 0 or size > max_body_size or end - at - 4 < size or count <= 0:
                    break
                all_of_it = at + 4 + size
                at += 8
                while count > 0 and all_of_it - at >= 4:
                    size = <int32_t> nq_get32(p + at)
                    if size <= 0 or size > max_msg_size or all_of_it - at - 4 < size:
                        break
                    at += 4 + size
                    count -= 1
                if count or at != all_of_it:
                    break
                stop = all_of_it
                total += number
                commands += 1
            if total == 0 or total > self.unused_ids():
                return start
            self.open_batch(timestamp, 0)
            self.reserve(<size_t> (stop - start + total * FRAME))
            at = start
            while at < stop:
                at += length + 8
                count = <int32_t> nq_get32(p + at - 4)
                while count > 0:
                    size = <int32_t> nq_get32(p + at)
                    self.add(p + at + 4, <uint32_t> size, <uint64_t> timestamp)
                    at += 4 + size
                    count -= 1
        finally:
            PyBuffer_Release(&view.buffer)
        self.commands += commands
        return stop

    def add_mpub(self, data, Py_ssize_t start, Py_ssize_t count, int64_t timestamp, int64_t due=0):
        return self.add_run(data, start + 4, count, 0, timestamp, due)

    cdef add_run(self, data, Py_ssize_t start, Py_ssize_t count, Py_ssize_t line, int64_t timestamp, int64_t due):
        # `count` times: `line` bytes to pass over, a size, a body
        cdef View view
        cdef const uint8_t *p
        cdef uint32_t size
        cdef uint64_t total = 0
        hold(&view, data, start, view_all())
        try:
            self.open_batch(timestamp, due)
            while count > 0:
                if view.end - start < line + 4:
                    raise ValueError("the run goes beyond the buffer")
                p = view.p + start + line
                size = nq_get32(p)
                if size > MAX_BODY or view.end - start - line - 4 < <Py_ssize_t> size:
                    raise ValueError("the run goes beyond the buffer")
                self.reserve(FRAME + size)
                self.add(p + 4, size, <uint64_t> timestamp)
                start += line + 4 + size
                total += size
                count -= 1
        finally:
            PyBuffer_Release(&view.buffer)
        return total

    def add_bodies(self, bodies, int64_t timestamp, int64_t due):
        cdef View view
        cdef uint64_t total = 0
        self.open_batch(timestamp, due)
        for body in bodies:
            hold(&view, body, 0, view_all())
            try:
                if view.end > MAX_BODY:
                    raise OverflowError("a body of more than 1 GiB")
                self.reserve(FRAME + <size_t> view.end)
                self.add(view.p, <uint32_t> view.end, <uint64_t> timestamp)
                total += <uint64_t> view.end
            finally:
                PyBuffer_Release(&view.buffer)
        return total

    cpdef add_large(self, LargePub large, int64_t timestamp):
        if large is None or large.block is None or large.have != large.size:
            raise ValueError("the body is not whole")
        if self.used == 0:
            self.block = large.block
            self.data = large.body - HEADER - FRAME
            self.room = <size_t> (HEADER + FRAME + large.room)
            self.open_batch(timestamp, 0)
            self.add_head(<uint32_t> large.size, <uint64_t> timestamp)
        else:
            self.open_batch(timestamp, 0)
            self.reserve(<size_t> (FRAME + large.size))
            self.add(large.body, <uint32_t> large.size, <uint64_t> timestamp)
        self.commands += 1
        large.block = None
        large.body = NULL

    cpdef bytes take(self):
        cdef PyObject *block
        self.seal()
        if self.used == 0:
            return b""
        # The next block begins with the size of this one, so that it seldom has to grow; but with a megabyte
        # at most, as larger ones are rare.
        self.usual = self.used + 64 if self.used < 1048576 else 1048576
        # _PyBytes_Resize needs the only reference, and drops it when it fails.
        block = <PyObject *> self.block
        Py_INCREF(self.block)
        self.block = None
        self.data = NULL
        _PyBytes_Resize(&block, <Py_ssize_t> self.used)
        data = <bytes> block
        Py_DECREF(data)
        self.used = self.room = 0
        self.count = self.commands = 0
        self.body_bytes = 0
        return data


cdef inline Py_ssize_t view_all():
    return <Py_ssize_t> 0x7FFFFFFFFFFFFFFF


def gather(data, Py_ssize_t start, Py_ssize_t end, int64_t remaining, int64_t want, int64_t max_bytes,
           bint whatever_due=False):
    cdef Gathered run
    frames = gather_run(data, start, end, remaining, want, max_bytes, whatever_due, &run)
    if run.count == 0:
        return b"", 0, -1, start, remaining
    return frames, run.count, run.first, run.at, run.remaining


cdef object gather_run(data, Py_ssize_t start, Py_ssize_t end, int64_t remaining, int64_t want,
                       int64_t max_bytes, bint whatever_due, Gathered *run):
    # If there is nothing to gather, `run.count` is 0 and the other fields are not set.
    cdef View view
    cdef const uint8_t *p
    cdef uint8_t *out
    cdef Py_ssize_t at = start, frame, begin = start
    cdef int64_t count = 0, total = 0, size, number = 0
    cdef uint64_t first = 0, expected = 0
    cdef bint crossed = False
    hold(&view, data, start, end)
    try:
        while count < want:
            frame = at
            if remaining == 0:
                if view.end - at < HEADER + FRAME:
                    break
                p = view.p + at
                number = nq_get32(p + 12)
                if nq_get32(p) != MAGIC or number == 0 or (nq_get64(p + 40) != 0 and not whatever_due):
                    break
                if count and nq_get64(p + 24) != expected:
                    break
                frame = at + HEADER
            elif view.end - at < FRAME:
                break
            size = <int64_t> nq_get32(view.p + frame) + 4
            if size < FRAME or view.end - frame < size or (count and total + size > max_bytes):
                break
            if count == 0:
                if not nq_parse_id(view.p + frame + 18, &first):
                    break
                expected = first
                begin = frame
            if remaining == 0:
                if count:
                    crossed = True
                remaining = number
            at = frame + size
            remaining -= 1
            expected += 1
            count += 1
            total += size
        run.count = count
        if count == 0:
            return b""
        run.first = first
        run.at = at
        run.remaining = remaining
        run.timestamp = <int64_t> nq_get64(view.p + begin + 8)
        if not crossed:
            if total >= SLICE_FROM:
                return memoryview(data)[begin:at]
            return PyBytes_FromStringAndSize(<char *> view.p + begin, at - begin)
        result = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *> PyBytes_AS_STRING(result)
        copy_frames(view.p, begin, at, total, out)
        return result
    finally:
        PyBuffer_Release(&view.buffer)


cdef class BatchReader:
    def __cinit__(self):
        self.data = b""

    cpdef gather(self, int64_t want, int64_t max_bytes):
        cdef Gathered run
        frames = gather_run(
            self.data, self.at, len(self.data), self.remaining, want, max_bytes, self.whatever_due, &run
        )
        self.count = run.count
        if run.count:
            self.first_id = run.first
            self.timestamp = run.timestamp
            self.at = run.at
            self.remaining = run.remaining
        return frames


cdef void copy_frames(const uint8_t *p, Py_ssize_t at, Py_ssize_t stop, int64_t total, uint8_t *out) noexcept:
    # gather() has walked [at, stop) before, so every frame and header in it is whole
    cdef Py_ssize_t piece = at
    while True:
        if at < stop and nq_get32(p + at) != MAGIC:
            at += <Py_ssize_t> nq_get32(p + at) + 4
            continue
        if total < at - piece:
            return
        memcpy(out, p + piece, <size_t> (at - piece))
        out += at - piece
        total -= at - piece
        if at >= stop:
            return
        at += HEADER
        piece = at


def frame_ends(frames):
    cdef View view
    cdef Py_ssize_t at = 0
    cdef list ends = []
    hold(&view, frames, 0, view_all())
    try:
        while at + 4 <= view.end:
            at += <Py_ssize_t> nq_get32(view.p + at) + 4
            ends.append(at)
    finally:
        PyBuffer_Release(&view.buffer)
    return ends


def with_attempts(frames, int64_t attempts):
    cdef bytes result = bytes(frames)  # a copy, unless it was bytes already
    cdef Py_ssize_t at = 0, end = len(result)
    cdef uint8_t *p
    if frames is result:
        result = PyBytes_FromStringAndSize(PyBytes_AS_STRING(frames), end)
    p = <uint8_t *> PyBytes_AS_STRING(result)
    while at + FRAME <= end:
        p[at + 16] = (attempts >> 8) & 0xFF
        p[at + 17] = attempts & 0xFF
        at += <Py_ssize_t> nq_get32(p + at) + 4
    return result


def timestamps(frames, uint64_t first_id):
    cdef View view
    cdef Py_ssize_t at = 0
    cdef int64_t timestamp, last = 0
    cdef list steps = []
    hold(&view, frames, 0, view_all())
    try:
        while at + FRAME <= view.end:
            timestamp = <int64_t> nq_get64(view.p + at + 8)
            if timestamp != last or not steps:
                steps.append((first_id, timestamp))
                last = timestamp
            first_id += 1
            at += <Py_ssize_t> nq_get32(view.p + at) + 4
    finally:
        PyBuffer_Release(&view.buffer)
    return steps


def scan_batches(data, Py_ssize_t start, Py_ssize_t end, bint verify, Py_ssize_t stride):
    cdef View view
    cdef const uint8_t *p
    cdef int64_t length, count, due
    cdef uint64_t position, expected = 0
    cdef Py_ssize_t marked = -stride
    cdef bint some = False
    cdef list marks = []
    last = None
    hold(&view, data, start, end)
    try:
        while True:
            if view.end - start < HEADER:
                return start, HEADER, marks, last
            p = view.p + start
            length = nq_get32(p + 8)
            count = nq_get32(p + 12)
            position = nq_get64(p + 16)
            if nq_get32(p) != MAGIC or length < HEADER + FRAME or count == 0 or count > length // FRAME:
                return start, 0, marks, last
            if some and position != expected:
                return start, 0, marks, last
            if view.end - start < length:
                return start, length, marks, last
            if verify and crc32c_of(p + 8, <size_t> length - 8) != nq_get32(p + 4):
                return start, 0, marks, last
            due = <int64_t> nq_get64(p + 40)
            last = (start, length, count, position, nq_get64(p + 24), <int64_t> nq_get64(p + 32), due)
            if due or start - marked >= stride:
                marks.append(last)
                marked = start
            some = True
            expected = position + count
            start += length
    finally:
        PyBuffer_Release(&view.buffer)


def find_message(data, Py_ssize_t start, Py_ssize_t end, uint64_t position):
    cdef View view
    cdef const uint8_t *p
    cdef int64_t length, count, size, skip
    cdef uint64_t first
    cdef Py_ssize_t at = start, frame
    hold(&view, data, start, end)
    try:
        while True:
            if view.end - at < HEADER:
                return -1, 0, at - start + HEADER
            p = view.p + at
            length = nq_get32(p + 8)
            count = nq_get32(p + 12)
            first = nq_get64(p + 16)
            if nq_get32(p) != MAGIC or position < first or length < HEADER:
                return -1, 0, 0
            if position == first:
                return at, 0, 0
            if position < first + <uint64_t> count:
                skip = <int64_t> (position - first)
                frame = at + HEADER
                while skip > 0:
                    if view.end - frame < 4:
                        break
                    size = <int64_t> nq_get32(view.p + frame) + 4
                    if size < FRAME or view.end - frame < size:
                        break
                    frame += size
                    skip -= 1
                if skip:
                    return -1, 0, at - start + length if view.end - at < length else 0
                return frame, count - <int64_t> (position - first), 0
            at += length
    finally:
        PyBuffer_Release(&view.buffer)


def index_frames(data, Py_ssize_t end, Py_ssize_t at, int64_t remaining, uint64_t base, int64_t skip,
                 int64_t want):
    # Threads call this with megabytes at a time, so it runs without the interpreter's lock.
    cdef View view
    cdef const uint8_t *p
    cdef uint8_t *out
    cdef Py_ssize_t used = 0, room
    cdef int64_t size
    hold(&view, data, at, view_all())
    try:
        end = min(end, view.end)
        room = (end - at) // FRAME + 2 if end > at else 0
        if room > want:
            room = <Py_ssize_t> want if want > 0 else 0
        index = PyBytes_FromStringAndSize(NULL, 4 * room)
        out = <uint8_t *> PyBytes_AS_STRING(index)
        with nogil:
            while at < end and want > 0:
                p = view.p + at
                if remaining == 0:
                    if view.end - at < HEADER:
                        at = -1
                        break
                    remaining = nq_get32(p + 12)
                    if nq_get32(p) != MAGIC or remaining == 0 or remaining > nq_get32(p + 8) // FRAME:
                        at = -1
                        break
                    at += HEADER
                    continue
                if view.end - at < 4:
                    at = -1
                    break
                size = <int64_t> nq_get32(p) + 4
                if size < FRAME:
                    at = -1
                    break
                nq_prefetch(p + 8 * size)
                if skip > 0:
                    skip -= 1
                else:
                    nq_put32(out + used, <uint32_t> (base + <uint64_t> at))
                    used += 4
                    want -= 1
                at += size
                remaining -= 1
    finally:
        PyBuffer_Release(&view.buffer)
    return index[:used], at, remaining if at >= 0 else 0, skip


# ---- blocks of records

cdef enum:
    BLOCK = 12
    RANGE = 17


cdef class BlockWriter:
    def __cinit__(self, bytes magic not None):
        if len(magic) != 4:
            raise ValueError(f"a magic of {len(magic)} bytes")
        self.block = bytearray(magic + b"\0\0\0\0\0\0\0\0")

    cdef uint8_t *grow(self, Py_ssize_t more) except NULL:
        # where the next `more` bytes are to be written
        cdef Py_ssize_t end = BLOCK + self.size
        PyByteArray_Resize(self.block, end + more)
        self.size += more
        return <uint8_t *> PyByteArray_AS_STRING(self.block) + end

    cpdef add(self, bytes record):
        cdef Py_ssize_t size = len(record)
        memcpy(self.grow(size), PyBytes_AS_STRING(record), <size_t> size)

    cpdef add_range(self, bytes letter, uint32_t number, uint64_t start, uint32_t count):
        cdef uint8_t *p
        if len(letter) != 1:
            raise ValueError(f"{letter!r} is not one letter")
        p = self.grow(RANGE)
        p[0] = <uint8_t> PyBytes_AS_STRING(letter)[0]
        nq_put32(p + 1, number)
        nq_put64(p + 5, start)
        nq_put32(p + 13, count)

    cpdef bytes take(self):
        cdef Py_ssize_t size = BLOCK + self.size
        cdef uint8_t *p = <uint8_t *> PyByteArray_AS_STRING(self.block)
        cdef bytes block
        nq_put32(p + 8, <uint32_t> self.size)
        nq_put32(p + 4, crc32c_of(p + 8, <size_t> size - 8))
        block = PyBytes_FromStringAndSize(<const char *> p, size)
        self.drop()
        return block

    cpdef drop(self):
        PyByteArray_Resize(self.block, BLOCK)
        self.size = 0


# ---- columns: messages of batches in Arrow's layout

def decode_batches(data, uint64_t first, Py_ssize_t count, bint bodies, bint times, bint ids):
    # One walk for all columns, so that the bytes come from memory once: the size of a frame brings its body.
    cdef View view
    cdef const uint8_t *p
    cdef int32_t *offsets = NULL
    cdef uint8_t *body = NULL
    cdef int64_t *stamp = NULL
    cdef uint8_t *name = NULL
    cdef bytes offset_column = b"", time_column = b"", id_column = b""
    cdef bytearray body_column = bytearray()
    cdef Py_ssize_t number = 0, at = 0, stop = 0, bad = -1
    cdef uint64_t position, total = 0, skip = 0
    cdef int64_t time
    cdef uint32_t size, length, remaining = 0
    hold(&view, data, 0, view_all())
    try:
        if count < 0 or count > view.end // FRAME:
            raise ValueError(f"too little for {count} messages")
        if bodies:
            offset_column = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
            body_column = PyByteArray_FromStringAndSize(NULL, view.end)  # more than all bodies need
            offsets = <int32_t *> PyBytes_AS_STRING(offset_column)
            body = <uint8_t *> PyByteArray_AS_STRING(body_column)
        if times:
            time_column = PyBytes_FromStringAndSize(NULL, 8 * count)
            stamp = <int64_t *> PyBytes_AS_STRING(time_column)
        if ids:
            id_column = PyBytes_FromStringAndSize(NULL, 16 * count)
            name = <uint8_t *> PyBytes_AS_STRING(id_column)
        with nogil:
            while number < count:
                p = view.p + at
                bad = at
                if remaining == 0:
                    if at != stop or view.end - at < HEADER:
                        break
                    length = nq_get32(p + 8)
                    remaining = nq_get32(p + 12)
                    position = nq_get64(p + 16)
                    if nq_get32(p) != MAGIC or length < HEADER or view.end - at < <Py_ssize_t> length:
                        break
                    skip = first + <uint64_t> number - position
                    # modulo 2^64, so that a batch which begins too late skips too much as well
                    if skip >= remaining or (number > 0 and skip > 0):
                        break
                    stop = at + length
                    at += HEADER
                    continue
                if stop - at < FRAME:
                    break
                size = nq_get32(p)
                if size < 30 or nq_get32(p + 4) != 2 or stop - at - 4 < <Py_ssize_t> size:
                    break
                if not bodies:
                    nq_prefetch(p + 8 * (4 + <Py_ssize_t> size))
                at += 4 + <Py_ssize_t> size
                remaining -= 1
                if skip > 0:
                    skip -= 1
                    continue
                if bodies:
                    size -= 30
                    if total + size > 0x7FFFFFFF:
                        break
                    offsets[number] = <int32_t> total
                    memcpy(body + total, p + FRAME, size)
                    total += size
                if times:
                    time = <int64_t> nq_get64(p + 8)
                    stamp[number] = time // 1000 - (time % 1000 < 0)  # C cuts towards zero
                if ids:
                    memcpy(name + 16 * number, p + 18, 16)
                number += 1
        if number < count:
            raise ValueError(f"no message at {bad}")
        if remaining == 0 and at != stop:  # nor behind the last message of a batch
            raise ValueError(f"no message at {at}")
        if bodies:
            offsets[count] = <int32_t> total
            PyByteArray_Resize(body_column, <Py_ssize_t> total)
    finally:
        PyBuffer_Release(&view.buffer)
    return offset_column, body_column, time_column, id_column


def count_column(int64_t first, Py_ssize_t count):
    cdef bytes column = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t *out = <int64_t *> PyBytes_AS_STRING(column)
    cdef Py_ssize_t number
    for number in range(count):
        out[number] = first + number
    return column


def stride_column(int32_t stride, Py_ssize_t count):
    cdef bytes column = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
    cdef int32_t *out = <int32_t *> PyBytes_AS_STRING(column)
    cdef Py_ssize_t number
    for number in range(count + 1):
        out[number] = stride * <int32_t> number
    return column


# ---- the other end of the wire: what a client reads and writes

cdef class Delivery:
    cdef public int64_t timestamp_ns
    cdef public int attempts
    cdef public bytes id
    cdef public bytes body
    cdef public object source
    cdef public double stamp
    cdef public bint answered

    def __cinit__(self):
        self.id = self.body = b""
        self.answered = True

    def dropped(self):
        pass

    def __del__(self):
        if not self.answered:
            self.dropped()


def read_messages(data, Py_ssize_t start, Py_ssize_t end, type kind, source, double stamp):
    cdef View view
    cdef const uint8_t *p
    cdef uint32_t size
    cdef list messages = []
    cdef Delivery message
    if not issubclass(kind, Delivery):
        raise TypeError(f"{kind} is no Delivery")
    hold(&view, data, start, end)
    try:
        while view.end - start >= FRAME:
            p = view.p + start
            size = nq_get32(p)
            if nq_get32(p + 4) != 2 or size < 30 or view.end - start - 4 < <Py_ssize_t> size:
                break
            message = <Delivery> kind.__new__(kind)
            message.timestamp_ns = <int64_t> nq_get64(p + 8)
            message.attempts = p[16] << 8 | p[17]
            message.id = PyBytes_FromStringAndSize(<char *> p + 18, 16)
            message.body = PyBytes_FromStringAndSize(<char *> p + FRAME, <Py_ssize_t> size - 30)
            message.source = source
            message.stamp = stamp
            message.answered = False
            messages.append(message)
            start += 4 + <Py_ssize_t> size
    finally:
        PyBuffer_Release(&view.buffer)
    return start, messages


def scan_oks(data, Py_ssize_t start, Py_ssize_t end):
    cdef View view
    cdef Py_ssize_t count = 0
    hold(&view, data, start, end)
    while view.end - start >= 10 and memcmp(view.p + start, b"\x00\x00\x00\x06\x00\x00\x00\x00OK", 10) == 0:
        start += 10
        count += 1
    PyBuffer_Release(&view.buffer)
    return start, count


def pack_mpub(bytes head, bodies, int64_t max_msg_size):
    cdef View view
    cdef list held = list(bodies)  # the caller's list may change between the two passes
    cdef Py_ssize_t index, count = len(held), first = len(head), total = 4, size
    cdef bytes result
    cdef uint8_t *out
    for index in range(count):
        size = size_of(held[index])
        if size <= 0 or size > max_msg_size:
            return index, b""
        total += 4 + size
    if total > 0x7FFFFFFF:
        raise OverflowError("an MPUB of 2 GiB or more")
    result = PyBytes_FromStringAndSize(NULL, first + 4 + total)
    out = <uint8_t *> PyBytes_AS_STRING(result)
    memcpy(out, PyBytes_AS_STRING(head), <size_t> first)
    nq_put32(out + first, <uint32_t> total)
    nq_put32(out + first + 4, <uint32_t> count)
    out += first + 8
    total -= 4
    for body in held:
        if type(body) is bytes:  # the usual case: bytes do not change, and need not be held
            size = len(<bytes> body)
            nq_put32(out, <uint32_t> size)
            memcpy(out + 4, PyBytes_AS_STRING(body), <size_t> size)
            out += 4 + size
            total -= 4 + size
            continue
        hold(&view, body, 0, view_all())
        size = view.end
        if total < 4 + size:  # a bytearray that has grown meanwhile
            PyBuffer_Release(&view.buffer)
            raise ValueError("a body changed while it was packed")
        nq_put32(out, <uint32_t> size)
        memcpy(out + 4, view.p, <size_t> size)
        PyBuffer_Release(&view.buffer)
        out += 4 + size
        total -= 4 + size
    if total:
        raise ValueError("a body changed while it was packed")
    return -1, result


cdef Py_ssize_t size_of(body) except -1:
    cdef View view
    cdef Py_ssize_t size
    if type(body) is bytes:
        return len(<bytes> body)
    hold(&view, body, 0, view_all())
    size = view.end
    PyBuffer_Release(&view.buffer)
    return size


# ---- from Arrow to the wire


cdef struct Column:
    View data
    View offsets
    Py_ssize_t width


cdef int hold_column(Column *column, data, offsets, Py_ssize_t width) except -1:
    if width != 4 and width != 8:
        raise ValueError(f"offsets of {width} bytes")
    hold(&column.data, data, 0, view_all())
    try:
        hold(&column.offsets, offsets, 0, view_all())
    except BaseException:
        PyBuffer_Release(&column.data.buffer)
        raise
    column.width = width
    return 0


cdef void release_column(Column *column):
    PyBuffer_Release(&column.data.buffer)
    PyBuffer_Release(&column.offsets.buffer)


cdef int64_t column_offset(Column *column, Py_ssize_t index) except -1:
    cdef int32_t narrow
    cdef int64_t offset
    if index < 0 or index >= column.offsets.end // column.width:
        raise ValueError("a row beyond the offsets")
    if column.width == 4:
        memcpy(&narrow, column.offsets.p + 4 * index, 4)
        offset = narrow
    else:
        memcpy(&offset, column.offsets.p + 8 * index, 8)
    if offset < 0 or offset > column.data.end:
        raise ValueError("an offset beyond the data")
    return offset


def lay_mpub(bytes head, data, offsets, Py_ssize_t width, Py_ssize_t first, Py_ssize_t last, int64_t max_bytes):
    cdef Column column
    cdef Py_ssize_t row = first, index
    cdef int64_t begin, end, total = 4, size
    cdef uint8_t *p
    hold_column(&column, data, offsets, width)
    try:
        while row < last:
            begin = column_offset(&column, row)
            end = column_offset(&column, row + 1)
            if end < begin:
                raise ValueError("an offset beyond the data")
            if begin == end or (row > first and total + 4 + end - begin > max_bytes):
                break
            total += 4 + end - begin
            row += 1
        if row == first:
            return b"", first
        if total > 0x7FFFFFFF:
            raise OverflowError("a body of 2 GiB or more")
        size = len(head) + 4 if head else 0
        laid = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> (size + total))
        p = <uint8_t *> PyBytes_AS_STRING(laid)
        if size:
            memcpy(p, PyBytes_AS_STRING(head), <size_t> size - 4)
            nq_put32(p + size - 4, <uint32_t> total)
            p += size
        nq_put32(p, <uint32_t> (row - first))
        p += 4
        end = column_offset(&column, first)
        for index in range(first, row):
            begin = end
            end = column_offset(&column, index + 1)
            nq_put32(p, <uint32_t> (end - begin))
            memcpy(p + 4, column.data.p + begin, <size_t> (end - begin))
            p += 4 + end - begin
        return laid, row
    finally:
        release_column(&column)


cdef int decimal(uint8_t *p, int64_t value) noexcept:
    # Writes the digits, at most 20, and returns how many there are.
    cdef uint8_t digits[20]
    cdef int count = 0, length = 0
    cdef uint64_t rest = <uint64_t> value if value >= 0 else 0 - <uint64_t> value
    if value < 0:
        p[0] = 45
        length = 1
    while True:
        digits[count] = <uint8_t> (48 + rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count:
        count -= 1
        p[length] = digits[count]
        length += 1
    return length


def lay_dpubs(bytes name, data, offsets, Py_ssize_t width, defers, Py_ssize_t first, Py_ssize_t last,
              int64_t max_bytes):
    cdef Column column
    cdef View delays
    cdef Py_ssize_t row = first, line = len(name) + 6, index
    cdef int64_t begin, end, defer, total = 0
    cdef uint8_t scratch[20]
    cdef uint8_t *p
    cdef int digits
    hold_column(&column, data, offsets, width)
    try:
        hold(&delays, defers, 0, view_all())
    except BaseException:
        release_column(&column)
        raise
    try:
        while row < last:
            begin = column_offset(&column, row)
            end = column_offset(&column, row + 1)
            if end < begin:
                raise ValueError("an offset beyond the data")
            if row >= delays.end // 8:
                raise ValueError("a row beyond the offsets")
            memcpy(&defer, delays.p + 8 * row, 8)
            digits = decimal(scratch, defer)
            if begin == end or (row > first and total + line + digits + 5 + end - begin > max_bytes):
                break
            total += line + digits + 5 + end - begin
            row += 1
        laid = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> total)
        p = <uint8_t *> PyBytes_AS_STRING(laid)
        for index in range(first, row):
            begin = column_offset(&column, index)
            end = column_offset(&column, index + 1)
            memcpy(&defer, delays.p + 8 * index, 8)
            memcpy(p, b"DPUB ", 5)
            memcpy(p + 5, PyBytes_AS_STRING(name), <size_t> line - 6)
            p[line - 1] = 32
            p += line
            p += decimal(p, defer)
            p[0] = 10
            nq_put32(p + 1, <uint32_t> (end - begin))
            memcpy(p + 5, column.data.p + begin, <size_t> (end - begin))
            p += 5 + end - begin
        return laid, row
    finally:
        release_column(&column)
        PyBuffer_Release(&delays.buffer)
