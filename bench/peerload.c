/*
 * peerload: the load of nsqload for other queues, so that their figures stand beside nsqd's.
 *
 *   cc -O2 -o peerload peerload.c -lpthread
 *   peerload redis      pub|sub [options]   a stream and a consumer group: XADD, XREADGROUP, XACK
 *   peerload beanstalkd pub|sub [options]   put, reserve, delete
 *   peerload nats       pub|sub [options]   a JetStream stream: publish with acknowledgement; a pull consumer that acks
 *   peerload rabbitmq   pub|sub [options]   a queue over AMQP 0-9-1: publish with confirms; a consumer that acks
 *
 * Each connection has a thread. A publisher keeps --window messages unanswered, a consumer asks for --window
 * messages at a time and acknowledges every one. It prints one JSON line like nsqload's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct {
    int port, conns, size, window;
    double seconds;
    long count;
} opt = {.port = 0, .conns = 2, .size = 200, .window = 200, .seconds = 5};

static volatile int stopping;
static long done_messages;
static char *body;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static void die(const char *what, const char *said) {
    fprintf(stderr, "peerload: %s: %.200s\n", what, said);
    exit(1);
}

/* ---- a blocking connection ---- */
typedef struct {
    int fd, id;
    char *in, *out;
    size_t in_off, in_len, in_cap, out_len, out_cap;
    uint64_t confirmed, stored; /* rabbitmq: all messages up to this one are; how many were asked for */
    char *alone;                /* rabbitmq: which messages behind those are confirmed, by their numbers' low bits */
} Conn;

static Conn *dial(int id) {
    Conn *c = calloc(1, sizeof *c);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
    struct timeval patience = {.tv_sec = 10};
    int one = 1;
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    c->id = id;
    if (connect(c->fd, (void *)&a, sizeof a) < 0) die("connect", "refused");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    c->in = malloc(c->in_cap = 1 << 18);
    return c;
}
static void add(Conn *c, const void *p, size_t n) {
    if (c->out_len + n > c->out_cap) c->out = realloc(c->out, c->out_cap = (c->out_len + n) * 2);
    memcpy(c->out + c->out_len, p, n);
    c->out_len += n;
}
static void addf(Conn *c, const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    add(c, line, n);
}
static void send_out(Conn *c) {
    for (size_t off = 0; off < c->out_len;) {
        ssize_t n = send(c->fd, c->out + off, c->out_len - off, MSG_NOSIGNAL);
        if (n <= 0) die("send", "the server has closed the connection");
        off += n;
    }
    c->out_len = 0;
}
static void more(Conn *c) {
    memmove(c->in, c->in + c->in_off, c->in_len -= c->in_off);
    c->in_off = 0;
    if (c->in_cap - c->in_len < 65536) c->in = realloc(c->in, c->in_cap *= 2);
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
    if (n <= 0) die("recv", n ? "no answer for 10 s" : "the server has closed the connection");
    c->in_len += n;
}
/* the next line without its end, valid until the next read */
static char *line(Conn *c) {
    for (;;) {
        char *p = c->in + c->in_off, *end = memmem(p, c->in_len - c->in_off, "\r\n", 2);
        if (end) {
            *end = 0;
            c->in_off = end + 2 - c->in;
            return p;
        }
        more(c);
    }
}
/* the next n bytes, valid until the next read */
static char *bytes(Conn *c, size_t n) {
    while (c->in_len - c->in_off < n) more(c);
    c->in_off += n;
    return c->in + c->in_off - n;
}
static void expect(Conn *c, const char *start) {
    char *said = line(c);
    if (strncmp(said, start, strlen(start))) die("the server said", said);
}

/* ---- Redis Streams ---- */
static void redis_put(Conn *c) {
    addf(c, "*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n", opt.size);
    add(c, body, opt.size);
    add(c, "\r\n", 2);
}
static void redis_stored(Conn *c) { expect(c, "$"); line(c); }
static void redis_subscribe(Conn *c) {
    addf(c, "XGROUP CREATE bench g 0 MKSTREAM\r\n");
    send_out(c);
    line(c); /* +OK, or that another connection was first */
}
/* one answer of XREADGROUP, then one XACK for all of it; how many messages there were */
static int redis_take(Conn *c) {
    addf(c, "XREADGROUP GROUP g c%d COUNT %d BLOCK 100 STREAMS bench >\r\n", c->id, opt.window);
    send_out(c);
    char *said = line(c);
    if (said[0] != '*') die("the server said", said);
    if (atoi(said + 1) < 1) return 0;
    expect(c, "*2");
    bytes(c, atoi(line(c) + 1) + 2); /* the name of the stream */
    int count = atoi(line(c) + 1);
    addf(c, "*%d\r\n$4\r\nXACK\r\n$5\r\nbench\r\n$1\r\ng\r\n", count + 3);
    for (int i = 0; i < count; i++) {
        expect(c, "*2");
        int n = atoi(line(c) + 1);
        char *id = bytes(c, n + 2);
        addf(c, "$%d\r\n", n);
        add(c, id, n + 2);
        expect(c, "*2");
        for (int field = 0; field < 2; field++) bytes(c, atoi(line(c) + 1) + 2);
    }
    send_out(c);
    expect(c, ":");
    return count;
}

/* ---- beanstalkd ---- */
static void beanstalkd_put(Conn *c) {
    addf(c, "put 0 0 60 %d\r\n", opt.size);
    add(c, body, opt.size);
    add(c, "\r\n", 2);
}
static void beanstalkd_stored(Conn *c) { expect(c, "INSERTED"); }
static int beanstalkd_take(Conn *c) {
    for (int i = 0; i < opt.window; i++) addf(c, "reserve-with-timeout 0\r\n");
    send_out(c);
    int count = 0;
    for (int i = 0; i < opt.window; i++) {
        unsigned long long id;
        int n;
        char *said = line(c);
        if (!strcmp(said, "TIMED_OUT")) continue;
        if (sscanf(said, "RESERVED %llu %d", &id, &n) != 2) die("the server said", said);
        bytes(c, n + 2);
        addf(c, "delete %llu\r\n", id);
        count++;
    }
    send_out(c);
    for (int i = 0; i < count; i++) expect(c, "DELETED");
    return count;
}

/* ---- NATS JetStream ---- */
/* the next message for us; its reply subject and its body, valid until the next read */
static char *nats_message(Conn *c, char *reply, size_t *length) {
    for (;;) {
        char *said = line(c), subject[256];
        unsigned long sid, n;
        size_t header = 0;
        if (!strncmp(said, "PING", 4)) { addf(c, "PONG\r\n"); send_out(c); continue; }
        if (!strncmp(said, "INFO", 4) || !strncmp(said, "PONG", 4) || !strncmp(said, "+OK", 3)) continue;
        reply[0] = 0;
        if (!strncmp(said, "HMSG", 4)) { header = 1; n = strtoul(strrchr(said, ' ') + 1, NULL, 10); }
        else if (sscanf(said, "MSG %255s %lu %255s %lu", subject, &sid, reply, &n) != 4) {
            if (sscanf(said, "MSG %255s %lu %lu", subject, &sid, &n) != 3) die("the server said", said);
            reply[0] = 0;
        }
        char *p = bytes(c, n + 2);
        *length = header ? 0 : n;
        return p;
    }
}
static void nats_ask(Conn *c, const char *subject, const char *document) {
    char reply[256];
    size_t n;
    addf(c, "PUB %s in%d %zu\r\n%s\r\n", subject, c->id, strlen(document), document);
    send_out(c);
    char *said = nats_message(c, reply, &n);
    said[n] = 0;
    if (strstr(said, "\"error\"") && !strstr(said, "already")) die("the server said", said);
}
static void nats_connect(Conn *c) {
    addf(c, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB in%d 1\r\n", c->id);
    nats_ask(c, "$JS.API.STREAM.CREATE.bench", "{\"name\":\"bench\",\"subjects\":[\"bench\"],\"storage\":\"file\","
             "\"retention\":\"limits\",\"num_replicas\":1,\"max_msgs\":-1,\"max_bytes\":-1,\"max_age\":0}");
}
static void nats_subscribe(Conn *c) {
    nats_connect(c);
    nats_ask(c, "$JS.API.CONSUMER.DURABLE.CREATE.bench.g", "{\"stream_name\":\"bench\",\"config\":{\"durable_name\":\"g\","
             "\"deliver_policy\":\"all\",\"ack_policy\":\"explicit\",\"max_ack_pending\":20000}}");
}
static void nats_put(Conn *c) {
    addf(c, "PUB bench in%d %d\r\n", c->id, opt.size);
    add(c, body, opt.size);
    add(c, "\r\n", 2);
}
static void nats_stored(Conn *c) {
    char reply[256];
    size_t n;
    char *said = nats_message(c, reply, &n);
    if (n < 10 || !memmem(said, n, "\"seq\"", 5)) die("the server said", said);
}
static int nats_take(Conn *c) {
    char wanted[80], reply[256];
    snprintf(wanted, sizeof wanted, "{\"batch\":%d,\"no_wait\":true}", opt.window);
    addf(c, "PUB $JS.API.CONSUMER.MSG.NEXT.bench.g in%d %zu\r\n%s\r\n", c->id, strlen(wanted), wanted);
    send_out(c);
    int count = 0;
    while (count < opt.window) {
        size_t n;
        nats_message(c, reply, &n);
        if (!reply[0]) break; /* a status: nothing is left */
        addf(c, "PUB %s 4\r\n+ACK\r\n", reply);
        count++;
    }
    send_out(c);
    return count;
}

/* ---- RabbitMQ, AMQP 0-9-1 ----
 *   0      1         3        7
 *   | type | channel | length | payload, then 0xCE
 *   type 1: a method, u16 class, u16 method, arguments; 2: the header of a body; 3: a piece of a body
 */
enum { METHOD = 1, HEADER = 2, BODY = 3 };
#define METHOD_ID(class, method) ((uint32_t)(class) << 16 | (method))
static uint32_t u32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static void add8(Conn *c, int v) { char b = (char)v; add(c, &b, 1); }
static void add16(Conn *c, int v) { uint16_t b = htons((uint16_t)v); add(c, &b, 2); }
static void add32(Conn *c, uint32_t v) { v = htonl(v); add(c, &v, 4); }
static void add64(Conn *c, uint64_t v) { add32(c, v >> 32); add32(c, (uint32_t)v); }
static void add_name(Conn *c, const char *name) { add8(c, (int)strlen(name)); add(c, name, strlen(name)); }
static void add_longstr(Conn *c, const char *p, size_t n) { add32(c, (uint32_t)n); add(c, p, n); }
static size_t frame_begins(Conn *c, int type, int channel) {
    add8(c, type);
    add16(c, channel);
    add32(c, 0);
    return c->out_len;
}
static void frame_ends(Conn *c, size_t start) {
    uint32_t n = htonl((uint32_t)(c->out_len - start));
    memcpy(c->out + start - 4, &n, 4);
    add8(c, 0xCE);
}
static size_t method_begins(Conn *c, int channel, int class, int method) {
    size_t start = frame_begins(c, METHOD, channel);
    add16(c, class);
    add16(c, method);
    return start;
}
/* the next frame's payload, valid until the next read */
static char *frame(Conn *c, int *type, size_t *length) {
    char *p = bytes(c, 7);
    *type = p[0];
    *length = u32(p + 3);
    if (*length > 1 << 20) die("the server said", "a frame over 1 MiB");
    p = bytes(c, *length + 1);
    if ((unsigned char)p[*length] != 0xCE) die("the server said", "a frame without an end");
    return p;
}
/* the arguments of the next method, which has to be this one */
static char *method(Conn *c, uint32_t wanted) {
    for (;;) {
        int type;
        size_t n;
        char *p = frame(c, &type, &n);
        if (type != METHOD) continue; /* a heartbeat */
        if (u32(p) == wanted) return p + 4;
        char said[300] = "";
        snprintf(said, sizeof said, "method %u of class %u: %.*s", u32(p) & 0xffff, u32(p) >> 16,
                 n > 7 ? (unsigned char)p[6] : 0, p + 7);
        die("the server said", said);
    }
}
static void rabbitmq_open(Conn *c) {
    size_t start;
    add(c, "AMQP\0\0\x09\x01", 8);
    send_out(c);
    method(c, METHOD_ID(10, 10));
    start = method_begins(c, 0, 10, 11); /* start-ok: no properties, who we are */
    add32(c, 0);
    add_name(c, "PLAIN");
    add_longstr(c, "\0guest\0guest", 12);
    add_name(c, "en_US");
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(10, 30));
    start = method_begins(c, 0, 10, 31); /* tune-ok: channels, bytes of a frame, no heartbeat */
    add16(c, 1);
    add32(c, 131072);
    add16(c, 0);
    frame_ends(c, start);
    start = method_begins(c, 0, 10, 40); /* open */
    add_name(c, "/");
    add_name(c, "");
    add8(c, 0);
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(10, 41));
    start = method_begins(c, 1, 20, 10); /* a channel */
    add_name(c, "");
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(20, 11));
    start = method_begins(c, 1, 50, 10); /* a queue: durable, a classic one */
    add16(c, 0);
    add_name(c, "bench");
    add8(c, 2);
    add32(c, 0);
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(50, 11));
}
static void rabbitmq_connect(Conn *c) {
    rabbitmq_open(c);
    c->alone = calloc(1, 1 << 16);
    size_t start = method_begins(c, 1, 85, 10); /* confirm.select */
    add8(c, 0);
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(85, 11));
}
static void rabbitmq_subscribe(Conn *c) {
    rabbitmq_open(c);
    size_t start = method_begins(c, 1, 60, 10); /* qos */
    add32(c, 0);
    add16(c, opt.window);
    add8(c, 0);
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(60, 11));
    start = method_begins(c, 1, 60, 20); /* consume */
    add16(c, 0);
    add_name(c, "bench");
    add_name(c, "");
    add8(c, 0);
    add32(c, 0);
    frame_ends(c, start);
    send_out(c);
    method(c, METHOD_ID(60, 21));
}
static void rabbitmq_put(Conn *c) {
    size_t start = method_begins(c, 1, 60, 40);
    add16(c, 0);
    add_name(c, "");
    add_name(c, "bench");
    add8(c, 0);
    frame_ends(c, start);
    start = frame_begins(c, HEADER, 1);
    add16(c, 60);
    add16(c, 0);
    add64(c, (uint64_t)opt.size);
    add16(c, 0x1000); /* one property: */
    add8(c, 2);       /* delivery mode persistent */
    frame_ends(c, start);
    for (int off = 0; off < opt.size; off += 131064) {
        start = frame_begins(c, BODY, 1);
        add(c, body + off, opt.size - off < 131064 ? opt.size - off : 131064);
        frame_ends(c, start);
    }
}
static void rabbitmq_stored(Conn *c) {
    c->stored++;
    while (c->confirmed < c->stored) {
        char *p = method(c, METHOD_ID(60, 80));
        uint64_t tag = (uint64_t)u32(p) << 32 | u32(p + 4);
        /* Acks come in any order, each for one message or for all up to one. */
        if (p[8] & 1)
            while (c->confirmed < tag) c->alone[++c->confirmed & 0xffff] = 0;
        else c->alone[tag & 0xffff] = 1;
        while (c->alone[(c->confirmed + 1) & 0xffff]) c->alone[++c->confirmed & 0xffff] = 0;
    }
}
static int rabbitmq_take(Conn *c) {
    struct pollfd waiting = {.fd = c->fd, .events = POLLIN};
    int count = 0;
    while (count < opt.window) {
        if (c->in_off == c->in_len && poll(&waiting, 1, count ? 0 : 100) <= 0) break;
        char *p = method(c, METHOD_ID(60, 60)); /* deliver: consumer's tag, delivery's tag, … */
        int type;
        size_t n, left;
        p += 1 + (unsigned char)p[0];
        size_t start = method_begins(c, 1, 60, 80);
        add(c, p, 8);
        add8(c, 0);
        frame_ends(c, start);
        p = frame(c, &type, &n);
        if (type != HEADER) die("the server said", "a delivery without a header");
        for (left = u32(p + 8); left > 0; left -= n) frame(c, &type, &n);
        count++;
    }
    send_out(c);
    return count;
}

typedef struct {
    const char *name;
    void (*connect)(Conn *), (*put)(Conn *), (*stored)(Conn *), (*subscribe)(Conn *);
    int (*take)(Conn *);
} Peer;
static void nothing(Conn *c) { (void)c; }
static const Peer peers[] = {
    {"redis", nothing, redis_put, redis_stored, redis_subscribe, redis_take},
    {"beanstalkd", nothing, beanstalkd_put, beanstalkd_stored, nothing, beanstalkd_take},
    {"nats", nats_connect, nats_put, nats_stored, nats_subscribe, nats_take},
    {"rabbitmq", rabbitmq_connect, rabbitmq_put, rabbitmq_stored, rabbitmq_subscribe, rabbitmq_take},
};
static const Peer *peer;

static void *publisher(void *conn) {
    Conn *c = conn;
    while (!stopping) {
        for (int i = 0; i < opt.window; i++) peer->put(c);
        send_out(c);
        for (int i = 0; i < opt.window; i++) peer->stored(c);
        __atomic_add_fetch(&done_messages, opt.window, __ATOMIC_RELAXED);
    }
    return NULL;
}
static void *consumer(void *conn) {
    while (!stopping) {
        int n = peer->take(conn);
        if (n) __atomic_add_fetch(&done_messages, n, __ATOMIC_RELAXED);
        else usleep(1000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 2 && i < sizeof peers / sizeof *peers; i++)
        if (!strcmp(argv[1], peers[i].name)) peer = &peers[i];
    if (!peer || (strcmp(argv[2], "pub") && strcmp(argv[2], "sub"))) {
        fprintf(stderr, "usage: peerload redis|beanstalkd|nats|rabbitmq pub|sub --port N [--conns N] [--size BYTES]\n"
                        "  [--window N] [--seconds S] [--count N]\n");
        return 2;
    }
    int consume = !strcmp(argv[2], "sub");
    for (int i = 3; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        if (!strcmp(k, "--port")) opt.port = atoi(v);
        else if (!strcmp(k, "--conns")) opt.conns = atoi(v);
        else if (!strcmp(k, "--size")) opt.size = atoi(v);
        else if (!strcmp(k, "--window")) opt.window = atoi(v);
        else if (!strcmp(k, "--seconds")) opt.seconds = atof(v);
        else if (!strcmp(k, "--count")) opt.count = atol(v);
        else { fprintf(stderr, "peerload: no option %s\n", k); return 2; }
    }
    if (opt.port <= 0 || opt.port > 65535 || opt.conns < 1 || opt.size < 1 || opt.window < 1 || opt.window > 60000) {
        fprintf(stderr, "peerload: a number is out of range\n");
        return 2;
    }
    body = malloc(opt.size);
    memset(body, 'x', opt.size);
    Conn **conns = calloc(opt.conns, sizeof *conns);
    pthread_t *threads = calloc(opt.conns, sizeof *threads);
    for (int i = 0; i < opt.conns; i++) {
        conns[i] = dial(i);
        (consume ? peer->subscribe : peer->connect)(conns[i]);
    }
    double start = now();
    for (int i = 0; i < opt.conns; i++) pthread_create(&threads[i], NULL, consume ? consumer : publisher, conns[i]);
    while (now() - start < opt.seconds && !(opt.count && done_messages >= opt.count)) usleep(5000);
    double took = now() - start;
    long n = done_messages;
    stopping = 1;
    for (int i = 0; i < opt.conns; i++) pthread_join(threads[i], NULL);
    printf("{\"peer\":\"%s\",\"seconds\":%.3f,\"counted\":%ld,\"total\":%ld,\"per_s\":%.0f}\n", peer->name, took, n,
           done_messages, n / took);
    return 0;
}
