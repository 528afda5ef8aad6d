/* Group commit; group_commit.h documents the interface. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "group_commit.h"
#include "timed_wait.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { NOWHERE = 0, PENDING = 1, READY = 2 };

/* Upper limit of finished waiters that are awake at once, on their way to their next put. Waking
 * a thread takes longer than its work under the GIL, and more than a few would queue for the
 * GIL. Measured with 64 threads on two processors: 50,000 puts/s with 1, 60,000 with 4, 54,000
 * with 10. */
#define TURNS 4

/* Maximum time that a woken waiter keeps its turn. */
#define TURN_MAX_NS 300000

/* If the last flush took longer, the next one may hang: the serving thread leads. */
#define SLOW_NS 10000000

/* A flush of at most this duration is shorter than the wake-ups of two other threads. */
#define QUICK_NS 300000

/* After so many quick flushes in succession the next one is expected to be quick. */
#define QUICK_RUN 32

struct rs_slot {
    pthread_cond_t changed;
    rs_slot *next;
};

typedef struct waiters {
    rs_waiter *first;
    rs_waiter *last;
} waiters;

struct rs_group {
    pid_t owner;
    pthread_mutex_t mutex;
    _Atomic int64_t flushed;
    int served; /* the serving thread always leads */
    int leading;
    int64_t begun_ns; /* start of the current flush */
    int64_t flush_ns; /* duration of the last flush */
    int quick_run;    /* number of quick flushes since the last other one */
    int handed;    /* the serving thread has the lead, but has not noticed yet */
    int idle;      /* the serving thread sleeps */
    int requested; /* the serving thread must flush once more, even without waiters */
    int woken;     /* the serving thread must return without the lead */
    int failed;
    int closed;
    pthread_cond_t work;
    waiters pending; /* in order of arrival */
    waiters ready;   /* state is final; they sleep until their turn */
    int turns;       /* number of woken waiters that have not passed their turn on */
    rs_slot *slots;  /* free slots */
    int64_t turn_ns; /* time of the last wake-up */
};

/* Threads to wake after the mutex is released; before, they would wake up only to wait for it. */
typedef struct wakes {
    pthread_cond_t *served[TURNS];
    int count;
    pthread_cond_t *leader;
} wakes;

/* The group whose turn this thread must pass on. */
static _Thread_local rs_group *has_turn;

rs_group *rs_group_new(int64_t flushed, int served) {
    rs_group *group = calloc(1, sizeof *group);
    if (group == NULL) return NULL;
    group->owner = getpid();
    atomic_init(&group->flushed, flushed);
    group->served = served;
    if (pthread_mutex_init(&group->mutex, NULL) != 0 || rs_condition_init(&group->work) != 0) {
        free(group);
        return NULL;
    }
    return group;
}

void rs_group_free(rs_group *group) {
    /* A forked child does not destroy objects that threads of its parent may hold. */
    if (group == NULL || group->owner != getpid()) return;
    while (group->slots != NULL) {
        rs_slot *slot = group->slots;
        group->slots = slot->next;
        pthread_cond_destroy(&slot->changed);
        free(slot);
    }
    pthread_cond_destroy(&group->work);
    pthread_mutex_destroy(&group->mutex);
    free(group);
}

int64_t rs_group_forced(const rs_group *group) {
    return atomic_load_explicit(&((rs_group *)(uintptr_t)group)->flushed, memory_order_acquire);
}

int rs_group_is_quick(rs_group *group) {
    pthread_mutex_lock(&group->mutex);
    int quick = !group->served && !group->leading && !group->failed && !group->closed &&
                group->quick_run >= QUICK_RUN;
    pthread_mutex_unlock(&group->mutex);
    return quick;
}

static void push(waiters *to, rs_waiter *waiter, int list) {
    waiter->list = list;
    waiter->next = NULL;
    waiter->previous = to->last;
    if (to->last != NULL)
        to->last->next = waiter;
    else
        to->first = waiter;
    to->last = waiter;
}

static void unlink_waiter(waiters *from, rs_waiter *waiter) {
    if (waiter->previous != NULL)
        waiter->previous->next = waiter->next;
    else
        from->first = waiter->next;
    if (waiter->next != NULL)
        waiter->next->previous = waiter->previous;
    else
        from->last = waiter->previous;
    waiter->list = NOWHERE;
}

/* Return a slot to sleep on. The group owns the slots, so that a late signal is harmless. */
static rs_slot *take_slot(rs_group *group) {
    rs_slot *slot = group->slots;
    if (slot != NULL) {
        group->slots = slot->next;
        return slot;
    }
    slot = calloc(1, sizeof *slot);
    if (slot == NULL) return NULL;
    rs_condition_init(&slot->changed);
    return slot;
}

static void give_slot(rs_group *group, rs_waiter *waiter) {
    waiter->slot->next = group->slots;
    group->slots = waiter->slot;
    waiter->slot = NULL;
}

static void unlock(rs_group *group, const wakes *wake) {
    pthread_mutex_unlock(&group->mutex);
    if (wake->leader != NULL) pthread_cond_signal(wake->leader);
    for (int i = 0; i < wake->count; i++) pthread_cond_signal(wake->served[i]);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Wake the next finished waiter.
 *
 * Finished waiters do not all run at once: they would queue for the GIL, and each wait there is one
 * more sleep. TURNS of them are woken; each wakes the next one when it returns with its next
 * record, just after it released the GIL. If it does not return soon, the next thread that joins,
 * or the leader when it finishes, wakes one in its place. While no thread leads, each wakes the
 * next at once. */
static void wake_one(rs_group *group, wakes *wake) {
    rs_waiter *waiter = group->ready.first;
    if (waiter == NULL || wake->count == TURNS) return;
    unlink_waiter(&group->ready, waiter);
    waiter->has_turn = 1;
    group->turns += 1;
    group->turn_ns = now_ns();
    wake->served[wake->count++] = &waiter->slot->changed;
}

static void pass_turn(rs_group *group, wakes *wake) {
    if (group->turns > 0) group->turns -= 1;
    wake_one(group, wake);
}

static void look_after_turns(rs_group *group, wakes *wake) {
    if (group->ready.first == NULL) return;
    if (group->turns > 0 && now_ns() - group->turn_ns >= TURN_MAX_NS) group->turns = 0;
    for (int i = group->turns; i < TURNS; i++) wake_one(group, wake);
}

static void hand_to_server(rs_group *group, wakes *wake) {
    group->leading = 1;
    group->handed = 1;
    if (group->idle) wake->leader = &group->work;
}

static int leads_itself(const rs_group *group, const rs_waiter *waiter) {
    return waiter->end == RS_GROUP_LEAD_ONLY || (!group->served && group->flush_ns < SLOW_NS);
}

/* Choose the next leader: first a waiter for the lead alone, then a request without a waiter. */
static void promote(rs_group *group, wakes *wake) {
    rs_waiter *waiter = group->pending.first;
    while (waiter != NULL && waiter->end != RS_GROUP_LEAD_ONLY) waiter = waiter->next;
    if (waiter == NULL && !group->requested) waiter = group->pending.first;
    if (waiter != NULL && !leads_itself(group, waiter)) waiter = NULL;
    group->leading = 0;
    if (waiter != NULL) {
        group->leading = 1;
        group->begun_ns = now_ns();
        unlink_waiter(&group->pending, waiter);
        waiter->state = RS_GROUP_LEADS;
        wake->leader = &waiter->slot->changed;
    } else if (!group->closed && (group->pending.first != NULL || group->requested)) {
        hand_to_server(group, wake);
    }
}

/* Finish every waiter whose bytes are durable or cannot become durable. */
static void settle(rs_group *group) {
    const int64_t flushed = atomic_load(&group->flushed);
    const int hopeless = group->failed || group->closed;
    rs_waiter *next;
    for (rs_waiter *waiter = group->pending.first; waiter != NULL; waiter = next) {
        next = waiter->next;
        if (waiter->end > flushed && (!hopeless || waiter->end == RS_GROUP_LEAD_ONLY)) continue;
        unlink_waiter(&group->pending, waiter);
        waiter->state = waiter->end <= flushed ? RS_GROUP_FORCED : RS_GROUP_FAILED;
        push(&group->ready, waiter, READY);
    }
}

int rs_group_join(rs_group *group, rs_waiter *waiter, int64_t end) {
    waiter->end = end;
    waiter->list = NOWHERE;
    waiter->has_turn = 0;
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    if (has_turn == group) {
        has_turn = NULL;
        pass_turn(group, &wake);
    } else {
        look_after_turns(group, &wake);
    }
    if (atomic_load(&group->flushed) >= end) {
        waiter->state = RS_GROUP_FORCED;
    } else if ((group->failed || group->closed) && end != RS_GROUP_LEAD_ONLY) {
        waiter->state = RS_GROUP_FAILED;
    } else if (!group->leading && leads_itself(group, waiter)) {
        group->leading = 1;
        group->begun_ns = now_ns();
        waiter->state = RS_GROUP_LEADS;
    } else {
        waiter->slot = take_slot(group);
        waiter->state = waiter->slot == NULL ? RS_GROUP_FAILED : RS_GROUP_WAITS;
        if (waiter->slot != NULL) push(&group->pending, waiter, PENDING);
        if (waiter->slot != NULL && !group->leading) hand_to_server(group, &wake);
    }
    int state = waiter->state;
    unlock(group, &wake);
    return state;
}

/* Remove the waiter; the caller holds the mutex. */
static int done_waiting(rs_group *group, rs_waiter *waiter, wakes *wake) {
    give_slot(group, waiter);
    if (waiter->list == PENDING) unlink_waiter(&group->pending, waiter);
    if (waiter->list == READY) unlink_waiter(&group->ready, waiter);
    if (!waiter->has_turn) return waiter->state;
    if (group->leading)
        has_turn = group;
    else
        pass_turn(group, wake);
    return waiter->state;
}

int rs_group_sleep(rs_group *group, rs_waiter *waiter, int64_t timeout_ms) {
    const struct timespec until = rs_deadline(timeout_ms);
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    int result = 0;
    while (waiter->state == RS_GROUP_WAITS && result == 0)
        result = pthread_cond_timedwait(&waiter->slot->changed, &group->mutex, &until);
    int state = waiter->state;
    if (state != RS_GROUP_WAITS) done_waiting(group, waiter, &wake);
    unlock(group, &wake);
    return state;
}

int rs_group_leave(rs_group *group, rs_waiter *waiter) {
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    int state = done_waiting(group, waiter, &wake);
    unlock(group, &wake);
    return state;
}

void rs_group_finish(rs_group *group, int64_t flushed, int failed) {
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    if (flushed > atomic_load(&group->flushed)) atomic_store(&group->flushed, flushed);
    group->failed |= failed;
    if (group->failed) group->requested = 0;
    group->flush_ns = now_ns() - group->begun_ns;
    if (group->flush_ns > QUICK_NS)
        group->quick_run = 0;
    else if (group->quick_run < QUICK_RUN)
        group->quick_run++;
    settle(group);
    promote(group, &wake);
    if (group->leading)
        look_after_turns(group, &wake);
    else
        wake_one(group, &wake);
    unlock(group, &wake);
}

void rs_group_hand_over(rs_group *group) {
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    if (group->closed)
        promote(group, &wake);
    else
        hand_to_server(group, &wake);
    unlock(group, &wake);
}

int rs_group_serve(rs_group *group, int64_t timeout_ms) {
    const struct timespec until = rs_deadline(timeout_ms);
    pthread_mutex_lock(&group->mutex);
    int result = 0;
    group->idle = 1;
    while (!group->handed && !group->woken && result == 0)
        result = pthread_cond_timedwait(&group->work, &group->mutex, &until);
    group->idle = 0;
    group->woken = 0;
    const int leads = group->handed;
    group->handed = 0;
    if (leads) {
        group->requested = 0; /* this flush covers everything written before the request */
        group->begun_ns = now_ns();
    }
    pthread_mutex_unlock(&group->mutex);
    return leads;
}

void rs_group_ask(rs_group *group) {
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    if (group->failed) {
        /* Another fsync could succeed without writing the pages that the failed one lost. */
        group->woken = 1;
        if (group->idle) wake.leader = &group->work;
    } else if (group->leading)
        group->requested = !group->handed;
    else if (!group->closed)
        hand_to_server(group, &wake);
    unlock(group, &wake);
}

void rs_group_close(rs_group *group) {
    wakes wake = {{NULL}, 0, NULL};
    pthread_mutex_lock(&group->mutex);
    group->closed = 1;
    group->requested = 0;
    settle(group);
    if (group->handed) {
        group->handed = 0;
        promote(group, &wake);
    }
    wake_one(group, &wake);
    unlock(group, &wake);
}
