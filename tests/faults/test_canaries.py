"""Goal: the power cuts of test_power_cut.py find a broken store. Method: one part of the engine at
a time is broken, by a table entry that does nothing or by another method, and programs run until an
image breaks a promise.

Parts in C cannot be broken this way: the order inside a group commit, the put path and the compiled
dispatch. Their promises are broken from outside instead: an ASYNC_FLUSH store is expected to keep
the promises of SYNC_FLUSH.
"""

from __future__ import annotations

import ctypes
import dataclasses
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign import Campaign, memory_directory
from device import Device
from judge import Broken
from openings import exchanged_index, killed, open_and_flush, open_twice
from pyrocketstore.errors import StoreError
from pyrocketstore.files.store_checkpoint import StoreCheckpoint
from pyrocketstore.flush.flush_services import FlushConsumeQueueService
from pyrocketstore.index import index_service
from pyrocketstore.index._entries import SlotTable
from pyrocketstore.index.directory import FoundIndexFile
from pyrocketstore.index.index_service import FlushIndexFileThread, IndexService
from pyrocketstore.index.sync_point import SyncPoint
from pyrocketstore.message_store import closing, engine, loading
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.recovery.apply import Applying
from pyrocketstore.recovery.plan import Planning
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.store.api import Store
from pyrocketstore.system.env import Env
from pyrocketstore.system.life_state import Life
from support.broken_env import PROTOTYPES

#: Number of programs after which a canary counts as not found.
PROGRAMS = 120
#: How often the first one runs.
TRIES = 4
Patch = pytest.MonkeyPatch


def finds(tmp_path: Path, first: int = 0, **attributes: Any) -> str:
    """Run programs until one breaks a promise; return a text on it.

    Program `first` is known to find it, unless the timing of threads differs: it runs again then.
    """
    with memory_directory(tmp_path) as path:
        campaign = Campaign(path, only="")
        campaign.keeps_failures = False
        for name, value in attributes.items():
            setattr(campaign, name, value)
        for number in (*[first] * TRIES, *range(first + 1, first + PROGRAMS)):
            try:
                campaign.program(f"canary-{number}")
            except (Broken, StoreError) as error:
                print(f"found by image {campaign.images} of program {number}: {str(error)[:200]}")
                return str(error)
    pytest.fail(f"{campaign.images} images, and nothing was found")


def skipping(patch: Patch, *names: str) -> None:
    """Let calls of the table return success and do nothing, unseen by the device."""
    attach = Device.attach

    def attach_and_skip(device: Device, env: Env) -> Env:
        attach(device, env)
        for name in names:
            nothing = PROTOTYPES[name](lambda *arguments: 0)
            env.keep.append(nothing)  # type: ignore[attr-defined]
            env.replace(name, ctypes.cast(nothing, ctypes.c_void_p).value)
        return env

    patch.setattr(Device, "attach", attach_and_skip)


@pytest.mark.parametrize(
    "names", [("msync",), ("fdatasync", "fsync"), ("fsync_directory",), ("syncfs",)], ids=" ".join
)
def test_a_flush_that_does_nothing(tmp_path: Path, monkeypatch: Patch, names: tuple[str]) -> None:
    skipping(monkeypatch, *names)
    finds(tmp_path, 3 * (names == ("fsync_directory",)))


def test_a_put_that_is_acknowledged_too_early(tmp_path: Path) -> None:
    found = finds(tmp_path, sync_type="ASYNC_FLUSH")
    assert "lost" in found or "has None for" in found, found


def test_an_aput_that_is_acknowledged_too_early(tmp_path: Path, monkeypatch: Patch) -> None:
    async def aput(store: Any, topic: str, body: bytes, **options: Any) -> Any:
        given = [options.pop(name, None) for name in ("tags", "keys", "properties")]
        queue_id = options.pop("queue_id", 0)
        assert not options
        return store._append_path.put(topic, body, queue_id, *given, 0, 0, None, None)

    monkeypatch.setattr(Store, "aput", aput)
    finds(tmp_path, 14)


@pytest.mark.parametrize("error", [-1, 1])
def test_a_cut_that_is_a_byte_off(tmp_path: Path, monkeypatch: Patch, error: int) -> None:
    plain = Planning.make_plan

    def wrong(planning: Planning) -> RecoveryPlan:
        plan = plain(planning)
        is_cut = plan.log_end > 0 and not plan.clean
        return dataclasses.replace(plan, log_end=plan.log_end + error * is_cut)

    monkeypatch.setattr(Planning, "make_plan", wrong)
    finds(tmp_path)


def test_a_unit_that_is_there_twice(tmp_path: Path, monkeypatch: Patch) -> None:
    plain = Applying.apply_plan

    def twice(applying: Applying) -> None:
        plain(applying)
        store: Any = applying._store
        for queue in store.consume_queues():
            unit = queue.reader.last_unit()
            last = queue.mapped_file_queue.get_last_mapped_file(need_create=False)
            if not store.read_only and unit is not None and not last.is_full():
                last.append_message(struct.pack(">qiq", *unit))
                queue.set_end(unit[0] + unit[1])

    monkeypatch.setattr(Applying, "apply_plan", twice)
    finds(tmp_path)


def test_a_body_that_is_not_compared_with_its_crc(tmp_path: Path) -> None:
    finds(tmp_path, 6, settings={"check_crc_on_recover": False})


def test_an_index_file_that_is_not_flushed(tmp_path: Path, monkeypatch: Patch) -> None:
    def force(thread: FlushIndexFileThread, index_file: Any) -> None:
        thread._checkpoint.index_msg_timestamp = index_file.end_timestamp
        thread._checkpoint.flush()

    monkeypatch.setattr(FlushIndexFileThread, "_flush", force)
    finds(tmp_path, 2)


def test_an_index_whose_flush_is_left_out(tmp_path: Path, monkeypatch: Patch) -> None:
    """After a close nothing is replayed, so bytes that a file lacks stay lost."""
    busy: set[int] = set()  # threads
    msync, moment = Device._msync, Device.moment

    def unforced(method: Callable[[IndexService], None]) -> Callable[[IndexService], None]:
        def call(service: IndexService) -> None:
            busy.add(threading.get_ident())
            try:
                method(service)
            finally:
                busy.discard(threading.get_ident())

        return call

    def force(device: Device, original: Callable[..., int], base: int, size: int) -> int:
        return 0 if threading.get_ident() in busy else msync(device, original, base, size)

    def look(device: Device, call: str, path: bytes | None = None) -> None:
        if call == "closed":
            moment(device, call, path)

    for name in ("flush", "shutdown"):
        monkeypatch.setattr(IndexService, name, unforced(getattr(IndexService, name)))
    monkeypatch.setattr(Device, "_msync", force)
    monkeypatch.setattr(Device, "moment", look)
    found = finds(tmp_path)
    assert "keys" in found, found


def test_a_lock_that_is_taken_after_the_files_are_read(tmp_path: Path, monkeypatch: Patch) -> None:
    def load(store: Any) -> None:
        store._create_directories()
        try:
            store._load_to_write()
            store._lock_file.take()
        except BaseException:
            store.closing.give_up()
            raise
        store.life.move(Life.LOADED)

    open_twice(tmp_path / "valid")
    monkeypatch.setattr(engine.Engine, "load", load)
    with pytest.raises(AssertionError):
        open_twice(tmp_path / "broken")


def by_time_alone(checkpoint: StoreCheckpoint, headers: list[tuple[int, int]]) -> int:
    """Keep the index files that 4.9.3 keeps after a crash."""
    return sum(end <= checkpoint.index_msg_timestamp for end, _ in headers)


def no_heads(make_plan: Callable[..., Any]) -> Callable[..., Any]:
    """Make plans that ignore a missing first file of a queue."""

    def plan_without(*arguments: Any) -> Any:
        return dataclasses.replace(make_plan(*arguments), missing_first_file=[])

    return plan_without


def test_an_index_file_that_is_kept_by_its_time_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(StoreCheckpoint, "durable_index_files", by_time_alone)
    finds(tmp_path, 26)


def test_a_queue_whose_first_file_is_not_missed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Planning, "make_plan", no_heads(Planning.make_plan))
    finds(tmp_path, 17)


def test_a_killed_process_whose_work_is_not_flushed(tmp_path: Path, monkeypatch: Patch) -> None:
    """Power cuts find this defect too, but not in every hundred programs."""
    monkeypatch.setattr(loading, "unforced_directories", lambda *_, **settings: [])
    with pytest.raises(AssertionError, match="each of the four files"):
        open_and_flush(killed(tmp_path / "store"))


def test_new_directories_whose_names_are_never_flushed(tmp_path: Path, monkeypatch: Patch) -> None:
    fsync = Env.fsync_new_names

    def not_of_queues(env: Env, path: str) -> None:
        if "/consumequeue/" not in path:
            fsync(env, path)

    monkeypatch.setattr(Env, "fsync_new_names", not_of_queues)
    finds(tmp_path, 5)


def persist_last(patch: Patch, wrapped: type, method: str) -> None:
    """Have topics.json written after a method that must write it, and not in it."""
    call, persist = getattr(wrapped, method), TopicConfigFile.persist

    def then_persist(caller: Any, *arguments: Any) -> None:
        late: set[TopicConfigFile] = set()
        with patch.context() as inside:
            inside.setattr(TopicConfigFile, "persist", lambda file, at_once=True: late.add(file))
            inside.setattr(TopicConfigFile, "close", lambda file: None)
            call(caller, *arguments)
        for file in late:
            persist(file)

    patch.setattr(wrapped, method, then_persist)


def test_a_checkpoint_that_is_written_before_the_topics(tmp_path: Path, monkeypatch: Patch) -> None:
    persist_last(monkeypatch, FlushConsumeQueueService, "do_flush")
    assert "topics.json" in finds(tmp_path, 18)


def test_a_clean_end_before_the_topics(tmp_path: Path, monkeypatch: Patch) -> None:
    """The file `abort` is deleted first."""
    persist_last(monkeypatch, closing.Closing, "_shutdown")
    assert "topics.json" in finds(tmp_path)


def test_topics_that_a_recovery_does_not_complete(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(loading.Loading, "_complete_topics", lambda *plan: None)
    assert "topics.json" in finds(tmp_path)


def test_slots_that_are_not_derived_from_the_entries(tmp_path: Path, monkeypatch: Patch) -> None:
    class Kept:
        """The slots of the file as a power cut left them."""

        def __init__(self, table: SlotTable) -> None:
            self.slot_count = table.slot_count

        def write_to(self, env: Env, path: str) -> None:
            pass

    service = index_service.IndexService
    write = service._write_continued

    def keep(self: index_service.IndexService, slots: SlotTable, point: SyncPoint) -> None:
        kept: Any = Kept(slots)
        write(self, kept, point)

    monkeypatch.setattr(service, "_write_continued", keep)
    finds(tmp_path)


def test_a_sync_point_that_is_believed_blindly(tmp_path: Path, monkeypatch: Patch) -> None:
    def believe(env: Env, found: FoundIndexFile, point: SyncPoint) -> SlotTable:
        return SlotTable(env, found.path, point.hash_slot_num, point.index_count)

    exchanged_index(tmp_path / "valid")
    monkeypatch.setattr(index_service, "proven_slots", believe)
    with pytest.raises(AssertionError):
        exchanged_index(tmp_path / "broken")
