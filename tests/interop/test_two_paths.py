"""Goal: each side opens a log in two directories that the other side wrote, after a clean stop and
after a crash. Method: random messages from either side, then from the other into the same paths;
both sides dump, and the dumps must be equal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import DefaultMessageStore, MessageStoreConfig
from pyrocketstore.config.message_store_config import java_name
from pyrocketstore.verify.dump import dump_lines
from support.cleaned_stores import SetEnv
from support.golden_lines import compare_lines, write_queries
from support.java_store import require_java
from support.random_messages import random_messages, random_queries, to_inner

pytestmark = pytest.mark.java

CONFIG = {
    "mappedFileSizeCommitLog": 16_384,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 100,
    "maxIndexNum": 150,
    "maxMessageSize": 8192,
}


def paths_of(home: Path) -> dict[str, Any]:
    return {**CONFIG, "storePathCommitLog": f"{home}/b,{home}/a"}


def settings_of(home: Path) -> MessageStoreConfig:
    names = {java_name(name): name for name in MessageStoreConfig.__dataclass_fields__}
    named = {names[key]: value for key, value in paths_of(home).items()}
    return MessageStoreConfig(store_path_root_dir=str(home / "r"), **named)


def put_ours(home: Path, specs: list[dict[str, Any]]) -> list[int]:
    """Put, delete all files that may be deleted, and close; return the store times."""
    env = SetEnv()
    env.used[""] = 86
    store = DefaultMessageStore(settings_of(home), env=env)
    store.load()
    store.start()
    cleaner = store.services.clean_resource
    assert cleaner is not None
    if store.get_max_phy_offset() == 0:
        results = [store.put_message(to_inner(spec)) for spec in specs]
        store.wait_dispatched()
        assert cleaner.clean_commit_log.delete_expired_files() > 2
        results += [store.put_message(to_inner(spec)) for spec in specs]
        cleaner.clean_consume_queue.run()
        assert store.get_min_phy_offset() > 0
    else:
        results = [store.put_message(to_inner(spec)) for spec in specs]
    store.shutdown()
    assert {result.status.name for result in results} == {"PUT_OK"}
    return [result.store_timestamp for result in results]


def put_theirs(home: Path, specs: list[dict[str, Any]], ending: str) -> list[int]:
    results = require_java().put(home / "r", specs, paths_of(home), ending=ending)
    assert {result["status"] for result in results} == {"PUT_OK"}
    return [result["store_timestamp"] for result in results]


def numbers(path: Path) -> list[int]:
    return sorted(int(p.name) // CONFIG["mappedFileSizeCommitLog"] for p in path.glob("0*"))


@pytest.mark.parametrize("first", ["ours", "halt"])
def test_two_paths_open_on_the_other_side(first: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    specs = random_messages(31, 240, ("v6",), max_body=900)
    one, two = specs[:120], specs[120:]
    if first == "ours":
        times = put_ours(home, one) + put_theirs(home, two, "clean")  # twice those of the first
    else:
        times = put_theirs(home, one, first) + put_ours(home, two)
    a, b = numbers(home / "a"), numbers(home / "b")
    assert len(a) > 2
    assert all(number % 2 == 0 for number in a), "by name: a is the first"
    assert all(number % 2 == 1 for number in b)
    numbered = sorted(a + b)
    assert numbered == list(range(numbered[0], numbered[-1] + 1))
    assert (numbered[0] > 0) == (first == "ours"), "ours was cleaned"
    rows = random_queries(3, specs, (min(times), max(times)))
    queries = write_queries(tmp_path / "q.tsv", rows)
    ours = list(dump_lines(home / "r", settings_of(home), queries))
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    theirs = require_java().dump(copy / "r", paths_of(copy), queries)
    compare_lines(theirs, ours, unclean=False)
    found = sum(line.startswith('{"message"') for line in ours)
    assert 240 < found < 360 if first == "ours" else found == 240
