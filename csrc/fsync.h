/* All calls that make data durable. Linux reports a failed write-back once and marks the pages
 * clean: a second fsync would succeed without writing them. With `fsync_is_final`, the first
 * failure is therefore final for all users of an rs_env: later calls are refused, and a call that
 * succeeded in another thread meanwhile is reported as failed. Two threads must not fsync through
 * one descriptor or mapping at a time, because only one of them receives the error. */
#ifndef ROCKETSTORE_FSYNC_H
#define ROCKETSTORE_FSYNC_H

#include <errno.h>

#include "env.h"

/* Flag in a negated result, next to the errno: the call that failed. See RS_FAILED_OPEN. */
enum {
    RS_FAILED_MSYNC = 2 << 16,
    RS_FAILED_FDATASYNC = 3 << 16,
    RS_FAILED_FSYNC = 4 << 16,
    RS_FAILED_FSYNC_DIRECTORY = 5 << 16,
    RS_FSYNC_REFUSED = 6 << 16, /* not executed: an earlier one failed with this errno */
    RS_FAILED_SYNCFS = 7 << 16,
    RS_FAILED_CALL = ~0xffff
};

/* Return the errno of the first failed fsync, 0 if none failed. */
static inline int rs_fsync_error(const rs_env *env) {
    return __atomic_load_n(&env->fsync_error, __ATOMIC_SEQ_CST);
}

static inline int rs_opened(int fd) { return fd < 0 ? -(RS_FAILED_OPEN | -fd) : fd; }

static inline int rs_fsync_settle(const rs_env *env, int result, int call) {
    int32_t none = 0;
    if (result >= 0) {
        const int error = rs_fsync_error(env);
        return error != 0 ? -(RS_FSYNC_REFUSED | error) : result;
    }
    if (env->fsync_is_final)
        __atomic_compare_exchange_n((int32_t *)(uintptr_t)&env->fsync_error, &none, -result, 0,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return -(call | -result);
}

#define RS_FSYNC_BEGIN(env)                                                                        \
    do {                                                                                           \
        const int error_before = rs_fsync_error(env);                                              \
        if (error_before != 0) return -(RS_FSYNC_REFUSED | error_before);                          \
    } while (0)

static inline int rs_msync(const rs_env *env, void *base, int64_t size) {
    RS_FSYNC_BEGIN(env);
    return rs_fsync_settle(env, env->msync(base, size), RS_FAILED_MSYNC);
}

static inline int rs_fdatasync(const rs_env *env, int fd) {
    RS_FSYNC_BEGIN(env);
    return rs_fsync_settle(env, env->fdatasync(fd), RS_FAILED_FDATASYNC);
}

static inline int rs_fsync(const rs_env *env, int fd) {
    RS_FSYNC_BEGIN(env);
    return rs_fsync_settle(env, env->fsync(fd), RS_FAILED_FSYNC);
}

/* Returns -EOPNOTSUPP if the call is not available: nothing was flushed, and nothing has failed. */
static inline int rs_syncfs(const rs_env *env, int fd) {
    RS_FSYNC_BEGIN(env);
    const int result = env->syncfs(fd);
    return result == -EOPNOTSUPP ? result : rs_fsync_settle(env, result, RS_FAILED_SYNCFS);
}

/* `fsync_directory` opens the directory first. The function of env_posix.c marks a failed open; a
 * replacement may not, so the errors that only an open returns are recognized here. */
static inline int rs_fsync_directory(const rs_env *env, const char *path) {
    RS_FSYNC_BEGIN(env);
    const int result = env->fsync_directory(path);
    if (result < 0 && (-result & RS_FAILED_CALL) == RS_FAILED_OPEN) return result;
    switch (result) {
    case -EMFILE:
    case -ENFILE:
    case -ENOENT:
    case -ENOTDIR:
    case -EACCES:
    case -ELOOP:
    case -ENAMETOOLONG:
        return rs_opened(result);
    default:
        return rs_fsync_settle(env, result, RS_FAILED_FSYNC_DIRECTORY);
    }
}

#endif
