/* The system calls of csrc/env_posix.c with faults below them: the n-th call of a kind fails,
 * returns short, or kills the process. Other calls cost one atomic add. See injection.py. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "env.h"
#include "timed_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    OPEN, FTRUNCATE, FALLOCATE, PUNCH, MMAP, MSYNC, FDATASYNC, FSYNC, FSYNC_DIRECTORY,
    PREAD, PWRITE, RENAME, UNLINK, MKDIR, OPEN_UNNAMED, LINK, SYNCFS, CALL_KINDS, ANY = CALL_KINDS
};
enum { ACTION_ERROR, ACTION_SHORT, ACTION_KILL };

typedef struct fault {
    int kind;
    long first, last;
    int action, error;
    const char *only; /* part of the path; "" for every path */
} fault;

typedef struct report {
    char path[512];
    char thread[32];
    int64_t size, position;
    int is_zero; /* a pwrite of zeros alone */
    int kind;
    int again;   /* a later call of the kind in that directory passed */
    int removed; /* the file was unlinked later */
} report;

static _Atomic long counts[CALL_KINDS + 1];
static _Atomic int fired;
static _Atomic int no_unnamed;
static fault armed = {-1, 0, 0, 0, 0, ""};
static _Atomic int is_armed;
static report first_fired;

void inject_arm(int kind, long first, long last, int action, int error, const char *only) {
    atomic_store(&is_armed, 0);
    for (int i = 0; i <= CALL_KINDS; i++) atomic_store(&counts[i], 0);
    atomic_store(&fired, 0);
    memset(&first_fired, 0, sizeof first_fired);
    free((void *)(uintptr_t)(armed.only[0] ? armed.only : NULL));
    armed = (fault){kind, first, last, action, error, only[0] ? strdup(only) : ""};
    atomic_store(&is_armed, 1);
}
/* Disables or enables files without a name in the file system. */
void inject_no_unnamed(int on) { atomic_store(&no_unnamed, on); }
void inject_disarm(void) { atomic_store(&is_armed, 0); }
long inject_count(int kind) { return atomic_load(&counts[kind]); }
int inject_fired(void) { return atomic_load(&fired); }
const report *inject_report(void) { return &first_fired; }

/* Names of open files that were made without one: the kernel still reports them as deleted. */
enum { FDS = 1024 };
static char linked[FDS][512];

static void path_of_fd(int fd, char *path, size_t size) {
    char link[64];
    if (fd >= 0 && fd < FDS && linked[fd][0] != '\0') {
        snprintf(path, size, "%s", linked[fd]);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, size - 1);
    path[got > 0 ? got : 0] = '\0';
}

static void path_of_memory(const void *base, char *path, size_t size) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[1024];
    path[0] = '\0';
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        int at = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &from, &to, &at) < 2) continue;
        if ((uintptr_t)base < from || (uintptr_t)base >= to) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(path, size, "%s", line + at);
    }
    if (maps != NULL) fclose(maps);
}

static int is_zero(const char *data, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (data[i]) return 0;
    return 1;
}

/* Notes calls after the first fault: a repetition of the call, or a deletion of the file. */
static void follow(int kind, const char *path, int fd, const void *memory) {
    char found[512];
    report *r = &first_fired;
    if (kind != r->kind && kind != UNLINK) return;
    if (path == NULL) {
        if (memory != NULL) path_of_memory(memory, found, sizeof found);
        else path_of_fd(fd, found, sizeof found);
        path = found;
    }
    const char *slash = strrchr(r->path, '/');
    size_t directory = slash != NULL ? (size_t)(slash - r->path) : 0;
    if (kind == r->kind && strncmp(path, r->path, directory) == 0) r->again = 1;
    if (kind == UNLINK && strcmp(path, r->path) == 0) r->removed = 1;
}

/* 1: this call is hit. One of path, fd and memory identifies the file. */
static int hit(int kind, const char *path, int fd, const void *memory, int64_t size,
               int64_t position) {
    char found[512];
    if (!atomic_load(&is_armed)) return 0;
    if (armed.only[0] != '\0') {
        if (armed.kind != kind && armed.kind != ANY) return 0;
        if (path == NULL) {
            if (memory != NULL) path_of_memory(memory, found, sizeof found);
            else path_of_fd(fd, found, sizeof found);
        }
        if (strstr(path != NULL ? path : found, armed.only) == NULL) return 0;
    }
    long n = atomic_fetch_add(&counts[kind], 1) + 1;
    long any = atomic_fetch_add(&counts[ANY], 1) + 1;
    if (armed.kind == ANY) n = any;
    if ((armed.kind != kind && armed.kind != ANY) || n < armed.first || n > armed.last) {
        if (atomic_load(&fired) > 0) follow(kind, path, fd, memory);
        return 0;
    }
    if (armed.action == ACTION_KILL) kill(getpid(), SIGKILL);
    if (atomic_fetch_add(&fired, 1) == 0) {
        report *r = &first_fired;
        if (path != NULL) snprintf(r->path, sizeof r->path, "%s", path);
        else if (memory != NULL) path_of_memory(memory, r->path, sizeof r->path);
        else path_of_fd(fd, r->path, sizeof r->path);
        pthread_getname_np(pthread_self(), r->thread, sizeof r->thread);
        r->kind = kind;
        r->size = size;
        r->position = position;
    }
    return 1;
}

static int fail(void) {
    errno = armed.error;
    return -1;
}

static int fault_open(const char *path, int flags, mode_t mode) {
    int kind = flags & O_DIRECTORY ? FSYNC_DIRECTORY : OPEN;
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        if (atomic_load(&no_unnamed)) {
            errno = EOPNOTSUPP;
            return -1;
        }
        kind = OPEN_UNNAMED;
    }
    if (hit(kind, path, -1, NULL, 0, -1)) return fail();
    int fd = open(path, flags, mode);
    if (fd >= 0 && fd < FDS) linked[fd][0] = '\0';
    return fd;
}
static int fault_ftruncate(int fd, off_t size) {
    return hit(FTRUNCATE, NULL, fd, NULL, 0, size) ? fail() : ftruncate(fd, size);
}
static int fault_fallocate(int fd, int mode, off_t position, off_t size) {
    return hit(mode ? PUNCH : FALLOCATE, NULL, fd, NULL, size, position)
               ? fail() : fallocate(fd, mode, position, size);
}
static void *fault_mmap(void *at, size_t size, int prot, int flags, int fd, off_t position) {
    if (fd >= 0 && hit(MMAP, NULL, fd, NULL, (int64_t)size, position)) {
        fail();
        return MAP_FAILED;
    }
    return mmap(at, size, prot, flags, fd, position);
}
static int fault_msync(void *base, size_t size, int flags) {
    return hit(MSYNC, NULL, -1, base, (int64_t)size, -1) ? fail() : msync(base, size, flags);
}
static int fault_fdatasync(int fd) {
    return hit(FDATASYNC, NULL, fd, NULL, 0, -1) ? fail() : fdatasync(fd);
}
static int fault_fsync(int fd) {
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) return fsync(fd); /* by its open */
    return hit(FSYNC, NULL, fd, NULL, 0, -1) ? fail() : fsync(fd);
}
static ssize_t fault_pread(int fd, void *buffer, size_t size, off_t position) {
    if (hit(PREAD, NULL, fd, NULL, (int64_t)size, position)) {
        if (armed.action == ACTION_ERROR) return fail();
        size = size / 2 + (size == 1);
    }
    return pread(fd, buffer, size, position);
}
static ssize_t fault_pwrite(int fd, const void *buffer, size_t size, off_t position) {
    if (hit(PWRITE, NULL, fd, NULL, (int64_t)size, position)) {
        if (atomic_load(&fired) == 1) first_fired.is_zero = is_zero(buffer, size);
        if (armed.action == ACTION_ERROR) return fail();
        size = size / 2 + (size == 1);
    }
    return pwrite(fd, buffer, size, position);
}
static int fault_rename(const char *source, const char *target) {
    return hit(RENAME, source, -1, NULL, 0, -1) ? fail() : rename(source, target);
}
static int fault_unlink(const char *path) {
    return hit(UNLINK, path, -1, NULL, 0, -1) ? fail() : unlink(path);
}
static int fault_link(const char *source, const char *target) {
    return hit(LINK, target, -1, NULL, 0, -1) ? fail() : link(source, target);
}
static int fault_linkat(int from, const char *source, int to, const char *target, int flags) {
    if (hit(LINK, target, -1, NULL, 0, -1)) return fail();
    int result = linkat(from, source, to, target, flags);
    int fd = from;
    if (source[0] != '\0') sscanf(source, "/proc/self/fd/%d", &fd);
    if (result == 0 && fd >= 0 && fd < FDS) snprintf(linked[fd], sizeof linked[fd], "%s", target);
    return result;
}
static int fault_mkdir(const char *path, mode_t mode) {
    return hit(MKDIR, path, -1, NULL, 0, -1) ? fail() : mkdir(path, mode);
}

static int fault_syncfs(int fd) {
    return hit(SYNCFS, NULL, fd, NULL, 0, -1) ? fail() : syncfs(fd);
}

#define open(...) fault_open(__VA_ARGS__)
#define ftruncate(...) fault_ftruncate(__VA_ARGS__)
#define fallocate(...) fault_fallocate(__VA_ARGS__)
#define mmap(...) fault_mmap(__VA_ARGS__)
#define msync(...) fault_msync(__VA_ARGS__)
#define fdatasync(...) fault_fdatasync(__VA_ARGS__)
#define fsync(...) fault_fsync(__VA_ARGS__)
#define pread(...) fault_pread(__VA_ARGS__)
#define pwrite(...) fault_pwrite(__VA_ARGS__)
#define rename(...) fault_rename(__VA_ARGS__)
#define unlink(...) fault_unlink(__VA_ARGS__)
#define mkdir(...) fault_mkdir(__VA_ARGS__)
#define link(...) fault_link(__VA_ARGS__)
#define linkat(...) fault_linkat(__VA_ARGS__)
#define syncfs(...) fault_syncfs(__VA_ARGS__)
#include "env_posix.c"
