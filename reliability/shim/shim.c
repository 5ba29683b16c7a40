/* Stands between nsqd and the C library, by LD_PRELOAD: records what is done to a data directory, and refuses.

   NSQUARK_SHIM_ROOT     the data directory; calls on anything else pass through
   NSQUARK_SHIM_TRACE    a file to which every call that changes something is appended, see trace.py
   NSQUARK_SHIM_FAULTS   a file with the calls to refuse, read again whenever another file has its name
   NSQUARK_SHIM_HITS     a file to which a line is appended for every call that was refused
   NSQUARK_SHIM_FSYNC_US how long a recorded fsync takes, in microseconds; the real one is not called then

   A line of the faults is "errno call skip times pattern": the calls of that kind on paths (from the root on) that
   match the pattern fail, after the first `skip` of them, and `times` times (-1: for ever). The calls are
   open, read, write, fsync, truncate, rename, unlink and mkdir.

   A call and its record are one step, under a lock, so that the order of the records is that of the calls.
   An fsync is two records, since it covers what was done before it began, and counts once it has ended. */

#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATE = 1, TRUNCATE, WRITE, RENAME, LINK, UNLINK, MKDIR, RMDIR, SYNC_BEGINS, SYNC_ENDS, SYNC_FAILS, SEND };

struct record { /* everything little-endian, as the machine has it */
    uint32_t path_length, data_length;
    uint64_t kind, time, inode;
    int64_t number; /* offset, size, token of an fsync, or bytes sent to a socket so far */
};

struct fault {
    int error;
    char call[16], pattern[256];
    long skip, times;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int trace = -1, hits = -1;
static long fsync_us = -1;
static const char *faults_path;
static struct timespec faults_time;
static ino_t faults_inode;
static struct fault faults[64];
static int fault_count;
static int64_t tokens;
#define DESCRIPTORS 65536
static int64_t sent[DESCRIPTORS];
static uint64_t sockets[DESCRIPTORS]; /* which one the descriptor was: descriptors are used again */

static int raw_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600); }

__attribute__((constructor)) static void begin(void) {
    const char *value = getenv("NSQUARK_SHIM_ROOT");
    if (!value || !realpath(value, root)) return;
    root_length = strlen(root);
    if ((value = getenv("NSQUARK_SHIM_TRACE"))) trace = raw_open(value, O_WRONLY | O_CREAT | O_APPEND);
    if ((value = getenv("NSQUARK_SHIM_HITS"))) hits = raw_open(value, O_WRONLY | O_CREAT | O_APPEND);
    if ((value = getenv("NSQUARK_SHIM_FSYNC_US"))) fsync_us = atol(value);
    faults_path = getenv("NSQUARK_SHIM_FAULTS");
}

/* ---- paths */

static const char *under_root(const char *path) {
    if (!root_length || strncmp(path, root, root_length)) return NULL;
    if (!path[root_length]) return "";
    return path[root_length] == '/' ? path + root_length + 1 : NULL;
}

/* The path of a descriptor, as it is now: "socket:[...]" and the like for what is no file. */
static int fd_path(int fd, char *path) {
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, name, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static const char *fd_under_root(int fd, char *path) {
    if (!root_length) return NULL;
    return fd_path(fd, path) ? under_root(path) : NULL;
}

/* From the root on; NULL for a path elsewhere. Directories in the path are no links: nsqd makes none. */
static const char *resolve(int folder, const char *path, char *whole) {
    if (!root_length || !path) return NULL;
    if (path[0] == '/') {
        snprintf(whole, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX];
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, base, sizeof base) < 0) return NULL;
        } else if (!fd_path(folder, base)) return NULL;
        size_t length = strlen(base);
        if (length + strlen(path) + 2 > PATH_MAX) return NULL;
        memcpy(whole, base, length);
        whole[length] = '/';
        strcpy(whole + length + 1, path);
    }
    size_t length = strlen(whole);
    while (length > 1 && whole[length - 1] == '/') whole[--length] = 0;
    return under_root(whole);
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static uint64_t inode_at(const char *whole) {
    struct stat found;
    return fstatat(AT_FDCWD, whole, &found, AT_SYMLINK_NOFOLLOW) ? 0 : found.st_ino;
}

/* ---- the trace */

static void note(int kind, uint64_t inode, int64_t number, const char *path, const struct iovec *data, int pieces, size_t size) {
    if (trace < 0) return;
    int kept = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct record record = {path ? strlen(path) : 0, size, kind, now.tv_sec * 1000000000ull + now.tv_nsec, inode, number};
    struct iovec parts[66] = {{&record, sizeof record}, {(void *)path, record.path_length}};
    int count = 2;
    for (int at = 0; at < pieces && size && count < 66; at++) {
        size_t length = data[at].iov_len < size ? data[at].iov_len : size;
        parts[count++] = (struct iovec){data[at].iov_base, length};
        size -= length;
    }
    if (size || syscall(SYS_writev, trace, parts, count) < 0) abort(); /* a trace with holes proves nothing */
    errno = kept;
}

static void note_two(int kind, uint64_t inode, const char *from, const char *to) {
    struct iovec data = {(void *)to, strlen(to)};
    note(kind, inode, 0, from, &data, 1, strlen(to));
}

/* ---- faults */

static void read_faults(void) {
    struct stat found;
    if (fstatat(AT_FDCWD, faults_path, &found, 0)) {
        fault_count = 0;
        faults_inode = 0;
        return;
    }
    if (found.st_ino == faults_inode && !memcmp(&found.st_mtim, &faults_time, sizeof faults_time)) return;
    faults_inode = found.st_ino;
    faults_time = found.st_mtim;
    fault_count = 0;
    char text[16384];
    int fd = raw_open(faults_path, O_RDONLY);
    if (fd < 0) return;
    ssize_t length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && fault_count < 64; line = strtok_r(NULL, "\n", &rest)) {
        struct fault *fault = &faults[fault_count];
        if (sscanf(line, "%d %15s %ld %ld %255s", &fault->error, fault->call, &fault->skip, &fault->times, fault->pattern) == 5)
            fault_count++;
    }
}

/* Whether this call on this path is to fail; sets errno then. The caller holds the lock. */
static int refused(const char *call, const char *path) {
    if (!faults_path || !path) return 0;
    int kept = errno;
    read_faults();
    for (int at = 0; at < fault_count; at++) {
        struct fault *fault = &faults[at];
        if (strcmp(fault->call, call) || fnmatch(fault->pattern, path, 0)) continue;
        if (fault->skip > 0) { fault->skip--; continue; }
        if (!fault->times) continue;
        if (fault->times > 0) fault->times--;
        if (hits >= 0) {
            char line[PATH_MAX];
            int length = snprintf(line, sizeof line, "%d %s %s\n", fault->error, call, path);
            syscall(SYS_write, hits, line, length);
        }
        errno = fault->error;
        return 1;
    }
    errno = kept;
    return 0;
}

static int refused_fd(const char *call, int fd) {
    if (!faults_path) return 0;
    int kept = errno;
    char path[PATH_MAX];
    const char *inside = fd_under_root(fd, path);
    errno = kept;
    if (!inside) return 0;
    pthread_mutex_lock(&lock);
    int result = refused(call, inside);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- opening */

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    const char *inside = resolve(folder, path, whole);
    if (!inside) return (int)syscall(SYS_openat, folder, path, flags, mode);
    pthread_mutex_lock(&lock);
    int fd = -1;
    if (!refused("open", inside)) {
        uint64_t before = flags & (O_CREAT | O_TRUNC) ? inode_at(whole) : 0;
        fd = (int)syscall(SYS_openat, folder, path, flags, mode);
        if (fd >= 0 && !before && flags & O_CREAT) note(CREATE, inode_of(fd), 0, inside, NULL, 0, 0);
        else if (fd >= 0 && flags & O_TRUNC) note(TRUNCATE, before, 0, inside, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, last); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* ---- reading: only ever refused */

ssize_t read(int fd, void *data, size_t size) {
    return refused_fd("read", fd) ? -1 : syscall(SYS_read, fd, data, size);
}
ssize_t pread(int fd, void *data, size_t size, off_t offset) {
    return refused_fd("read", fd) ? -1 : syscall(SYS_pread64, fd, data, size, offset);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
    return refused_fd("read", fd) ? -1 : syscall(SYS_pread64, fd, data, size, offset);
}

/* ---- writing, to files and to sockets */

static void note_sent(int fd, ssize_t size) {
    struct sockaddr_in peer = {0}, own = {0};
    socklen_t length = sizeof peer, own_length = sizeof own;
    if (trace < 0 || size <= 0 || fd >= DESCRIPTORS) return;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) || getsockname(fd, (struct sockaddr *)&own, &own_length)) return;
    if (peer.sin_family != AF_INET) return;
    uint64_t socket = inode_of(fd);
    if (sockets[fd] != socket) { sockets[fd] = socket; sent[fd] = 0; }
    sent[fd] += size;
    /* A client's port alone is not enough: it may be connected to two ports of ours at once. */
    note(SEND, (uint64_t)ntohs(own.sin_port) << 16 | ntohs(peer.sin_port), sent[fd], NULL, NULL, 0, 0);
}

enum { BY_WRITE, BY_PWRITE, BY_SEND };

static ssize_t written(int fd, const struct iovec *data, int pieces, int way, off64_t offset, const struct msghdr *message, int flags) {
    char path[PATH_MAX];
    int kept = errno;
    const char *inside = NULL;
    int is_socket = 0;
    if (root_length && fd_path(fd, path)) {
        inside = under_root(path);
        is_socket = !strncmp(path, "socket:", 7);
    }
    errno = kept;
    int noted = inside || (is_socket && trace >= 0);
    if (noted) pthread_mutex_lock(&lock);
    ssize_t size = -1;
    if (!inside || !refused("write", inside)) {
        if (way == BY_PWRITE) size = syscall(SYS_pwritev, fd, data, pieces, offset, 0);
        else if (way == BY_SEND) size = syscall(SYS_sendmsg, fd, message, flags);
        else size = pieces == 1 ? syscall(SYS_write, fd, data->iov_base, data->iov_len) : syscall(SYS_writev, fd, data, pieces);
        if (size > 0 && inside && trace >= 0) {
            off64_t at = way == BY_PWRITE ? offset : lseek64(fd, 0, SEEK_CUR) - size;
            note(WRITE, inode_of(fd), at, inside, data, pieces, size);
        } else if (size > 0 && is_socket) note_sent(fd, size);
    }
    if (noted) { kept = errno; pthread_mutex_unlock(&lock); errno = kept; }
    return size;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec piece = {(void *)data, size};
    return written(fd, &piece, 1, BY_WRITE, 0, NULL, 0);
}
ssize_t writev(int fd, const struct iovec *data, int pieces) { return written(fd, data, pieces, BY_WRITE, 0, NULL, 0); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    struct iovec piece = {(void *)data, size};
    return written(fd, &piece, 1, BY_PWRITE, offset, NULL, 0);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    return written(fd, message->msg_iov, message->msg_iovlen, BY_SEND, 0, message, flags);
}
ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    struct iovec piece = {(void *)data, size};
    struct msghdr message = {.msg_name = (void *)to, .msg_namelen = length, .msg_iov = &piece, .msg_iovlen = 1};
    return sendmsg(fd, &message, flags);
}
ssize_t send(int fd, const void *data, size_t size, int flags) { return sendto(fd, data, size, flags, NULL, 0); }

/* A copy within the kernel would pass by unseen: the caller copies by itself. To sockets it goes on, and is counted. */
ssize_t sendfile64(int to, int from, off64_t *offset, size_t size) {
    char path[PATH_MAX];
    if (fd_under_root(to, path)) { errno = EINVAL; return -1; }
    if (refused_fd("read", from)) return -1;
    if (trace >= 0) pthread_mutex_lock(&lock);
    ssize_t done = syscall(SYS_sendfile, to, from, offset, size);
    int kept = errno;
    if (trace >= 0) { note_sent(to, done); pthread_mutex_unlock(&lock); }
    errno = kept;
    return done;
}
ssize_t sendfile(int to, int from, off_t *offset, size_t size) { return sendfile64(to, from, (off64_t *)offset, size); }
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *offset, size_t size, unsigned flags) {
    char path[PATH_MAX];
    if (fd_under_root(to, path)) { errno = EXDEV; return -1; }
    return syscall(SYS_copy_file_range, from, at, to, offset, size, flags);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    char path[PATH_MAX];
    if (fd_under_root(fd, path)) { errno = EOPNOTSUPP; return -1; }
    return (int)syscall(SYS_fallocate, fd, mode, offset, size);
}
int fallocate(int fd, int mode, off_t offset, off_t size) { return fallocate64(fd, mode, offset, size); }

int ftruncate64(int fd, off64_t size) {
    char path[PATH_MAX];
    const char *inside = fd_under_root(fd, path);
    if (!inside) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int result = refused("truncate", inside) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
    if (!result) note(TRUNCATE, inode_of(fd), size, inside, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int truncate64(const char *path, off64_t size) {
    char whole[PATH_MAX];
    const char *inside = resolve(AT_FDCWD, path, whole);
    if (!inside) return (int)syscall(SYS_truncate, path, size);
    pthread_mutex_lock(&lock);
    int result = refused("truncate", inside) ? -1 : (int)syscall(SYS_truncate, path, size);
    if (!result) note(TRUNCATE, inode_at(whole), size, inside, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }

/* ---- names */

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    char whole_from[PATH_MAX], whole_to[PATH_MAX];
    const char *inside = resolve(from_folder, from, whole_from);
    const char *target = resolve(to_folder, to, whole_to);
    if (!inside || !target) return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    pthread_mutex_lock(&lock);
    int result = refused("rename", inside) || refused("rename", target) ? -1
        : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    if (!result) note_two(RENAME, inode_at(whole_to), inside, target);
    pthread_mutex_unlock(&lock);
    return result;
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) { return renameat2(from_folder, from, to_folder, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char whole_from[PATH_MAX], whole_to[PATH_MAX];
    const char *inside = resolve(from_folder, from, whole_from);
    const char *target = resolve(to_folder, to, whole_to);
    if (!inside || !target) return (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    pthread_mutex_lock(&lock);
    int result = refused("rename", target) ? -1 : (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    if (!result) note_two(LINK, inode_at(whole_to), inside, target);
    pthread_mutex_unlock(&lock);
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char *path, int flags) {
    char whole[PATH_MAX];
    const char *inside = resolve(folder, path, whole);
    if (!inside) return (int)syscall(SYS_unlinkat, folder, path, flags);
    pthread_mutex_lock(&lock);
    int result = refused("unlink", inside) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
    if (!result) note(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, inside, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char whole[PATH_MAX];
    const char *inside = resolve(folder, path, whole);
    if (!inside) return (int)syscall(SYS_mkdirat, folder, path, mode);
    pthread_mutex_lock(&lock);
    int result = refused("mkdir", inside) ? -1 : (int)syscall(SYS_mkdirat, folder, path, mode);
    if (!result) note(MKDIR, inode_at(whole), 0, inside, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* ---- fsync */

static int synced(int fd, long number) {
    char path[PATH_MAX];
    const char *inside = fd_under_root(fd, path);
    if (!inside) return (int)syscall(number, fd);
    pthread_mutex_lock(&lock);
    int64_t token = ++tokens;
    uint64_t inode = inode_of(fd);
    note(SYNC_BEGINS, inode, token, inside, NULL, 0, 0);
    int result = refused("fsync", inside) ? -1 : 0, error = errno;
    pthread_mutex_unlock(&lock);
    if (!result && fsync_us >= 0) usleep(fsync_us);
    else if (!result) { result = (int)syscall(number, fd); error = errno; }
    pthread_mutex_lock(&lock);
    note(result ? SYNC_FAILS : SYNC_ENDS, inode, token, inside, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }
int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
    return (int)syscall(SYS_sync_file_range, fd, offset, size, flags); /* promises nothing, so it is not noted */
}
