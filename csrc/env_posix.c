/* rs_env for POSIX systems, and the two small synchronisation objects. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "env.h"
#include "timed_wait.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#endif
#include <time.h>
#include <unistd.h>

static int negated(int result) { return result < 0 ? -errno : result; }

#ifndef EBADFD
#define EBADFD EINVAL
#endif

/* Files of a store are regular files. O_NONBLOCK prevents an open of a FIFO or a device from
 * blocking and has no effect on a regular file. */
static int system_open(const char *path, int flags, int mode) {
    const int is_directory = flags & O_DIRECTORY;
    if (!is_directory) flags |= O_NONBLOCK | O_NOCTTY;
    if (!is_directory && ((flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT)) flags |= O_NOFOLLOW;
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, (mode_t)mode);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno == ENXIO ? -EBADFD : -errno; /* a socket, a FIFO without a reader */
    if (is_directory) return fd;
    struct stat status;
    int error = 0;
    if (fstat(fd, &status) < 0) error = -errno;
    else if (S_ISDIR(status.st_mode)) error = -EISDIR;
    else if (!S_ISREG(status.st_mode)) error = -EBADFD;
    if (error == 0) return fd;
    close(fd);
    return error;
}

static int system_close(int fd) {
    /* On Linux the descriptor is closed even after EINTR: never retry. */
    int result = close(fd);
    return result < 0 && errno != EINTR ? -errno : 0;
}

static int system_ftruncate(int fd, int64_t size) {
    int result;
    do {
        result = ftruncate(fd, (off_t)size);
    } while (result < 0 && errno == EINTR);
    return negated(result);
}

static int system_fallocate_keep(int fd, int64_t position, int64_t size) {
#if defined(__linux__)
    int result;
    do {
        result = fallocate(fd, 0, (off_t)position, (off_t)size);
    } while (result < 0 && errno == EINTR);
    return negated(result);
#else
    (void)fd, (void)position, (void)size;
    return -EOPNOTSUPP;
#endif
}

static int system_punch(int fd, int64_t position, int64_t size) {
#if defined(__linux__)
    int result;
    do {
        result = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)position,
                           (off_t)size);
    } while (result < 0 && errno == EINTR);
    return negated(result);
#else
    (void)fd, (void)position, (void)size;
    return -EOPNOTSUPP;
#endif
}

static int system_mmap(int fd, int64_t size, int writable, void **base) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
#ifdef MAP_NORESERVE
    if (fd < 0) flags |= MAP_NORESERVE;
#endif
    void *p = mmap(NULL, (size_t)size, PROT_READ | (writable ? PROT_WRITE : 0), flags, fd, 0);
    if (p == MAP_FAILED) return -errno;
    *base = p;
    return 0;
}

static int system_munmap(void *base, int64_t size) { return negated(munmap(base, (size_t)size)); }

static int system_msync(void *base, int64_t size) {
    return negated(msync(base, (size_t)size, MS_SYNC));
}

static int system_madvise(void *base, int64_t size, int advice) {
    return negated(madvise(base, (size_t)size, advice));
}

static int system_mlock(void *base, int64_t size, int on_fault) {
    if (!on_fault) return negated(mlock(base, (size_t)size));
#if defined(MLOCK_ONFAULT)
    return negated(mlock2(base, (size_t)size, MLOCK_ONFAULT));
#else
    return -ENOSYS;
#endif
}

static int system_munlock(void *base, int64_t size) { return negated(munlock(base, (size_t)size)); }

static int system_fdatasync(int fd) {
#if defined(__APPLE__)
    return negated(fcntl(fd, F_FULLFSYNC));
#else
    int result;
    do {
        result = fdatasync(fd);
    } while (result < 0 && errno == EINTR);
    return negated(result);
#endif
}

static int system_fsync(int fd) {
    int result;
    do {
        result = fsync(fd);
    } while (result < 0 && errno == EINTR);
    return negated(result);
}

#if defined(__linux__)
/* Before Linux 5.8 syncfs returns 0 also after a failed write-back. Later, the kernel reports to an
 * open file each error of its superblock. A stacked or remote file system has its errors elsewhere:
 * only those are listed whose syncfs writes all data and reports all errors. */
static int syncfs_reports_errors(int fd) {
    struct utsname system;
    struct statfs found;
    int major = 0, minor = 0;
    if (uname(&system) < 0 || sscanf(system.release, "%d.%d", &major, &minor) != 2) return 0;
    if (major < 5 || (major == 5 && minor < 8)) return 0;
    if (fstatfs(fd, &found) < 0) return 0;
    switch ((uint64_t)found.f_type & 0xffffffff) {
    case 0xef53:     /* ext4 */
    case 0x58465342: /* XFS */
    case 0x9123683e: /* btrfs */
    case 0x01021994: /* tmpfs, which has no device */
        return 1;
    default:
        return 0;
    }
}
#endif

static int system_syncfs(int fd) {
#if defined(__linux__)
    return syncfs_reports_errors(fd) ? negated(syncfs(fd)) : -EOPNOTSUPP;
#else
    (void)fd;
    return -EOPNOTSUPP;
#endif
}

static int64_t system_pread(int fd, void *buffer, int64_t size, int64_t position) {
    int64_t done = 0;
    while (done < size) {
        ssize_t got = pread(fd, (char *)buffer + done, (size_t)(size - done),
                            (off_t)(position + done));
        if (got < 0) {
            if (errno == EINTR) continue;
            return -errno;
        }
        if (got == 0) break; /* end of file: the caller sees the short count */
        done += got;
    }
    return done;
}

static int64_t system_pwrite(int fd, const void *buffer, int64_t size, int64_t position) {
    ssize_t put;
    do {
        put = pwrite(fd, buffer, (size_t)size, (off_t)position);
    } while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

static int system_rename(const char *source, const char *target) {
    return negated(rename(source, target));
}

static int system_open_unnamed(const char *directory, int mode) {
#if defined(O_TMPFILE)
    int fd;
    do {
        fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, (mode_t)mode);
    } while (fd < 0 && errno == EINTR);
    /* A kernel or file system without O_TMPFILE handles the call as an open of the directory. */
    if (fd < 0 && (errno == EISDIR || errno == EINVAL)) return -EOPNOTSUPP;
    return negated(fd);
#else
    (void)directory, (void)mode;
    return -EOPNOTSUPP;
#endif
}

static int system_link_unnamed(int fd, const char *path) {
#if defined(O_TMPFILE)
    char source[32];
    if (linkat(fd, "", AT_FDCWD, path, AT_EMPTY_PATH) == 0) return 0;
    /* Kernels before 6.10 require CAP_DAC_READ_SEARCH and return ENOENT without it. */
    if (errno != ENOENT) return -errno;
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, source, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) return 0;
    return errno == ENOENT ? -EOPNOTSUPP : -errno;
#else
    (void)fd, (void)path;
    return -EOPNOTSUPP;
#endif
}

static int system_link(const char *source, const char *target) {
    return negated(link(source, target));
}
static int system_unlink(const char *path) { return negated(unlink(path)); }
static int system_mkdir(const char *path, int mode) { return negated(mkdir(path, (mode_t)mode)); }
static int system_rmdir(const char *path) { return negated(rmdir(path)); }

static int system_fsync_directory(const char *path) {
    int fd = system_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return -(RS_FAILED_OPEN | -fd);
    int result = system_fsync(fd);
    /* Some file systems do not support fsync on directories and order renames themselves. */
    if (result == -EINVAL || result == -ENOTSUP) result = 0;
    int closed = system_close(fd);
    return result < 0 ? result : closed;
}

/* Lock byte 0 through the open file description. Unlike a POSIX record lock, this lock is kept when
 * the process closes another descriptor of the file. The two kinds exclude each other. */
static int record_lock(int fd, short type) {
    struct flock range;
    memset(&range, 0, sizeof range);
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = 0;
    range.l_len = 1;
#if defined(F_OFD_SETLK)
    if (fcntl(fd, F_OFD_SETLK, &range) == 0) return 0;
    if (errno != EINVAL) return -errno;
#endif
    return negated(fcntl(fd, F_SETLK, &range));
}

static int system_lock(int fd) { return record_lock(fd, F_WRLCK); }

static int system_lock_directory(const char *path) {
    int fd = system_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fd;
    int result;
    do {
        result = flock(fd, LOCK_EX | LOCK_NB);
    } while (result < 0 && errno == EINTR);
    if (result == 0 || errno != EWOULDBLOCK) return fd; /* for example NFS: no directory locks */
    close(fd);
    return -EAGAIN;
}

static int system_unlock(int fd) {
    /* A forked child may share the open file description: closing it would not release the lock. */
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    return S_ISDIR(status.st_mode) ? negated(flock(fd, LOCK_UN)) : record_lock(fd, F_UNLCK);
}

static int64_t system_file_size(int fd) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    return (int64_t)status.st_size;
}

static int64_t system_link_count(int fd) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    return (int64_t)status.st_nlink;
}

static char entry_type(const struct dirent *entry) {
#if defined(DT_DIR)
    if (entry->d_type == DT_DIR) return RS_ENTRY_DIRECTORY;
    if (entry->d_type == DT_REG) return RS_ENTRY_FILE;
#else
    (void)entry;
#endif
    return RS_ENTRY_OTHER;
}

/* Appends the entries to a growing buffer; returns their size. */
static int64_t read_entries(DIR *directory, char **entries) {
    size_t used = 0, room = 0;
    char *buffer = NULL;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) break;
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        const size_t size = strlen(name) + 2;
        if (room - used < size) {
            room = 2 * room + size + 64;
            char *larger = realloc(buffer, room);
            if (larger == NULL) {
                free(buffer);
                return -ENOMEM;
            }
            buffer = larger;
        }
        buffer[used] = entry_type(entry);
        memcpy(buffer + used + 1, name, size - 1);
        used += size;
    }
    if (errno != 0) {
        const int error = errno;
        free(buffer);
        return -error;
    }
    *entries = buffer;
    return (int64_t)used;
}

static int64_t system_list_directory(const char *path, int follow, char **entries) {
    *entries = NULL;
    int fd = system_open(path, O_RDONLY | O_DIRECTORY | (follow ? 0 : O_NOFOLLOW), 0);
    if (fd < 0) return fd;
    DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        const int error = errno;
        close(fd);
        return -error;
    }
    const int64_t size = read_entries(directory, entries);
    closedir(directory);
    return size;
}

static int64_t system_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t system_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void rs_env_posix(rs_env *env) {
    env->open = system_open;
    env->close = system_close;
    env->ftruncate = system_ftruncate;
    env->fallocate = system_fallocate_keep;
    env->punch = system_punch;
    env->mmap = system_mmap;
    env->munmap = system_munmap;
    env->msync = system_msync;
    env->madvise = system_madvise;
    env->fdatasync = system_fdatasync;
    env->fsync = system_fsync;
    env->pread = system_pread;
    env->pwrite = system_pwrite;
    env->rename = system_rename;
    env->unlink = system_unlink;
    env->mkdir = system_mkdir;
    env->rmdir = system_rmdir;
    env->fsync_directory = system_fsync_directory;
    env->lock = system_lock;
    env->file_size = system_file_size;
    env->now_ms = system_now_ms;
    env->monotonic_ns = system_monotonic_ns;
    env->mlock = system_mlock;
    env->munlock = system_munlock;
    env->lock_directory = system_lock_directory;
    env->unlock = system_unlock;
    env->open_unnamed = system_open_unnamed;
    env->link_unnamed = system_link_unnamed;
    env->link = system_link;
    env->link_count = system_link_count;
    env->syncfs = system_syncfs;
    env->list_directory = system_list_directory;
}

/* A forked child inherits objects that its parent's threads sleep on. Destroying them in the child
 * would wait for threads that do not exist there; the child leaves them alone. */
struct rs_event {
    pid_t owner;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    _Atomic uint64_t sequence;
    _Atomic int32_t waiters;
};

rs_event *rs_event_new(void) {
    rs_event *event = calloc(1, sizeof *event);
    if (event == NULL) return NULL;
    event->owner = getpid();
    if (pthread_mutex_init(&event->mutex, NULL) != 0 ||
        rs_condition_init(&event->changed) != 0) {
        free(event);
        event = NULL;
    }
    return event;
}

void rs_event_free(rs_event *event) {
    if (event == NULL || event->owner != getpid()) return;
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->mutex);
    free(event);
}

uint64_t rs_event_sequence(const rs_event *event) {
    return atomic_load(&((rs_event *)(uintptr_t)event)->sequence);
}

void rs_event_signal(rs_event *event) {
    /* Sequentially consistent on both sides: either the waiter sees the new sequence, or this
     * thread sees the waiter. */
    atomic_fetch_add(&event->sequence, 1);
    if (atomic_load(&event->waiters) > 0) {
        pthread_mutex_lock(&event->mutex);
        pthread_cond_broadcast(&event->changed);
        pthread_mutex_unlock(&event->mutex);
    }
}

int rs_event_wait(rs_event *event, uint64_t seen, int64_t timeout_ms) {
    const struct timespec until = rs_deadline(timeout_ms);
    pthread_mutex_lock(&event->mutex);
    atomic_fetch_add(&event->waiters, 1);
    int result = 0;
    while (atomic_load(&event->sequence) == seen && result == 0)
        result = pthread_cond_timedwait(&event->changed, &event->mutex, &until);
    atomic_fetch_sub(&event->waiters, 1);
    int moved = atomic_load(&event->sequence) != seen;
    pthread_mutex_unlock(&event->mutex);
    return moved;
}

#if defined(__linux__)
/* The release is a plain store. A mutex would use a locked instruction, which waits until the
 * record that was just copied has left the store buffer. The release may therefore miss a thread
 * that is about to sleep; that thread wakes up after one timeout. */
struct rs_lock {
    pid_t owner;
    _Atomic uint32_t taken;
    _Atomic int32_t waiters;
};

enum { LOCK_SPINS = 200, LOCK_SLEEP_NS = 500000 };

rs_lock *rs_lock_new(void) {
    rs_lock *lock = calloc(1, sizeof *lock);
    if (lock != NULL) lock->owner = getpid();
    return lock;
}

void rs_lock_free(rs_lock *lock) {
    if (lock != NULL && lock->owner == getpid()) free(lock);
}

int rs_lock_try(rs_lock *lock) {
    return atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
}

int rs_lock_take_for(rs_lock *lock, int64_t timeout_ms) {
    for (int i = 0; i < LOCK_SPINS; i++) {
        if (rs_lock_try(lock)) return 1;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    const struct timespec sleep = {0, LOCK_SLEEP_NS};
    const int64_t end = timeout_ms < 0 ? INT64_MAX : system_monotonic_ns() + timeout_ms * 1000000;
    atomic_fetch_add(&lock->waiters, 1);
    int taken;
    while (!(taken = rs_lock_try(lock)) && system_monotonic_ns() < end)
        syscall(SYS_futex, &lock->taken, FUTEX_WAIT_PRIVATE, 1, &sleep, NULL, 0);
    atomic_fetch_sub(&lock->waiters, 1);
    return taken;
}

void rs_lock_take(rs_lock *lock) { rs_lock_take_for(lock, -1); }

void rs_lock_release(rs_lock *lock) {
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
    if (atomic_load_explicit(&lock->waiters, memory_order_relaxed) > 0)
        syscall(SYS_futex, &lock->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#else
struct rs_lock {
    pid_t owner;
    pthread_mutex_t mutex;
};

rs_lock *rs_lock_new(void) {
    rs_lock *lock = calloc(1, sizeof *lock);
    if (lock == NULL) return NULL;
    lock->owner = getpid();
    if (pthread_mutex_init(&lock->mutex, NULL) != 0) {
        free(lock);
        lock = NULL;
    }
    return lock;
}

void rs_lock_free(rs_lock *lock) {
    if (lock == NULL || lock->owner != getpid()) return;
    pthread_mutex_destroy(&lock->mutex);
    free(lock);
}

int rs_lock_try(rs_lock *lock) { return pthread_mutex_trylock(&lock->mutex) == 0; }
void rs_lock_take(rs_lock *lock) { pthread_mutex_lock(&lock->mutex); }
void rs_lock_release(rs_lock *lock) { pthread_mutex_unlock(&lock->mutex); }

int rs_lock_take_for(rs_lock *lock, int64_t timeout_ms) {
    const struct timespec sleep = {0, 500000};
    const int64_t end = system_monotonic_ns() + timeout_ms * 1000000;
    int taken;
    while (!(taken = rs_lock_try(lock)) && system_monotonic_ns() < end) nanosleep(&sleep, NULL);
    return taken;
}
#endif
