/* Group commit: threads that wait until the log is on the device as far as their bytes. One of them
 * leads: it forces for all who wait, then hands the lead to the first that it did not reach. Where
 * that may take long, a thread that does nothing else leads instead, so that whoever waits can give
 * up. No thread needs the GIL in here. */
#ifndef ROCKETSTORE_GROUP_COMMIT_H
#define ROCKETSTORE_GROUP_COMMIT_H

#include <stdint.h>

/* A waiter's end that no force reaches: it waits for the lead alone, to force by other means. */
#define RS_GROUP_LEAD_ONLY INT64_MAX

typedef enum rs_group_state {
    RS_GROUP_WAITS = 0,
    RS_GROUP_LEADS = 1,  /* it must force, and call rs_group_finish */
    RS_GROUP_FORCED = 2, /* everything before its end is on the device */
    RS_GROUP_FAILED = 3  /* and never will be */
} rs_group_state;

typedef struct rs_group rs_group;
typedef struct rs_slot rs_slot;

/* On the waiting thread's stack, from rs_group_join to the first state that is not WAITS, or to
 * rs_group_leave. */
typedef struct rs_waiter {
    int64_t end;
    int state;
    int place;    /* in which list it is */
    int has_turn; /* it was woken, and must let the next one be */
    struct rs_waiter *next;
    struct rs_waiter *previous;
    rs_slot *slot;
} rs_waiter;

/* NULL without memory. `forced`: the log is on the device up to there. `served`: the serving thread
 * leads always; else from a force that took long to the next that did not. */
rs_group *rs_group_new(int64_t forced, int served);
void rs_group_free(rs_group *group);
int64_t rs_group_forced(const rs_group *group);

/* Asks for everything before `end`; the state. */
int rs_group_join(rs_group *group, rs_waiter *waiter, int64_t end);
/* Sleeps for `timeout_ms`, or until the state is not WAITS any more; the state. */
int rs_group_sleep(rs_group *group, rs_waiter *waiter, int64_t timeout_ms);
/* Gives up waiting; the last state: with LEADS the caller still owes rs_group_finish. */
int rs_group_leave(rs_group *group, rs_waiter *waiter);
/* The leader is done: the log is on the device up to `forced`. `failed`: it went no further, and
 * whoever waits for more has FAILED, now and later. The next one leads. */
void rs_group_finish(rs_group *group, int64_t forced, int failed);
/* The leader cannot force: the serving thread leads now. */
void rs_group_hand_over(rs_group *group);

/* For the one thread that serves: sleeps until somebody waits, or for `timeout_ms`. 1: it leads
 * now, must force, and call rs_group_finish. */
int rs_group_serve(rs_group *group, int64_t timeout_ms);
/* Lets the serving thread fsync once more, and does not wait. After a failure that thread only
 * comes back from rs_group_serve. */
void rs_group_ask(rs_group *group);
/* Nobody is served any more: whoever waits for more than is forced has FAILED, now and later. */
void rs_group_close(rs_group *group);

#endif
