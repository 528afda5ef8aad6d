"""List the files of a store: the rows of the view files."""

from __future__ import annotations

import itertools
from typing import Any

from pyrocketstore.consume_queue.units import CQ_STORE_UNIT_SIZE
from pyrocketstore.spark.plan.snapshot import StoreSnapshot
from pyrocketstore.spark.schemas import FILES


def list_files(snapshot: StoreSnapshot) -> list[dict[str, Any]]:
    """Return the rows of the view files."""
    store = snapshot.store
    broker = snapshot.place.broker_name
    rows = []
    end = snapshot.max_phy_offset
    for file in store.commit_log.mapped_file_queue.mapped_files:
        used = min(file.file_size, max(0, end - file.file_from_offset))
        first_time = _first_time(snapshot, file.file_from_offset, used)
        rows.append(_row(broker, "commitlog", file, file.file_from_offset, used, first_time))
    for before, row in itertools.pairwise(rows):
        before["maxStoreTimestamp"] = row["minStoreTimestamp"]
    if rows:
        newest = store.files.newest_store_timestamp()
        rows[-1]["maxStoreTimestamp"] = newest if newest > 0 else None
    for queue in store.consume_queues():
        stop = queue.get_max_offset_in_queue() * CQ_STORE_UNIT_SIZE
        for file in queue.mapped_file_queue.mapped_files:
            used = min(file.file_size, max(0, stop - file.file_from_offset))
            rows.append(_row(broker, "consumequeue", file, file.file_from_offset, used))
    for index in store.index_service.files:
        times = index.begin_timestamp or None, index.end_timestamp or None
        rows.append(_row(broker, "index", index, index.begin_phy_offset, index.used_size, *times))
    return rows


def _row(
    broker: str,
    kind: str,
    file: Any,
    from_offset: int,
    used: int,
    first_time: int | None = None,
    last_time: int | None = None,
) -> dict[str, Any]:
    sizes = from_offset, file.file_size, used
    values = broker, kind, file.path, *sizes, first_time, last_time
    return dict(zip(FILES, values, strict=True))


def _first_time(snapshot: StoreSnapshot, phy_offset: int, used: int) -> int | None:
    if used <= 0:
        return None
    size = snapshot.store.commit_log.record_size(phy_offset)
    found = snapshot.store.commit_log.pickup_store_timestamp(phy_offset, size)
    return found if found > 0 else None
