/*
 * nsqload: a load generator for NSQ servers (TCP protocol V2), and the limit to compare them with.
 *
 *   cc -O2 -o nsqload nsqload.c -lpthread
 *   nsqload pub    [options]   publish as fast as the server answers
 *   nsqload sub    [options]   consume and FIN as fast as the server pushes
 *   nsqload pubsub [options]   both at once; bodies carry a clock, so it prints end-to-end latency
 *   nsqload idle   [options]   hold --conns connections that only answer heartbeats
 *
 * --http 1 publishes through POST /pub, or /mpub?binary=true for batches; --topics N spreads over N topics;
 * --defer MS publishes with DPUB. A consumer gives a message back with REQ while its attempts are at most
 * --requeue N, and leaves it to time out (--msg-timeout MS) while they are at most --ignore N.
 *
 *   nsqload sink   [options]   be a server that stores nothing: what this machine and this
 *                              generator can do at most (it answers OK, and pushes canned messages)
 *
 * Every run prints one JSON line. Run a server and the sink in turn and compare the two figures:
 * a ratio holds from machine to machine, a figure does not.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *mode, *host, *topic, *channel;
    int port, conns, channels, topics, size, batch, window, rdy, http, defer, requeue, ignore, msg_timeout;
    double seconds, rate;
    long count;
} opt = {.host = "127.0.0.1", .topic = "bench", .channel = "ch", .port = 4150, .conns = 2,
         .channels = 1, .topics = 1, .size = 200, .batch = 200, .window = 1, .rdy = 2500, .seconds = 5};

static volatile int stopping;
static volatile long published, consumed, errors;
static volatile int subscribed; /* consumers whose SUB is answered */
#define MSG_HEAD 34 /* size 4, frame type 4, timestamp 8, attempts 2, id 16 */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static uint32_t get32(const uint8_t *p) { return p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
static void put32(uint8_t *p, uint32_t v) { p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v; }

static void die(const char *what) { fprintf(stderr, "nsqload: %s: %s\n", what, strerror(errno)); exit(1); }

/* ---- latency histogram: 64 powers of two, each cut in 32 ---- */
static uint64_t histogram[64 * 32], samples, worst;
static void record(uint64_t ns) {
    int top = 63 - __builtin_clzll(ns | 32);
    int slot = (top << 5) + ((ns >> (top - 5)) & 31);
    histogram[slot]++;
    samples++;
    if (ns > worst) worst = ns;
}
static double percentile_us(double q) {
    uint64_t want = samples * q, seen = 0;
    for (int i = 0; i < 64 * 32; i++)
        if ((seen += histogram[i]) > want) {
            int top = i >> 5;
            return ((1ull << top) + ((uint64_t)(i & 31) << (top - 5))) / 1000.0;
        }
    return worst / 1000.0;
}

/* ---- a connection with its two buffers ---- */
typedef struct {
    int fd, id, role;          /* role: 0 publisher, 1 consumer, 2 idle */
    uint8_t *in, *out;
    size_t in_len, in_cap, out_len, out_off, out_cap;
    int outstanding, want_write, handshakes;
} Conn;

static void out_bytes(Conn *c, const void *p, size_t n) {
    if (c->out_off == c->out_len) c->out_off = c->out_len = 0;
    if (c->out_len + n > c->out_cap) {
        c->out_cap = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, p, n);
    c->out_len += n;
}
static int flush_out(Conn *c) {
    while (c->out_off < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        c->out_off += n;
    }
    c->out_off = c->out_len = 0;
    return 1;
}

/* the only topic has the name itself; of several each has a number behind it */
static void topic_name(char *name, size_t cap, int i) {
    if (opt.topics > 1) snprintf(name, cap, "%s%d", opt.topic, i % opt.topics);
    else snprintf(name, cap, "%s", opt.topic);
}

static Conn *dial(int role, int id) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
    inet_pton(AF_INET, opt.host, &a.sin_addr);
    if (connect(fd, (void *)&a, sizeof a) < 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    Conn *c = calloc(1, sizeof *c);
    c->fd = fd; c->role = role; c->id = id;
    c->in_cap = role == 2 ? 4096 : 1 << 18;
    c->in = malloc(c->in_cap);
    if (role == 0 && opt.http) return c;
    char line[512], identify[200], timeout[40] = "";
    out_bytes(c, "  V2", 4);
    if (opt.msg_timeout) snprintf(timeout, sizeof timeout, ",\"msg_timeout\":%d", opt.msg_timeout);
    snprintf(identify, sizeof identify,
             "{\"client_id\":\"nsqload\",\"hostname\":\"nsqload\",\"user_agent\":\"nsqload/1\"%s}", timeout);
    uint8_t len[4];
    put32(len, strlen(identify));
    out_bytes(c, "IDENTIFY\n", 9);
    out_bytes(c, len, 4);
    out_bytes(c, identify, strlen(identify));
    c->handshakes = 1;
    if (role == 1) {
        char channel[128], topic[128];
        topic_name(topic, sizeof topic, id);
        if (opt.channels > 1) snprintf(channel, sizeof channel, "%s%d", opt.channel, id / opt.topics % opt.channels);
        else snprintf(channel, sizeof channel, "%s", opt.channel);
        int n = snprintf(line, sizeof line, "SUB %s %s\nRDY %d\n", topic, channel, opt.rdy);
        out_bytes(c, line, n);
        c->handshakes = 2;
    }
    flush_out(c);
    return c;
}

/* ---- publisher side ---- */
typedef struct { uint8_t *bytes; size_t len, first_body; } Request;
static Request *requests;     /* one PUB, DPUB or MPUB for each topic, ready to send */
static Request build_request(int number) {
    char line[400], topic[128];
    topic_name(topic, sizeof topic, number);
    size_t body = opt.batch > 1 ? 4 + (size_t)opt.batch * (4 + opt.size) : (size_t)opt.size;
    int n;
    if (opt.http)
        n = snprintf(line, sizeof line, "POST /%s?topic=%s%s HTTP/1.1\r\nHost: nsqload\r\nContent-Length: %zu\r\n\r\n",
                     opt.batch > 1 ? "mpub" : "pub", topic, opt.batch > 1 ? "&binary=true" : "", body);
    else if (opt.defer) n = snprintf(line, sizeof line, "DPUB %s %d\n", topic, opt.defer);
    else n = snprintf(line, sizeof line, "%s %s\n", opt.batch > 1 ? "MPUB" : "PUB", topic);
    int prefix = opt.http ? 0 : 4; /* the length of the body, which HTTP has in its header */
    Request r = {.len = n + prefix + body, .first_body = n + prefix + (opt.batch > 1 ? 8 : 0)};
    r.bytes = malloc(r.len);
    memset(r.bytes, 'x', r.len);
    memcpy(r.bytes, line, n);
    if (prefix) put32(r.bytes + n, body);
    if (opt.batch > 1) {
        uint8_t *p = r.bytes + n + prefix;
        put32(p, opt.batch);
        for (int i = 0; i < opt.batch; i++) put32(p + 4 + (size_t)i * (4 + opt.size), opt.size);
    }
    return r;
}
static void build_requests(void) {
    requests = calloc(opt.topics, sizeof *requests);
    for (int i = 0; i < opt.topics; i++) requests[i] = build_request(i);
}
static void publish(Conn *c) {
    static int next;          /* only the publishers' thread comes here */
    Request *r = &requests[next];
    if (++next == opt.topics) next = 0;
    if (opt.size >= 8) { /* stamp every body with the clock */
        uint64_t t = now_ns();
        for (int i = 0; i < opt.batch; i++) memcpy(r->bytes + r->first_body + (size_t)i * (4 + opt.size), &t, 8);
    }
    out_bytes(c, r->bytes, r->len);
    c->outstanding++;
}

/* takes whole HTTP answers off the buffer; returns how many bytes they had, or -1 for one that is no success */
static ssize_t read_answers(Conn *c) {
    size_t off = 0;
    while (c->in_len > off) {
        uint8_t *p = c->in + off, *end = memmem(p, c->in_len - off, "\r\n\r\n", 4);
        if (!end) break;
        *end = 0;             /* ends the header for strcasestr */
        char *length = strcasestr((char *)p, "content-length:");
        size_t whole = end + 4 - p + (length ? atol(length + 15) : 0);
        int success = !memcmp(p, "HTTP/1.1 200", 12);
        *end = '\r';
        if (!success) {
            fprintf(stderr, "nsqload: server said %.*s\n", (int)(end - p), p);
            return -1;
        }
        if (c->in_len - off < whole) break;
        off += whole;
        c->outstanding--;
        published += opt.batch;
    }
    return off;
}

/* answers a message as the options say */
static void answer(Conn *c, const uint8_t *frame) {
    int attempts = frame[16] << 8 | frame[17];
    char line[24];
    if (attempts <= opt.ignore) return;
    int requeue = attempts <= opt.requeue;
    memcpy(line, requeue ? "REQ " : "FIN ", 4);
    memcpy(line + 4, frame + 18, 16);
    memcpy(line + 20, requeue ? " 0\n" : "\n", requeue ? 3 : 1);
    out_bytes(c, line, requeue ? 23 : 21);
}

/* reads frames; returns -1 when the connection is gone */
static int on_readable(Conn *c) {
    for (;;) {
        ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
        if (n == 0) return -1;
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        c->in_len += n;
        size_t off = 0;
        if (opt.http && c->role == 0) {
            ssize_t taken = read_answers(c);
            if (taken < 0) return -1;
            off = taken;
            goto taken;
        }
        uint64_t t = opt.mode[0] == 'p' && opt.mode[3] ? now_ns() : 0; /* pubsub only */
        while (c->in_len - off >= 8) {
            uint8_t *f = c->in + off;
            uint32_t size = get32(f), type = get32(f + 4);
            if (c->in_len - off < 4 + (size_t)size) break;
            if (type == 2) {
                answer(c, f);
                consumed++;
                if (t && size >= 38) {
                    uint64_t sent;
                    memcpy(&sent, f + MSG_HEAD, 8);
                    if (sent <= t) record(t - sent);
                }
            } else if (size == 15 && !memcmp(f + 8, "_heartbeat_", 11)) {
                out_bytes(c, "NOP\n", 4);
            } else if (type == 1) {
                if (errors++ < 3) fprintf(stderr, "nsqload: server said %.*s\n", (int)size - 4, f + 8);
                if (c->outstanding) c->outstanding--;
            } else if (c->handshakes) {
                if (!--c->handshakes && c->role == 1) subscribed++;
            } else if (c->outstanding) {
                c->outstanding--;
                published += opt.batch;
            }
            off += 4 + size;
        }
    taken:
        memmove(c->in, c->in + off, c->in_len - off);
        c->in_len -= off;
        if (c->in_len == c->in_cap) { c->in_cap *= 2; c->in = realloc(c->in, c->in_cap); }
        if (flush_out(c) < 0) return -1;
    }
}

typedef struct { int role, conns; } Side;
static void *run_side(void *arg) {
    Side *side = arg;
    int ep = epoll_create1(0);
    Conn **cs = calloc(side->conns, sizeof *cs);
    for (int i = 0; i < side->conns; i++) {
        cs[i] = dial(side->role, i);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = cs[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, cs[i]->fd, &e);
    }
    struct epoll_event ev[256];
    uint64_t start = now_ns();
    long sent = 0;
    int next = 0;
    while (!stopping) {
        if (side->role == 0) {
            if (opt.rate > 0) {
                long due = (now_ns() - start) * 1e-9 * opt.rate / opt.batch;
                while (sent < due) {
                    Conn *c = cs[next++ % side->conns];
                    publish(c);
                    sent++;
                    if (flush_out(c) < 0) goto done;
                }
            } else {
                for (int i = 0; i < side->conns; i++) {
                    while (!cs[i]->handshakes && cs[i]->outstanding < opt.window) publish(cs[i]);
                    if (flush_out(cs[i]) < 0) goto done;
                }
            }
        }
        int n = epoll_wait(ep, ev, 256, opt.rate > 0 && side->role == 0 ? 1 : 100);
        for (int i = 0; i < n; i++) {
            Conn *c = ev[i].data.ptr;
            if (on_readable(c) < 0) {
                fprintf(stderr, "nsqload: the server closed connection %d\n", c->id);
                errors++;
                epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL);
                if (side->role != 2) goto done;
            }
        }
        for (int i = 0; i < side->conns; i++)
            if (cs[i]->out_len) flush_out(cs[i]);
    }
done:
    stopping = 1;              /* one side alone would wait for the other in vain */
    for (int i = 0; i < side->conns; i++) close(cs[i]->fd);
    return NULL;
}

/* ---- the sink: the least that a server can do ---- */
static void sink(void) {
    int ls = socket(AF_INET, SOCK_STREAM, 0), one = 1, ep = epoll_create1(0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
    inet_pton(AF_INET, opt.host, &a.sin_addr);
    setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(ls, (void *)&a, sizeof a) < 0 || listen(ls, 1024) < 0) die("listen");
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, ev[64];
    epoll_ctl(ep, EPOLL_CTL_ADD, ls, &e);
    size_t frame = MSG_HEAD + opt.size;
    int canned = 100;
    uint8_t *page = calloc(canned, frame);
    for (int i = 0; i < canned; i++) {
        uint8_t *p = page + i * frame;
        put32(p, frame - 4);
        put32(p + 4, 2);
        p[17] = 1;
        memcpy(p + 18, "0123456789abcdef", 16);
    }
    static const uint8_t ok[] = {0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'};
    while (!stopping) {
        int n = epoll_wait(ep, ev, 64, 200);
        for (int i = 0; i < n; i++) {
            Conn *c = ev[i].data.ptr;
            if (!c) {
                int fd = accept(ls, NULL, NULL);
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
                c = calloc(1, sizeof *c);
                c->fd = fd; c->in_cap = 1 << 20; c->in = malloc(c->in_cap); c->handshakes = 1;
                struct epoll_event ne = {.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ne);
                continue;
            }
            ssize_t r = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
            if (r <= 0) { if (r == 0 || errno != EAGAIN) { close(c->fd); } continue; }
            c->in_len += r;
            size_t off = 0;
            if (c->handshakes && c->in_len >= 4) { off = 4; c->handshakes = 0; }
            while (off < c->in_len) {
                uint8_t *p = c->in + off, *nl = memchr(p, '\n', c->in_len - off);
                if (!nl) break;
                if (*p == 'F') { off = nl + 1 - c->in; c->outstanding++; continue; }
                if (*p == 'R') { c->outstanding += atoi((char *)p + 4); off = nl + 1 - c->in; continue; }
                if (*p == 'N') { off = nl + 1 - c->in; continue; }
                if (*p == 'S') { out_bytes(c, ok, 10); off = nl + 1 - c->in; continue; }
                if (c->in + c->in_len - nl - 1 < 4) break;
                uint32_t body = get32(nl + 1);
                if ((size_t)(c->in + c->in_len - nl - 5) < body) break;
                out_bytes(c, ok, 10);
                off = nl + 5 + body - c->in;
            }
            memmove(c->in, c->in + off, c->in_len - off);
            c->in_len -= off;
            while (c->outstanding >= canned) { out_bytes(c, page, canned * frame); c->outstanding -= canned; }
            flush_out(c);
        }
    }
}

static void stop(int s) { (void)s; stopping = 1; }

int main(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: nsqload pub|sub|pubsub|idle|sink [--host H] [--port N] [--topic T] [--channel C]\n"
                        "  [--channels N] [--conns N] [--size BYTES] [--batch N] [--window N] [--rdy N]\n"
                        "  [--rate MSGS_PER_S] [--seconds S] [--count N (stop after N messages)] [--topics N] [--http 1]\n"
                        "  [--defer MS] [--requeue N] [--ignore N] [--msg-timeout MS]\n");
        return 2;
    }
    opt.mode = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        if (!strcmp(k, "--host")) opt.host = v;
        else if (!strcmp(k, "--port")) opt.port = atoi(v);
        else if (!strcmp(k, "--topic")) opt.topic = v;
        else if (!strcmp(k, "--channel")) opt.channel = v;
        else if (!strcmp(k, "--channels")) opt.channels = atoi(v);
        else if (!strcmp(k, "--conns")) opt.conns = atoi(v);
        else if (!strcmp(k, "--topics")) opt.topics = atoi(v);
        else if (!strcmp(k, "--http")) opt.http = atoi(v);
        else if (!strcmp(k, "--defer")) opt.defer = atoi(v);
        else if (!strcmp(k, "--requeue")) opt.requeue = atoi(v);
        else if (!strcmp(k, "--ignore")) opt.ignore = atoi(v);
        else if (!strcmp(k, "--msg-timeout")) opt.msg_timeout = atoi(v);
        else if (!strcmp(k, "--size")) opt.size = atoi(v);
        else if (!strcmp(k, "--batch")) opt.batch = atoi(v);
        else if (!strcmp(k, "--window")) opt.window = atoi(v);
        else if (!strcmp(k, "--rdy")) opt.rdy = atoi(v);
        else if (!strcmp(k, "--rate")) opt.rate = atof(v);
        else if (!strcmp(k, "--seconds")) opt.seconds = atof(v);
        else if (!strcmp(k, "--count")) opt.count = atol(v);
        else { fprintf(stderr, "nsqload: no option %s\n", k); return 2; }
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    if (!strcmp(opt.mode, "sink")) { sink(); return 0; }
    if (opt.port <= 0 || opt.port > 65535 || opt.conns < 1 || opt.channels < 1 || opt.topics < 1 || opt.size < 1 ||
        opt.batch < 1 || opt.window < 1 || (opt.defer && opt.batch > 1)) {
        fprintf(stderr, "nsqload: a number is out of range, or --defer has a --batch\n");
        return 2;
    }
    build_requests();
    pthread_t threads[2];
    Side sides[2];
    int n = 0, least = opt.channels * opt.topics, consumers = opt.conns > least ? opt.conns : least;
    if (!strcmp(opt.mode, "sub") || !strcmp(opt.mode, "pubsub")) sides[n++] = (Side){1, consumers};
    if (!strcmp(opt.mode, "pub") || !strcmp(opt.mode, "pubsub")) sides[n++] = (Side){0, opt.conns};
    if (!strcmp(opt.mode, "idle")) sides[n++] = (Side){2, opt.conns};
    if (!n) { fprintf(stderr, "nsqload: no mode %s\n", opt.mode); return 2; }
    for (int i = 0; i < n; i++) {
        pthread_create(&threads[i], NULL, run_side, &sides[i]);
        if (i + 1 < n) /* consumers first */
            for (int waited = 0; subscribed < consumers && waited < 30000 && !stopping; waited++) usleep(1000);
    }
    uint64_t start = now_ns();
    long early = strcmp(opt.mode, "pubsub") ? 0 : consumed; /* what a sink pushed before the clock ran */
    while (!stopping && (now_ns() - start) * 1e-9 < opt.seconds) {
        usleep(5000);
        if (opt.count && (strcmp(opt.mode, "pub") ? consumed : published) >= opt.count) break;
    }
    double took = (now_ns() - start) * 1e-9;
    long p = published, c = consumed - early;
    if (!strcmp(opt.mode, "pubsub")) usleep(200000); /* let the tail arrive */
    stopping = 1;
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    printf("{\"mode\":\"%s\",\"seconds\":%.3f,\"published\":%ld,\"consumed\":%ld,\"pub_per_s\":%.0f,\"sub_per_s\":%.0f,"
           "\"errors\":%ld", opt.mode, took, p, c, p / took, c / took, errors);
    if (samples)
        printf(",\"latency_us\":{\"p50\":%.0f,\"p99\":%.0f,\"p999\":%.0f,\"max\":%.0f}", percentile_us(.5),
               percentile_us(.99), percentile_us(.999), worst / 1000.0);
    printf("}\n");
    return errors != 0;
}
