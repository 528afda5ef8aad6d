"""Goal: whichever rule deletes files of the log, and wherever they are, a power cut gives no queue
offset twice, no removed message back, and leaves no gap in the log.
Method: a simulated device is cut before each unlink and each flush of a directory while files
expire. Of what is not durable, only deletions survive: those in each set of directories."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from device import Captured, Change, Folder
from removal_cuts import (
    DELETED,
    EXT,
    LMQ,
    NOTHING,
    READ_ONLY_PATH,
    SEVERAL_PATHS,
    WAYS,
    Cut,
    Way,
    consume,
    put,
)
from survivors import Choice

KINDS: dict[str, dict[str, Any]] = {"plain": {}, "ext": EXT, "light": LMQ}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "several": SEVERAL_PATHS,
    "read-only": READ_ONLY_PATH,
}
LIGHT = frozenset({"%LMQ%t"})
#: A cut before one of these calls may leave another state than the one before.
CALLS = frozenset({"unlink", "fsync_directory"})

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")


class Case(NamedTuple):
    """A way of removal, and the settings of the store; the kind of its queues."""

    way: Way
    settings: dict[str, Any]
    kind: str


def cases() -> list[Any]:
    """Return each pair of a way, a kind, a layout and a flush once at least."""
    found = []
    for (i, way), (j, kind) in itertools.product(enumerate(WAYS), enumerate(KINDS)):
        layout = list(LAYOUTS)[(i + j) % 3]
        flush = ("SYNC_FLUSH", "ASYNC_FLUSH")[(i // 3 + j) % 2]
        settings = WAYS[way].settings | KINDS[kind] | LAYOUTS[layout] | {"flush_disk_type": flush}
        found.append(
            pytest.param(Case(WAYS[way], settings, kind), id=f"{way}-{kind}-{layout}-{flush}")
        )
    return found


def examine_images(
    cut: Cut, moments: list[Captured], judge: Callable[[Any], object], pages: Choice = DELETED
) -> None:
    """Judge the store of each image: the deletions of each set of directories are durable."""
    seen = set()
    for number, moment in enumerate(moments):
        contents = {file: durable for file, (durable, _) in moment.files.items()}
        folders = list(dict.fromkeys(one.folder for one in moment.changes if one.node is None))
        for kept in itertools.product((False, True), repeat=len(folders)):
            durable: set[Folder] = set(itertools.compress(folders, kept))

            def survives(one: Change, durable: set[Folder] = durable) -> bool:
                return one.node is not None or one.folder in durable

            left = tuple(one for one in moment.changes if survives(one))
            if (left, state := tuple(contents.values())) in seen:
                continue
            seen.add((left, state))
            try:
                with cut.image(moment, pages, survives) as store:
                    judge(store)
            except BaseException as error:
                error.add_note(f"moment {number}, before {moment.call}, durable: {kept}")
                raise
    print(f"{len(moments)} moments, {len(seen)} images")


def begin(tmp_path: Path, settings: dict[str, Any], **more: Any) -> Cut:
    """Open a store; if one path of its log is only read, that one has got a file before."""
    settings = dict(settings)
    read_only = settings.pop("read_only_commit_log_store_paths", None)
    cut = Cut(tmp_path, settings, **more)
    if read_only is not None:
        cut.fill(3)
        cut.open_again({"read_only_commit_log_store_paths": read_only})
    return cut


def expire(cut: Cut, way: Way) -> list[Captured]:
    """Remove all files of the log but the last one; return the moments."""
    first, count = cut.log_files()[0], len(cut.log_files())
    assert count > 2
    moments = cut.moments(CALLS, lambda: way.remove(cut))
    assert len(cut.log_files()) == 1
    assert not Path(first).exists()
    assert {moment.call for moment in moments} > CALLS
    return moments


def keeps_offsets(topic: str) -> Callable[[Any], None]:
    """Return a judge: the topic has got 6 messages, which the group "g" has read."""

    def judge(store: Any) -> None:
        assert store.max_offset(topic, 0) == 6
        found = [int(message.body) for message in store.read(topic)]
        assert found == list(range(6 - len(found), 6))
        assert store.verify().ok
        for number in range(6, 9):
            if topic in LIGHT:
                store.put("wide", b"%d" % number, properties={"INNER_MULTI_DISPATCH": topic})
            else:
                store.put(topic, b"%d" % number)
        assert consume(store, "g", topic, 10) == [6, 7, 8]

    return judge


@pytest.mark.parametrize("case", cases())
def test_no_queue_offset_is_given_twice(tmp_path: Path, case: Case) -> None:
    """The units of a message are durable before its file of the log expires."""
    cut = begin(tmp_path, case.settings)
    topic = "%LMQ%t" if case.kind == "light" else "t"
    put(cut, topic, range(3))
    cut.store.flush()
    put(cut, topic, range(3, 6))
    assert consume(cut.store, "g", topic, 6) == list(range(6))
    cut.fill(2)
    moments = expire(cut, case.way)
    cut.end()
    examine_images(cut, moments, keeps_offsets(topic))
