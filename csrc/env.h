/* The one table through which everything that can fail, or that durability rests on, reaches the
 * operating system. `Env` fills it; a test puts its own functions in. Every call gives a value
 * >= 0, or a negated errno. All may be called without the GIL. */
#ifndef ROCKETSTORE_ENV_H
#define ROCKETSTORE_ENV_H

#include <stdint.h>

/* In a negated result beside the errno: an open failed, so that the rest was not tried. The others
 * are those of fsync.h. */
enum { RS_FAILED_OPEN = 1 << 16 };

typedef struct rs_env {
    /* Regular files, or with O_DIRECTORY a directory: -EISDIR, or -EBADFD for a FIFO, a socket or
     * a device, and never a wait. Opened for writing: -ELOOP for a symbolic link at the last
     * component of the path. O_CLOEXEC is added. */
    int (*open)(const char *path, int flags, int mode);
    int (*close)(int fd);
    int (*ftruncate)(int fd, int64_t size);
    /* Allocates [position, position + size) inside the file without changing its length or its
     * bytes. -EOPNOTSUPP where the file system cannot. */
    int (*fallocate)(int fd, int64_t position, int64_t size);
    /* Makes [position, position + size) read as zeros, length unchanged. -EOPNOTSUPP likewise. */
    int (*punch)(int fd, int64_t position, int64_t size);
    /* fd -1: anonymous memory. */
    int (*mmap)(int fd, int64_t size, int writable, void **base);
    int (*munmap)(void *base, int64_t size);
    int (*msync)(void *base, int64_t size); /* base is page aligned */
    int (*madvise)(void *base, int64_t size, int advice);
    int (*fdatasync)(int fd);
    int (*fsync)(int fd);
    int64_t (*pread)(int fd, void *buffer, int64_t size, int64_t position);
    int64_t (*pwrite)(int fd, const void *buffer, int64_t size, int64_t position);
    int (*rename)(const char *source, const char *target);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, int mode);
    int (*rmdir)(const char *path);
    /* -(RS_FAILED_OPEN | errno) where the directory could not be opened. */
    int (*fsync_directory)(const char *path);
    /* Record lock on byte 0, exclusive, not waiting; of the open file description where the system
     * has that, else of the process. -EAGAIN or -EACCES: somebody else has it. */
    int (*lock)(int fd);
    int64_t (*file_size)(int fd);
    int64_t (*now_ms)(void);       /* wall clock */
    int64_t (*monotonic_ns)(void);
    /* Keeps memory from being swapped out; `on_fault`: each page from its first use on. */
    int (*mlock)(void *base, int64_t size, int on_fault);
    int (*munlock)(void *base, int64_t size);
    /* A descriptor of the directory, locked exclusively (flock) where the file system can do that.
     * -EAGAIN: another open file has the lock. */
    int (*lock_directory)(const char *path);
    int (*unlock)(int fd); /* ends a lock of `lock` or `lock_directory`, also a forked child's */
    /* A descriptor, for reading and writing, of a new file without a name in the directory's file
     * system. -EOPNOTSUPP where the file system or the kernel has no such files. */
    int (*open_unnamed)(const char *directory, int mode);
    /* Gives a file of `open_unnamed` its name. -EEXIST: the name is taken. -EOPNOTSUPP: the process
     * may not, or there is no /proc. */
    int (*link_unnamed)(int fd, const char *path);
    /* Gives a file a second name. -EEXIST: the name is taken. */
    int (*link)(const char *source, const char *target);
    /* Not functions: see fsync.h. */
    int32_t fsync_is_final;
    int32_t fsync_error;
} rs_env;

/* The functions of this operating system. */
void rs_env_posix(rs_env *env);

/* A place where threads sleep until something changes. `sequence` moves at every signal; a waiter
 * that saw an older value does not sleep. Signalling without a waiter costs one atomic add. */
typedef struct rs_event rs_event;
rs_event *rs_event_new(void);
void rs_event_free(rs_event *event);
uint64_t rs_event_sequence(const rs_event *event);
void rs_event_signal(rs_event *event);
/* Sleeps until the sequence differs from `seen`, or for `timeout_ms`; 1 when it differs. */
int rs_event_wait(rs_event *event, uint64_t seen, int64_t timeout_ms);

/* The put lock: a mutex that can be tried. */
typedef struct rs_lock rs_lock;
rs_lock *rs_lock_new(void);
void rs_lock_free(rs_lock *lock);
int rs_lock_try(rs_lock *lock); /* 1 when taken */
void rs_lock_take(rs_lock *lock);
int rs_lock_take_for(rs_lock *lock, int64_t timeout_ms); /* 1 when taken */
void rs_lock_release(rs_lock *lock);

#endif
