/* Table of the system calls that can fail or that durability depends on. The store makes these
 * calls only through the table. `Env` fills it; a test replaces single functions. Each function
 * returns a value >= 0 or a negated errno, and may be called without the GIL. */
#ifndef ROCKETSTORE_ENV_H
#define ROCKETSTORE_ENV_H

#include <stdint.h>

/* Flag in a negated result, next to the errno: an open failed, and the call did nothing else.
 * fsync.h defines the other flags. */
enum { RS_FAILED_OPEN = 1 << 16 };

/* Types of the entries of a directory. A file system may report none: RS_ENTRY_OTHER. */
enum { RS_ENTRY_FILE = 'f', RS_ENTRY_DIRECTORY = 'd', RS_ENTRY_OTHER = '?' };

typedef struct rs_env {
    /* Opens a regular file, or a directory with O_DIRECTORY. Returns -EISDIR for a directory
     * without O_DIRECTORY and -EBADFD for a FIFO, a socket or a device; never blocks on them.
     * For writing: returns -ELOOP if the last component of the path is a symbolic link. Adds
     * O_CLOEXEC. */
    int (*open)(const char *path, int flags, int mode);
    int (*close)(int fd);
    int (*ftruncate)(int fd, int64_t size);
    /* Allocates [position, position + size) inside the file without changing its length or its
     * bytes. Returns -EOPNOTSUPP if the file system does not support that. */
    int (*fallocate)(int fd, int64_t position, int64_t size);
    /* Makes [position, position + size) read as zeros without changing the length. Returns
     * -EOPNOTSUPP if the file system does not support that. */
    int (*punch)(int fd, int64_t position, int64_t size);
    /* Maps anonymous memory if fd is -1. */
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
    /* Returns -(RS_FAILED_OPEN | errno) if the directory could not be opened. */
    int (*fsync_directory)(const char *path);
    /* Takes an exclusive record lock on byte 0 without waiting. The open file description owns the
     * lock if the system supports that, otherwise the process. Returns -EAGAIN or -EACCES if the
     * lock is held. */
    int (*lock)(int fd);
    int64_t (*file_size)(int fd);
    int64_t (*now_ms)(void);       /* wall clock */
    int64_t (*monotonic_ns)(void);
    /* Keeps memory from being swapped out; with `on_fault`, each page once it has been used. */
    int (*mlock)(void *base, int64_t size, int on_fault);
    int (*munlock)(void *base, int64_t size);
    /* Returns a descriptor of the directory, with an exclusive flock if the file system supports
     * that. Returns -EAGAIN if another open file holds the lock. */
    int (*lock_directory)(const char *path);
    int (*unlock)(int fd); /* releases `lock` or `lock_directory`, also for a forked child */
    /* Returns a read-write descriptor of a new file without a name, in the directory's file system.
     * Returns -EOPNOTSUPP if the file system or the kernel has no such files. */
    int (*open_unnamed)(const char *directory, int mode);
    /* Names a file of `open_unnamed`. Returns -EEXIST if the name is in use, -EOPNOTSUPP if the
     * process lacks the permission or /proc is missing. */
    int (*link_unnamed)(int fd, const char *path);
    /* Adds a second name to a file. Returns -EEXIST if the name is in use. */
    int (*link)(const char *source, const char *target);
    /* Returns how many names an open file has: 0 once it was deleted or replaced. */
    int64_t (*link_count)(int fd);
    /* Flushes all files and names of the file system of an open directory. Returns -EOPNOTSUPP
     * where an error of a write-back might not be reported through `fd`. */
    int (*syncfs)(int fd);
    /* Lists a directory without "." and "..": for each entry a byte for its type, RS_ENTRY_..., and
     * its name with a NUL at the end. Returns the size of all entries; the caller frees `entries`.
     * Without `follow`, a symbolic link in place of the directory is an error. */
    int64_t (*list_directory)(const char *path, int follow, char **entries);
    /* State, not functions; see fsync.h. */
    int32_t fsync_is_final;
    int32_t fsync_error;
} rs_env;

/* Fill the table with the functions of this operating system. */
void rs_env_posix(rs_env *env);

/* An event that threads sleep on until something changes. Each signal increments `sequence`; a
 * waiter that saw an older value does not sleep. A signal without a waiter costs one atomic add. */
typedef struct rs_event rs_event;
rs_event *rs_event_new(void);
void rs_event_free(rs_event *event);
uint64_t rs_event_sequence(const rs_event *event);
void rs_event_signal(rs_event *event);
/* Sleep until the sequence differs from `seen`, at most `timeout_ms`. Return 1 if it differs. */
int rs_event_wait(rs_event *event, uint64_t seen, int64_t timeout_ms);

/* The put lock: a mutex with a non-blocking attempt. */
typedef struct rs_lock rs_lock;
rs_lock *rs_lock_new(void);
void rs_lock_free(rs_lock *lock);
int rs_lock_try(rs_lock *lock); /* returns 1 if taken */
void rs_lock_take(rs_lock *lock);
int rs_lock_take_for(rs_lock *lock, int64_t timeout_ms); /* returns 1 if taken */
void rs_lock_release(rs_lock *lock);

#endif
