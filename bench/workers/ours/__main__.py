"""The worker for pyrocketstore: runs rounds of one kind of work (bench/README.md, "Protocol").

    python -m bench.workers.ours PATH what=NAME count=N [NAME=VALUE ...]

`cpus=1` pins the process to one processor.
"""

from __future__ import annotations

import sys

from bench.workers.ours.delayed import Delayed
from bench.workers.ours.follow import Follow
from bench.workers.ours.parts import Import, Index, Queue
from bench.workers.ours.poll import Poll
from bench.workers.ours.put import EmptyCall, NewTopics, Put, PutIntoOpen
from bench.workers.ours.queues import FlushQueues, LightQueues, OpenQueues, QueueRows
from bench.workers.ours.read import (
    CheckedGet,
    Get,
    GetColumns,
    Query,
    QueryMany,
    QueryManyMessages,
)
from bench.workers.ours.recovery import OpenKilled, Recover, Scan
from bench.workers.ours.small_reads import KeyQueries, SmallReads
from bench.workers.ours.transactions import Transactions
from bench.workers.workload import Workload, serve

WORKLOADS: dict[str, type[Workload]] = {
    "import": Import,
    "deliver": Delayed,
    "lateness": Delayed,
    "poll": Poll,
    "follow": Follow,
    "open_again": Follow,
    "put": Put,
    "put_many": Put,
    "put_named": Put,
    "put_many_named": Put,
    "batch": Put,
    "batch_items": Put,
    "latency": Put,
    "put_new": NewTopics,
    "aput": Put,
    "put_open": PutIntoOpen,
    "flush_queues": FlushQueues,
    "empty_call": EmptyCall,
    "scan": Scan,
    "rebuild": Recover,
    "recover": Recover,
    "open_killed": OpenKilled,
    "open_queues": OpenQueues,
    "queue_rows": QueueRows,
    "open_light": LightQueues,
    "put_light": LightQueues,
    "transact": Transactions,
    "cq": Queue,
    "cq_arrays": Queue,
    "index_put": Index,
    "index_select": Index,
    "index_select_many": Index,
    "get": Get,
    "get_checked": CheckedGet,
    "get_columns": GetColumns,
    "query": Query,
    "query_checked": Query,
    "query_many": QueryMany,
    "query_many_messages": QueryManyMessages,
    "small": SmallReads,
    "absent": KeyQueries,
    "old_window": KeyQueries,
}


if __name__ == "__main__":
    serve(WORKLOADS, *sys.argv[1:])
