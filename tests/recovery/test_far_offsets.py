"""Goal: offsets above 32 bits work like small ones.
Method: small stores whose log begins there, put to, killed, rebuilt and read in every way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyrocketstore
from support.far_stores import BEGINS, FILE_SIZE, SIZES, body_of, damage_body, fill_far

COUNT = 700


def bodies(store: pyrocketstore.Store) -> dict[int, bytes]:
    """Each message's number and body, by queue, as objects and as columns, and by key."""
    found = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            messages = list(store.read(topic, queue_id))
            rows: dict[str, list[object]] = {"body": [], "phy_offset": []}
            at = 0
            while at < store.max_offset(topic, queue_id):
                batch = store.read_batch(topic, queue_id, start=at, columns=list(rows))
                rows = {name: rows[name] + batch.column(name).to_pylist() for name in rows}
                at = int(batch.schema.metadata[b"next_offset"])
            assert rows["body"] == [bytes(m.body) for m in messages]
            assert rows["phy_offset"] == [m.phy_offset for m in messages]
            for message in messages:
                assert message.keys is not None
                number = int(message.keys[1:])
                found[number] = bytes(message.body)
                hits = store.query(topic, message.keys)
                assert [hit.phy_offset for hit in hits] == [message.phy_offset]
    return found


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("lost", [(), ("consumequeue",), ("consumequeue", "index")])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_that_begins_far_from_0(
    tmp_path: Path, begin: int, lost: tuple[str, ...], read_only: bool
) -> None:
    root = tmp_path / "store"
    fill_far(root, begin, COUNT)
    if lost:
        (root / "abort").touch()
        (root / "checkpoint").write_bytes(bytes(4096))
    for name in lost:
        shutil.rmtree(root / name)
    with pyrocketstore.open(root, read_only=read_only, **SIZES) as store:
        assert store.message_store.get_min_phy_offset() == begin
        assert bodies(store) == {i: body_of(i) for i in range(COUNT)}
        report = store.verify()
        assert (report.problem_count, report.records, report.index_entries) == (0, COUNT, COUNT)
        if not read_only:
            result = store.put("t0", b"next", queue_id=0)
            assert result.phy_offset > begin + 100_000


@pytest.mark.parametrize("begin", BEGINS)
def test_damage_far_from_0(tmp_path: Path, begin: int) -> None:
    """Records before it are found; those behind it are kept and named."""
    root = tmp_path / "store"
    fill_far(root, begin, COUNT)
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        damaged = store.query("t0", "k300")[0]
    damage_body(root, damaged.phy_offset)
    (root / "abort").touch()
    (root / "checkpoint").write_bytes(bytes(4096))
    with pytest.warns(pyrocketstore.StoreWarning, match=str(damaged.phy_offset % FILE_SIZE)):
        store = pyrocketstore.open(root, **SIZES)
    with store:
        assert bodies(store) == {i: body_of(i) for i in range(300)}
    kept = sum(path.stat().st_size for path in (root / ".broken").rglob("*") if path.is_file())
    assert kept > 0
