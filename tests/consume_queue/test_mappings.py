"""Goal: any number of queues gets its units, however few files the system lets a process map.
Method: an Env reports another vm.max_map_count, or mmap fails; then the units of every queue are
compared with what was put."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy
import pytest

from pyrocketstore.consume_queue._units import ConsumeQueueCore
from pyrocketstore.consume_queue.mappings import QueueMapping, QueueMappings
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.results import Status
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing
from support.queues import FILE_SIZE, SIZE, files_of, fill, message, open_queue, rows_of

NONE_MAPPED = 0


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of the process: queues of other tests must not count."""
    monkeypatch.setattr(QueueMappings, "_all", [])


class SmallEnv(Env):
    """An Env of a system that lets a process map few files."""

    maps = 4

    def max_map_count(self) -> int:
        return self.maps


def unmapped_env() -> SmallEnv:
    env = SmallEnv()
    env.maps = NONE_MAPPED
    return env


def unmapped_queue(path: Path, env: Env | None = None, **settings: object) -> ConsumeQueue:
    env = env or unmapped_env()
    queue = open_queue(path, env=env, mappings=QueueMappings(env), **settings)
    assert isinstance(queue, ConsumeQueue)
    return queue


def queues_of(path: Path, env: Env, mappings: QueueMappings, count: int) -> list[ConsumeQueue]:
    queues = []
    for queue_id in range(count):
        folder = str(path / "consumequeue")
        queues.append(ConsumeQueue("T", queue_id, folder, FILE_SIZE, env, mappings=mappings))
        queues[-1].load()
    return queues


def is_mapped(queue: ConsumeQueue) -> bool:
    return any(file.is_mapped for file in queue.mapped_file_queue.mapped_files)


def test_an_unmapped_queue_has_the_bytes_of_a_mapped_one(tmp_path: Path) -> None:
    kinds = {"mapped": open_queue(tmp_path / "mapped"),
             "unmapped": unmapped_queue(tmp_path / "unmapped")}  # fmt: skip
    for queue in kinds.values():
        fill(queue, 13)  # over the end of a file
        assert queue.put_message_position_info(37 * SIZE, SIZE, 37, 37)  # a gap over two files
        columns = [numpy.arange(38, 55), numpy.full(17, SIZE), numpy.arange(38, 55)]
        phy_offset, size, code = columns
        queue.put_units(phy_offset * SIZE, size.astype(numpy.int32), code)
        fill(queue, 300, first=55)  # more units than until the next decision
    assert is_mapped(kinds["mapped"]) and not is_mapped(kinds["unmapped"])
    assert kinds["unmapped"].core.unmapped
    assert files_of(tmp_path / "mapped") == files_of(tmp_path / "unmapped")
    assert rows_of(kinds["mapped"]) == rows_of(kinds["unmapped"])


def test_a_flush_of_an_unmapped_queue_syncs_its_file(tmp_path: Path) -> None:
    env = unmapped_env()
    queue = unmapped_queue(tmp_path, env)
    fill(queue, 3)
    synced: list[bytes] = []

    def sync(original, fd: int) -> int:  # type: ignore[no-untyped-def]
        synced.append(Path(f"/proc/self/fd/{fd}").read_bytes()[:60])
        return int(original(fd))

    with broken(env, "fdatasync", sync):
        while not queue.flush(0):
            pass
    assert synced and synced[-1] == files_of(tmp_path)[f"{0:020d}"][:60]
    assert queue.mapped_file_queue.flushed_where == 60


def test_only_so_many_queues_are_mapped(tmp_path: Path) -> None:
    env = SmallEnv()
    env.maps = 8
    queues = queues_of(tmp_path, env, QueueMappings(env), 20)
    for first in range(0, 40, 4):
        for queue in queues:
            fill(queue, 4, first)
    assert sum(map(is_mapped, queues)) == 6
    for queue in queues:
        assert rows_of(queue) == [message(n) for n in range(40)]


def test_the_stores_of_a_process_share_the_bound(tmp_path: Path) -> None:
    env = SmallEnv()
    env.maps = 64
    first, second = QueueMappings(env), QueueMappings(env)
    for queue in queues_of(tmp_path / "first", env, first, 60):
        fill(queue, 1)
    others = queues_of(tmp_path / "second", env, second, 60)
    for queue in others:
        fill(queue, 1)
    assert (first.count, second.count) == (48, 3)
    for queue in others:
        queue.shutdown()
    assert second.count == 0


class OneQueue:
    def detach(self) -> None:
        pass


def test_a_queue_with_ext_units_counts_twice() -> None:
    env = SmallEnv()
    env.maps = 64
    mappings = QueueMappings(env, 2)
    queues = [OneQueue() for _ in range(30)]
    admitted = [mappings.admit(QueueMapping(ConsumeQueueCore(), q)) for q in queues]
    assert admitted == [True] * 24 + [False] * 6


def test_a_refused_mapping_is_no_error(tmp_path: Path) -> None:
    """The system may refuse mappings below the bound, since others in the process map memory."""
    env = Env()
    mappings = QueueMappings(env)
    queues = queues_of(tmp_path, env, mappings, 20)
    for queue in queues[:16]:
        fill(queue, 3)
    with failing(env, "mmap", errno.ENOMEM) as refused:
        fill(queues[16], 3)
        assert len(refused) == 2  # with the new file, and when it is attached
        assert mappings.count == 14, "some mappings are given back for others in the process"
        for queue in queues[17:]:
            fill(queue, 3)
        for queue in queues:
            fill(queue, 5, first=3)
        assert len(refused) == 2, "none is tried beyond the new bound"
    assert sum(map(is_mapped, queues)) == 14
    for queue in queues:
        assert rows_of(queue) == [message(n) for n in range(8)]


def test_an_open_that_fails_for_a_while_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit of an unmapped file needs a descriptor."""
    monkeypatch.setattr("pyrocketstore.consume_queue.retries.RETRY_INTERVAL_S", 0.001)
    env = unmapped_env()
    queue = unmapped_queue(tmp_path, env)
    fill(queue, 3)
    with failing(env, "open", errno.EMFILE):
        assert queue.core.put(3 * SIZE, SIZE, 3, 3) == -errno.EMFILE
    failures = [errno.EMFILE] * 5

    def busy(original, *args) -> int:  # type: ignore[no-untyped-def]
        return -failures.pop() if failures else int(original(*args))

    with broken(env, "open", busy):
        assert queue._persist(lambda: queue.put_message_position_info(3 * SIZE, SIZE, 3, 3))
    assert not failures and not queue.failed
    assert rows_of(queue) == [message(n) for n in range(4)]


def test_a_busy_queue_takes_the_mapping_of_an_idle_one(tmp_path: Path) -> None:
    env = SmallEnv()
    env.maps = 8
    queues = queues_of(tmp_path, env, QueueMappings(env), 20)
    at = 0
    for queue in queues:
        assert queue.put_message_position_info(at, SIZE, 0, 0)
        at += SIZE
    assert not is_mapped(queues[-1])
    for n in range(1, 2000):
        assert queues[-1].put_message_position_info(at, SIZE, n, n)
        at += SIZE
    assert is_mapped(queues[-1]) and not queues[-1].core.unmapped
    assert sum(map(is_mapped, queues)) == 6
    assert queues[-1].get_max_offset_in_queue() == 2000


def test_under_an_equal_load_mappings_are_kept(tmp_path: Path) -> None:
    """Exchanging them would cost more than what it saves."""
    env = SmallEnv()
    env.maps = 16
    mappings = QueueMappings(env)
    queues = queues_of(tmp_path, env, mappings, 40)
    at = 0
    seen = []
    for n in range(1500):
        for queue in queues:
            assert queue.put_message_position_info(at, SIZE, n, n)
            at += SIZE
        seen.append([not queue.core.unmapped for queue in queues])
    changed = sum(a != b for a, b in zip(seen[0], seen[-1], strict=True))
    assert seen[0].count(True) == 12 and changed <= 2


def test_a_run_of_units_may_end_with_the_decision(tmp_path: Path) -> None:
    """A run is longer than what an unmapped file takes until Python decides again."""
    queue = unmapped_queue(tmp_path, file_size=20 * 20000)
    count = 9000
    numbers = numpy.arange(count)
    queue.put_units(numbers * SIZE, numpy.full(count, SIZE, numpy.int32), numbers)
    assert queue.core.put(count * SIZE, SIZE, count, count) == Status.NEED_FILE
    fill(queue, 2, first=count)
    assert rows_of(queue) == [message(n) for n in range(count + 2)]


def test_a_removed_queue_gives_its_mapping_back(tmp_path: Path) -> None:
    env = SmallEnv()
    mappings = QueueMappings(env)
    queues = queues_of(tmp_path, env, mappings, 5)
    for queue in queues:
        fill(queue, 1)
    assert [queue.core.unmapped for queue in queues] == [False] * 3 + [True] * 2
    queues[0].destroy()
    assert mappings.count == 2
    queues[3].detach()
    fill(queues[3], 1, first=1)
    assert not queues[3].core.unmapped
    queues[4].destroy()
    assert not (tmp_path / "consumequeue/T/4").exists()
    fill(queues[4], 2)
    assert rows_of(queues[4]) == [message(0), message(1)]
