"""Groups of delayed messages and consumers; see `workers/ours/delayed.py` and `poll.py`."""

from __future__ import annotations

from bench.model import Group, Options, java, ours

THREADS = "delivery + dispatch"
DELIVER: Options = {"what": "deliver", "body": 128, "messageDelayLevel": "5s"}
LATENESS: Options = {"what": "lateness", "body": 128, "messageDelayLevel": "1s", "pace": 1000}
JAVA_DELIVER = (
    "opening, then ScheduleMessageService until the last delivery is in its queue; its first round"
    " is a second after the opening"
)
OURS_DELIVER = "pyrocketstore.open, until the last delivery is in its queue"
LATE = "store time of the delivery, less the time of the put and the delay; the ms begun counts"
POLL: Options = {"what": "poll", "body": 128, "pace": 1000}
JAVA_POLL = (
    "DefaultMQProducer.send to the listener of a DefaultMQPushConsumer with one thread, whose pull"
    " requests the broker holds; name server, broker and clients are in one process and use TCP"
)
OURS_POLL = "Store.put to the return of Consumer.poll in another thread of the process"

DELAYED_GROUPS = (
    Group(
        "delayed_deliver",
        "Deliver delayed messages, 128 B, that became due while the store was closed",
        (
            java(DELIVER, THREADS, JAVA_DELIVER),
            ours("store", DELIVER, THREADS, OURS_DELIVER),
        ),
        count=100_000,
        smoke=500,
    ),
    Group(
        "delayed_lateness",
        "Lateness of delayed messages, 128 B, 1,000 a second, delayed by one second",
        (
            java(LATENESS, THREADS, LATE),
            ours("store", LATENESS, THREADS, LATE),
        ),
        count=5_000,
        smoke=100,
        shows_latency=True,
    ),
    Group(
        "put_to_poll",
        "Latency from a put to the consumer, 128 B, 1,000 a second",
        (
            java(POLL, "broker and clients", JAVA_POLL),
            ours("store", POLL, "put + poll + dispatch", OURS_POLL),
        ),
        count=5_000,
        smoke=100,
        shows_latency=True,
    ),
)
