"""Goal: a plan is a value: what planning has found never changes, and readers get another object.
Method: try to change a plan; compare the plan of a refreshed store with the one before it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import pyrocketstore
from pyrocketstore.consume_queue.queues_recovery import QueuesCheck, QueuesCut
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from support.sizes import SIZES


def test_a_plan_cannot_be_changed() -> None:
    plan = RecoveryPlan(True, log_end=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.log_end = 8  # type: ignore[misc]
    assert list(plan.report()) == [
        *("clean", "log_end", "ended_by", "scan_from", "records", "broken", "replay_from"),
        *("cut_queues", "missing_first_file", "mismatched", "empty"),
    ]


def test_a_refresh_makes_another_plan(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", **SIZES) as writer:
        writer.put("T", b"one")
        writer.flush()
        with pyrocketstore.open(tmp_path / "s", read_only=True, **SIZES) as reader:
            plan = reader.message_store.plan
            assert plan is not None
            before = plan.report()
            writer.put("T", b"two")
            writer.flush()
            reader.refresh()
            newer = reader.message_store.plan
            assert newer is not None and newer.log_end > plan.log_end
            assert plan.report() == before


def test_queues_that_are_compared_and_cut(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", **SIZES) as store:
        sizes = [store.put("T", bytes(10)).wrote_bytes for _ in range(4)]
        store.flush()
        table = store.message_store.queue_table
        [queue] = table.all()
        check, end = QueuesCheck(table), store.message_store.get_max_phy_offset()
        assert check.named_to == end
        assert check.beyond(end) == {}
        assert check.beyond(end - 1) == {("T", queue.queue_id): end}
    with pyrocketstore.open(tmp_path / "s", read_only=True, **SIZES) as store:
        table = store.message_store.queue_table
        [queue] = table.all()
        cut = QueuesCut(table, end - sizes[-1], clean=True)
        cut.cut()
        cut.finish()
        assert queue.get_max_offset_in_queue() == 3
        assert queue.covered_phy_offset == end - sizes[-1]
