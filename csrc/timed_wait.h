/* Condition variables for timed waits. They use the monotonic clock, which setting the wall clock
 * does not affect; macOS offers only the wall clock. */
#ifndef ROCKETSTORE_TIMED_WAIT_H
#define ROCKETSTORE_TIMED_WAIT_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Return 0 or an errno. */
static inline int rs_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#if !defined(__APPLE__)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    int error = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

/* Return the deadline for pthread_cond_timedwait on such a condition. */
static inline struct timespec rs_deadline(int64_t timeout_ms) {
    struct timespec until;
#if defined(__APPLE__)
    clock_gettime(CLOCK_REALTIME, &until);
#else
    clock_gettime(CLOCK_MONOTONIC, &until);
#endif
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec += 1;
        until.tv_nsec -= 1000000000;
    }
    return until;
}

#endif
