// Preloaded into a process (LD_PRELOAD): counts its calls that change files of one folder, logs them, lets one fail.
//
// `disk_faults_arm` begins. A call counts if its path or descriptor lies in the folder. The log has a record per call,
// with what was written, from which a power cut can be replayed. Nothing waits for the disk: fsync only is logged.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// The same numbers are in disk_faults.py.
enum op {
    OPEN = 1, WRITE, FSYNC, TRUNCATE, ALLOCATE, RENAME, EXCHANGE, LINK, SYMLINK,
    UNLINK, MKDIR, RMDIR, MODE, CLOSE, MSYNC
};
enum effect { NONE, ONCE, FULL, LASTING, SHORT, KILL, KILL_HALF };

struct record {
    int64_t op, result, error, inode, flags, offset, length, first, second, data;
};
struct call {
    enum op op;
    int descriptor;  // or -1
    char first[PATH_MAX], second[PATH_MAX];
    int64_t flags, offset, length, inode;
};

static struct {
    char folder[PATH_MAX];
    size_t length;
    int log, error, keep;
    enum effect effect;
    int64_t number, *count;  // shared with processes that are forked later
} state;
static volatile int armed;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define RAW(...) syscall(__VA_ARGS__)

__attribute__((visibility("default"))) int disk_faults_arm(
    const char *folder, const char *log, int64_t number, int effect, int error, int keep) {
    snprintf(state.folder, sizeof state.folder, "%s", folder);
    state.length = strlen(folder);
    state.number = number, state.effect = effect, state.error = error, state.keep = keep;
    state.count = mmap(NULL, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    state.log = (int)RAW(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (state.log < 0 || state.count == MAP_FAILED) return -1;
    armed = 1;
    return 0;
}

static int inside(const char *path) {
    return !strncmp(path, state.folder, state.length) && (path[state.length] == '/' || !path[state.length]);
}

static int of_descriptor(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = RAW(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    char *deleted = strstr(path, " (deleted)");
    if (deleted) *deleted = 0;
    return length > 0 && inside(path);
}

static int of_path(int folder, const char *name, char *path) {
    if (!name) return path[0] = 0;
    size_t length = 0;
    if (name[0] != '/') {
        if (folder == AT_FDCWD) {
            if (RAW(SYS_getcwd, path, PATH_MAX) < 0) path[0] = 0;
        } else {
            of_descriptor(folder, path);
        }
        length = strlen(path);
        path[length++] = '/';
    }
    snprintf(path + length, PATH_MAX - length, "%s", name);
    length = strlen(path);
    while (length > 1 && path[length - 1] == '/') path[--length] = 0;
    return inside(path);
}

static int64_t inode_of(const struct call *call) {
    struct stat info;
    const char *path = call->second[0] ? call->second : call->first;
    int failed = call->descriptor >= 0 ? fstat(call->descriptor, &info) : lstat(path, &info);
    return failed ? 0 : (int64_t)info.st_ino;
}

static void log_call(const struct call *call, int64_t result, int error, const struct iovec *data, int parts) {
    struct record record = {call->op, result, error, call->inode, call->flags, call->offset, call->length, 0, 0, 0};
    struct iovec out[64] = {{&record, sizeof record}};
    record.first = (int64_t)strlen(call->first), record.second = (int64_t)strlen(call->second);
    out[1] = (struct iovec){(void *)call->first, strlen(call->first)};
    out[2] = (struct iovec){(void *)call->second, strlen(call->second)};
    int last = 3;
    int64_t left = state.keep && result > 0 && data ? result : 0;
    record.data = left;
    for (int i = 0; i < parts && left > 0; i++) {
        int64_t length = (int64_t)data[i].iov_len < left ? (int64_t)data[i].iov_len : left;
        out[last++] = (struct iovec){data[i].iov_base, (size_t)length};
        left -= length;
    }
    RAW(SYS_writev, state.log, out, last);
}

static int allocates(enum op op) {
    return op != UNLINK && op != RMDIR && op != CLOSE && op != MODE && op != RENAME && op != EXCHANGE;
}

// Begin a call: the lock is held until `end_call`. The answer says whether it runs, wholly or in part, or fails.
enum answer { RUN, FAIL, HALF };
static enum answer begin_call(struct call *call) {
    pthread_mutex_lock(&order);
    int64_t number = __atomic_add_fetch(state.count, 1, __ATOMIC_SEQ_CST);
    int64_t past = state.number ? number - state.number : -1;
    if (past < 0 || state.effect == NONE) return RUN;
    if (past == 0) {
        if (state.effect == KILL) {
            log_call(call, -1, 0, NULL, 0);
            kill(getpid(), SIGKILL);
            pause();
        }
        return (state.effect == SHORT || state.effect == KILL_HALF) && call->op == WRITE ? HALF : FAIL;
    }
    if (state.effect == LASTING) return FAIL;
    if ((state.effect == FULL || state.effect == SHORT) && allocates(call->op)) return FAIL;
    return RUN;
}

static int64_t end_call(struct call *call, int64_t result, const struct iovec *data, int parts) {
    int error = errno;
    if (result >= 0 && call->op != CLOSE) call->inode = inode_of(call);
    log_call(call, result, result < 0 ? error : 0, data, parts);
    if (state.effect == KILL_HALF && *state.count == state.number) {
        kill(getpid(), SIGKILL);
        pause();
    }
    pthread_mutex_unlock(&order);
    errno = error;
    return result;
}

#define WATCH_PATH(operation, folder, name) \
    struct call call = {.op = operation, .descriptor = -1}; \
    int watched = armed && of_path(folder, name, call.first)
#define WATCH_PATHS(operation, folder, name, other_folder, other_name) \
    struct call call = {.op = operation, .descriptor = -1}; \
    int watched = armed && (of_path(folder, name, call.first) | of_path(other_folder, other_name, call.second))
#define WATCH_DESCRIPTOR(operation, number) \
    struct call call = {.op = operation, .descriptor = number}; \
    int before = errno, watched = armed && of_descriptor(number, call.first); \
    errno = before
#define RUN_CALL(expression) \
    do { \
        if (!watched) return (expression); \
        int64_t result = begin_call(&call) == FAIL ? (errno = state.error, -1) : (int64_t)(expression); \
        return end_call(&call, result, NULL, 0); \
    } while (0)

static int open_watched(int folder, const char *name, int flags, mode_t mode) {
    WATCH_PATH(OPEN, folder, name);
    int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
    if (!watched || !writes || (flags & O_PATH)) return (int)RAW(SYS_openat, folder, name, flags, mode);
    struct stat info;
    int existed = !lstat(call.first, &info);
    call.flags = (existed ? 0 : 1) | (flags & O_TRUNC ? 2 : 0);  // created, emptied
    int descriptor = begin_call(&call) == FAIL ? (errno = state.error, -1)
                                               : (int)RAW(SYS_openat, folder, name, flags, mode);
    call.descriptor = descriptor;
    return (int)end_call(&call, descriptor, NULL, 0);
}
#define OPEN_MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
int open(const char *name, int flags, ...) { OPEN_MODE(flags) return open_watched(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { OPEN_MODE(flags) return open_watched(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) {
    OPEN_MODE(flags)
    return open_watched(folder, name, flags, mode);
}
int openat64(int folder, const char *name, int flags, ...) {
    OPEN_MODE(flags)
    return open_watched(folder, name, flags, mode);
}
int __open_2(const char *name, int flags) { return open_watched(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return open_watched(AT_FDCWD, name, flags, 0); }
int __openat_2(int folder, const char *name, int flags) { return open_watched(folder, name, flags, 0); }
int __openat64_2(int folder, const char *name, int flags) { return open_watched(folder, name, flags, 0); }
int creat(const char *name, mode_t mode) { return open_watched(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return creat(name, mode); }

static ssize_t write_watched(int descriptor, const struct iovec *parts, int count, off_t position) {
    WATCH_DESCRIPTOR(WRITE, descriptor);
    if (!watched)
        return position < 0 ? RAW(SYS_writev, descriptor, parts, count)
                            : RAW(SYS_pwritev, descriptor, parts, count, position, 0);
    struct stat info;
    off_t start = position;
    if (start < 0)
        start = fcntl(descriptor, F_GETFL) & O_APPEND ? (fstat(descriptor, &info) ? 0 : info.st_size)
                                                      : lseek(descriptor, 0, SEEK_CUR);
    call.offset = start;
    for (int i = 0; i < count; i++) call.length += (int64_t)parts[i].iov_len;
    enum answer answer = begin_call(&call);
    if (answer == HALF && call.length < 2) answer = FAIL;
    struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
    if (answer == HALF) parts = &half, count = 1;
    ssize_t written = answer == FAIL ? (errno = state.error, -1)
                      : position < 0 ? RAW(SYS_writev, descriptor, parts, count)
                                     : RAW(SYS_pwritev, descriptor, parts, count, position, 0);
    return end_call(&call, written, parts, count);
}
ssize_t write(int descriptor, const void *data, size_t length) {
    if (!armed) return RAW(SYS_write, descriptor, data, length);
    struct iovec part = {(void *)data, length};
    return write_watched(descriptor, &part, 1, -1);
}
ssize_t pwrite(int descriptor, const void *data, size_t length, off_t position) {
    struct iovec part = {(void *)data, length};
    return write_watched(descriptor, &part, 1, position);
}
ssize_t pwrite64(int descriptor, const void *data, size_t length, off_t position) {
    return pwrite(descriptor, data, length, position);
}
ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return write_watched(descriptor, parts, count, -1);
}
ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t position) {
    return write_watched(descriptor, parts, count, position);
}
ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off_t position) {
    return write_watched(descriptor, parts, count, position);
}

// Copies inside the kernel are given up, as by a file system that has none: their callers then write.
ssize_t sendfile(int out, int in, off_t *offset, size_t length) {
    WATCH_DESCRIPTOR(WRITE, out);
    return watched ? (errno = EINVAL, -1) : RAW(SYS_sendfile, out, in, offset, length);
}
ssize_t sendfile64(int out, int in, off_t *offset, size_t length) { return sendfile(out, in, offset, length); }
ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t length, unsigned flags) {
    WATCH_DESCRIPTOR(WRITE, out);
    return watched ? (errno = ENOSYS, -1) : RAW(SYS_copy_file_range, in, from, out, to, length, flags);
}

// The C library's own files do not go through `write`: each piece is passed on at once.
size_t fwrite(const void *data, size_t size, size_t items, FILE *file) {
    REAL(fwrite);
    int saved = errno, descriptor = armed ? fileno(file) : -1;
    errno = saved;
    WATCH_DESCRIPTOR(WRITE, descriptor);
    if (!watched || !size || !items) return real(data, size, items, file);
    fflush(file);
    const char *from = data;
    for (size_t left = size * items; left;) {
        ssize_t written = write(descriptor, from, left);
        if (written <= 0) return (size_t)(from - (const char *)data) / size;
        from += written, left -= (size_t)written;
    }
    return items;
}
FILE *fopen(const char *name, const char *mode) {
    REAL(fopen);
    WATCH_PATH(OPEN, AT_FDCWD, name);
    if (!watched || !strpbrk(mode, "wa+")) return real(name, mode);
    int flags = strchr(mode, '+') ? O_RDWR : O_WRONLY;
    flags |= mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0;
    int descriptor = open_watched(AT_FDCWD, name, flags | O_CLOEXEC, 0666);
    return descriptor < 0 ? NULL : fdopen(descriptor, mode);
}
FILE *fopen64(const char *name, const char *mode) { return fopen(name, mode); }
int fclose(FILE *file) {
    REAL(fclose);
    WATCH_DESCRIPTOR(CLOSE, armed ? fileno(file) : -1);
    if (!watched) return real(file);
    enum answer answer = begin_call(&call);
    int result = real(file);
    if (answer == FAIL) errno = state.error, result = -1;
    return (int)end_call(&call, result, NULL, 0);
}
int close(int descriptor) {
    if (!armed) return (int)RAW(SYS_close, descriptor);
    WATCH_DESCRIPTOR(CLOSE, descriptor);
    if (!watched || (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY) return (int)RAW(SYS_close, descriptor);
    enum answer answer = begin_call(&call);
    int result = (int)RAW(SYS_close, descriptor);
    if (answer == FAIL) errno = state.error, result = -1;
    return (int)end_call(&call, result, NULL, 0);
}

int fsync(int descriptor) { WATCH_DESCRIPTOR(FSYNC, descriptor); RUN_CALL(watched ? 0 : RAW(SYS_fsync, descriptor)); }
int fdatasync(int descriptor) {
    WATCH_DESCRIPTOR(FSYNC, descriptor);
    RUN_CALL(watched ? 0 : RAW(SYS_fdatasync, descriptor));
}
int sync_file_range(int descriptor, off_t offset, off_t length, unsigned flags) {
    WATCH_DESCRIPTOR(MSYNC, descriptor);
    RUN_CALL(watched ? 0 : RAW(SYS_sync_file_range, descriptor, offset, length, flags));
}
int ftruncate(int descriptor, off_t length) {
    WATCH_DESCRIPTOR(TRUNCATE, descriptor);
    call.length = length;
    RUN_CALL(RAW(SYS_ftruncate, descriptor, length));
}
int ftruncate64(int descriptor, off_t length) { return ftruncate(descriptor, length); }
int truncate(const char *name, off_t length) {
    WATCH_PATH(TRUNCATE, AT_FDCWD, name);
    call.length = length;
    RUN_CALL(RAW(SYS_truncate, name, length));
}
int truncate64(const char *name, off_t length) { return truncate(name, length); }
int fallocate(int descriptor, int mode, off_t offset, off_t length) {
    WATCH_DESCRIPTOR(ALLOCATE, descriptor);
    call.flags = mode, call.offset = offset, call.length = length;
    RUN_CALL(RAW(SYS_fallocate, descriptor, mode, offset, length));
}
int fallocate64(int descriptor, int mode, off_t offset, off_t length) {
    return fallocate(descriptor, mode, offset, length);
}
int posix_fallocate(int descriptor, off_t offset, off_t length) {
    return fallocate(descriptor, 0, offset, length) ? errno : 0;
}
int posix_fallocate64(int descriptor, off_t offset, off_t length) {
    return posix_fallocate(descriptor, offset, length);
}

int renameat2(int folder, const char *from, int other, const char *to, unsigned flags) {
    WATCH_PATHS(flags & RENAME_EXCHANGE ? EXCHANGE : RENAME, folder, from, other, to);
    RUN_CALL(RAW(SYS_renameat2, folder, from, other, to, flags));
}
int renameat(int folder, const char *from, int other, const char *to) { return renameat2(folder, from, other, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int folder, const char *from, int other, const char *to, int flags) {
    WATCH_PATHS(LINK, folder, from, other, to);
    RUN_CALL(RAW(SYS_linkat, folder, from, other, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlinkat(const char *content, int folder, const char *name) {
    WATCH_PATH(SYMLINK, folder, name);
    struct iovec part = {(void *)content, strlen(content)};
    if (!watched) return (int)RAW(SYS_symlinkat, content, folder, name);
    int result = begin_call(&call) == FAIL ? (errno = state.error, -1) : (int)RAW(SYS_symlinkat, content, folder, name);
    end_call(&call, result < 0 ? result : (int64_t)part.iov_len, &part, 1);
    return result;
}
int symlink(const char *content, const char *name) { return symlinkat(content, AT_FDCWD, name); }
int unlinkat(int folder, const char *name, int flags) {
    WATCH_PATH(flags & AT_REMOVEDIR ? RMDIR : UNLINK, folder, name);
    RUN_CALL(RAW(SYS_unlinkat, folder, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) {
    struct stat info;
    return !lstat(name, &info) && S_ISDIR(info.st_mode) ? rmdir(name) : unlink(name);
}
int mkdirat(int folder, const char *name, mode_t mode) {
    WATCH_PATH(MKDIR, folder, name);
    RUN_CALL(RAW(SYS_mkdirat, folder, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int fchmod(int descriptor, mode_t mode) {
    WATCH_DESCRIPTOR(MODE, descriptor);
    RUN_CALL(RAW(SYS_fchmod, descriptor, mode));
}
int fchmodat(int folder, const char *name, mode_t mode, int flags) {
    WATCH_PATH(MODE, folder, name);
    RUN_CALL(flags ? (errno = ENOTSUP, -1) : RAW(SYS_fchmodat, folder, name, mode));
}
int chmod(const char *name, mode_t mode) { return fchmodat(AT_FDCWD, name, mode, 0); }
int utimensat(int folder, const char *name, const struct timespec times[2], int flags) {
    WATCH_PATH(MODE, folder, name);
    RUN_CALL(RAW(SYS_utimensat, folder, name, times, flags));
}
int futimens(int descriptor, const struct timespec times[2]) {
    WATCH_DESCRIPTOR(MODE, descriptor);
    RUN_CALL(RAW(SYS_utimensat, descriptor, NULL, times, 0));
}
int msync(void *address, size_t length, int flags) { return (int)RAW(SYS_msync, address, length, flags); }
