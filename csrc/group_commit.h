/* Group commit: threads wait until the log is durable up to the end of their records.
 *
 * One waiting thread leads: it flushes for all waiters, then passes the lead to the first waiter
 * that the flush did not cover. If the device is slow, a dedicated serving thread leads instead, so
 * that every waiter can time out. No function here needs the GIL. "Forced" in a name means "flushed
 * to the device". */
#ifndef ROCKETSTORE_GROUP_COMMIT_H
#define ROCKETSTORE_GROUP_COMMIT_H

#include <stdint.h>

/* An end that no flush reaches: the waiter only waits for the lead, and flushes in another way. */
#define RS_GROUP_LEAD_ONLY INT64_MAX

typedef enum rs_group_state {
    RS_GROUP_WAITS = 0,
    RS_GROUP_LEADS = 1,  /* this thread must flush, then call rs_group_finish */
    RS_GROUP_FORCED = 2, /* all bytes before its end are durable */
    RS_GROUP_FAILED = 3  /* its bytes will not become durable */
} rs_group_state;

typedef struct rs_group rs_group;
typedef struct rs_slot rs_slot;

/* Lives on the stack of the waiting thread from rs_group_join until its state is no longer WAITS,
 * or until rs_group_leave. */
typedef struct rs_waiter {
    int64_t end;
    int state;
    int list;     /* the list that holds the waiter */
    int has_turn; /* the waiter was woken, and must pass the turn on */
    struct rs_waiter *next;
    struct rs_waiter *previous;
    rs_slot *slot;
} rs_waiter;

/* Return a new group, or NULL if memory is exhausted. The log is durable up to `flushed`. With
 * `served` the serving thread always leads; otherwise it leads after a slow flush until the next
 * fast one. */
rs_group *rs_group_new(int64_t flushed, int served);
void rs_group_free(rs_group *group);
int64_t rs_group_forced(const rs_group *group);
/* Return 1 if no thread leads and the last 32 flushes took at most 0.3 ms each: the caller may
 * flush in a thread that must not block for long. */
int rs_group_is_quick(rs_group *group);

/* Request durability of all bytes before `end`; return the state. */
int rs_group_join(rs_group *group, rs_waiter *waiter, int64_t end);
/* Sleep until the state is no longer WAITS, at most `timeout_ms`; return the state. */
int rs_group_sleep(rs_group *group, rs_waiter *waiter, int64_t timeout_ms);
/* Stop waiting; return the last state. After LEADS the caller must still call rs_group_finish. */
int rs_group_leave(rs_group *group, rs_waiter *waiter);
/* End the flush of the leader: the log is durable up to `flushed`. With `failed`, every waiter
 * beyond it is FAILED, now and later. The lead passes to the next waiter. */
void rs_group_finish(rs_group *group, int64_t flushed, int failed);
/* Pass the lead to the serving thread, because the leader cannot flush. */
void rs_group_hand_over(rs_group *group);

/* For the serving thread: sleep until it is to lead, at most `timeout_ms`. Return 1 if it leads: it
 * must flush, then call rs_group_finish. */
int rs_group_serve(rs_group *group, int64_t timeout_ms);
/* Request one more fsync by the serving thread, without waiting. After a failure the thread only
 * returns from rs_group_serve. */
void rs_group_ask(rs_group *group);
/* End the service: every waiter for bytes that are not durable is FAILED, now and later. */
void rs_group_close(rs_group *group);

#endif
