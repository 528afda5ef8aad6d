/* See group_commit.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "group_commit.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { NOWHERE = 0, PENDING = 1, READY = 2 };

typedef struct waiters {
    rs_waiter *first;
    rs_waiter *last;
} waiters;

struct rs_group {
    pid_t owner;
    pthread_mutex_t mutex;
    _Atomic int64_t forced;
    int leading;
    int failed;
    waiters pending; /* in the order in which they came */
    waiters ready;   /* their state is final, and they sleep on: each that wakes wakes the next */
};

rs_group *rs_group_new(int64_t forced) {
    rs_group *group = calloc(1, sizeof *group);
    if (group == NULL) return NULL;
    group->owner = getpid();
    atomic_init(&group->forced, forced);
    if (pthread_mutex_init(&group->mutex, NULL) != 0) {
        free(group);
        return NULL;
    }
    return group;
}

void rs_group_free(rs_group *group) {
    /* A forked child leaves alone what its parent's threads may hold. */
    if (group == NULL || group->owner != getpid()) return;
    pthread_mutex_destroy(&group->mutex);
    free(group);
}

int64_t rs_group_forced(const rs_group *group) {
    return atomic_load_explicit(&((rs_group *)(uintptr_t)group)->forced, memory_order_acquire);
}

static void push(waiters *list, rs_waiter *waiter, int place) {
    waiter->place = place;
    waiter->next = NULL;
    waiter->previous = list->last;
    if (list->last != NULL)
        list->last->next = waiter;
    else
        list->first = waiter;
    list->last = waiter;
}

static void unlink_waiter(waiters *list, rs_waiter *waiter) {
    if (waiter->previous != NULL)
        waiter->previous->next = waiter->next;
    else
        list->first = waiter->next;
    if (waiter->next != NULL)
        waiter->next->previous = waiter->previous;
    else
        list->last = waiter->previous;
    waiter->place = NOWHERE;
}

static void wake_one(rs_group *group) {
    /* A crowd woken at once would only queue for the GIL: one wakes the next instead. */
    rs_waiter *waiter = group->ready.first;
    if (waiter == NULL) return;
    unlink_waiter(&group->ready, waiter);
    pthread_cond_signal(&waiter->changed);
}

static void promote(rs_group *group) {
    rs_waiter *waiter = group->pending.first;
    group->leading = waiter != NULL;
    if (waiter == NULL) return;
    unlink_waiter(&group->pending, waiter);
    waiter->state = RS_GROUP_LEADS;
    pthread_cond_signal(&waiter->changed);
}

int rs_group_join(rs_group *group, rs_waiter *waiter, int64_t end) {
    waiter->end = end;
    waiter->place = NOWHERE;
    pthread_mutex_lock(&group->mutex);
    if (atomic_load(&group->forced) >= end) {
        waiter->state = RS_GROUP_FORCED;
    } else if (group->failed && end != RS_GROUP_LEAD_ONLY) {
        waiter->state = RS_GROUP_FAILED;
    } else if (!group->leading) {
        group->leading = 1;
        waiter->state = RS_GROUP_LEADS;
    } else {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
#if !defined(__APPLE__)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
        pthread_cond_init(&waiter->changed, &attributes);
        pthread_condattr_destroy(&attributes);
        waiter->state = RS_GROUP_WAITS;
        push(&group->pending, waiter, PENDING);
    }
    int state = waiter->state;
    pthread_mutex_unlock(&group->mutex);
    return state;
}

/* Under the mutex: the waiter stops waiting, and wakes who comes after it. */
static int done_waiting(rs_group *group, rs_waiter *waiter) {
    if (waiter->place == PENDING) unlink_waiter(&group->pending, waiter);
    else if (waiter->place == READY) unlink_waiter(&group->ready, waiter);
    wake_one(group);
    return waiter->state;
}

int rs_group_sleep(rs_group *group, rs_waiter *waiter, int64_t timeout_ms) {
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
    pthread_mutex_lock(&group->mutex);
    int result = 0;
    while (waiter->state == RS_GROUP_WAITS && result == 0)
        result = pthread_cond_timedwait(&waiter->changed, &group->mutex, &until);
    int state = waiter->state;
    if (state != RS_GROUP_WAITS) done_waiting(group, waiter);
    pthread_mutex_unlock(&group->mutex);
    if (state != RS_GROUP_WAITS) pthread_cond_destroy(&waiter->changed);
    return state;
}

int rs_group_leave(rs_group *group, rs_waiter *waiter) {
    pthread_mutex_lock(&group->mutex);
    int state = done_waiting(group, waiter);
    pthread_mutex_unlock(&group->mutex);
    pthread_cond_destroy(&waiter->changed);
    return state;
}

void rs_group_finish(rs_group *group, int64_t forced, int failed) {
    pthread_mutex_lock(&group->mutex);
    if (forced > atomic_load(&group->forced)) atomic_store(&group->forced, forced);
    forced = atomic_load(&group->forced);
    group->failed |= failed;
    rs_waiter *next;
    for (rs_waiter *waiter = group->pending.first; waiter != NULL; waiter = next) {
        next = waiter->next;
        if (waiter->end > forced && (!group->failed || waiter->end == RS_GROUP_LEAD_ONLY)) continue;
        unlink_waiter(&group->pending, waiter);
        waiter->state = waiter->end <= forced ? RS_GROUP_FORCED : RS_GROUP_FAILED;
        push(&group->ready, waiter, READY);
    }
    promote(group);
    wake_one(group);
    pthread_mutex_unlock(&group->mutex);
}
