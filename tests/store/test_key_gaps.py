"""Goal: each message of the log is found by its key, also if the index lacks it; an opening for
writing adds the missing keys to the index, and the log is searched only once.
Method: golden stores and own stores whose index files are deleted in all ways; query every key,
read-only and after an opening for writing, and compare with a plain list of the puts."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.commit_log.log import CommitLog
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.errors import StoreError
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.store import key_gaps
from pyrocketstore.store.key_gaps import KeyGaps
from pyrocketstore.system.env import Env
from support import key_stores
from support.broken_env import broken
from support.golden_stores import GOLDEN, KEPT, unpack
from support.key_stores import COUNT, check, index_files, keys_of, open_store
from support.sizes import SIZES
from support.snapshot import snapshot

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gaps")
    key_stores.fill(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "keys", tmp_path / "store"))


@contextmanager
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The ranges of the log in which keys are looked for."""
    ranges: list[tuple[int, int]] = []
    plain = CommitLog.keys_between

    def noted(log: CommitLog, begin: int, end: int) -> Any:
        ranges.append((begin, end))
        return plain(log, begin, end)

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "keys_between", noted)
        yield ranges


DELETED = [numbers for count in (1, 2, 5, 6) for numbers in itertools.combinations(range(6), count)]


@pytest.mark.parametrize("deleted", DELETED, ids=str)
def test_index_files_that_are_missing(
    root: Path, deleted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = index_files(root)
    assert len(files) == 6
    for number in deleted:
        files[number].unlink()
    before = snapshot(root)
    with searches(monkeypatch) as ranges, open_store(root, read_only=True) as store:
        assert not ranges, "the opening searches nothing"
        check(store)
        parts = len(ranges)
        check(store)
        assert 0 < parts == len(ranges), "the log is searched once"
        report = store.verify()
        assert report.consistent == (report.missing_count == report.problem_count)
        assert not report.complete and not report.ok
    assert snapshot(root) == before
    with open_store(root) as store:
        check(store)
        assert store.verify().ok
        store.put("T", b"%d " % COUNT, keys=keys_of(COUNT))
        check(store, COUNT + 1)
    for mark in (False, True):
        if mark:
            (root / "abort").touch()
        with searches(monkeypatch) as ranges, open_store(root) as store:
            check(store, COUNT + 1)
            assert store.verify().ok
        assert mark or sum(end - begin for begin, end in ranges) < 10_000, "nothing is missing"
    with open_store(root, read_only=True) as store:
        assert store.verify().ok


def test_the_hole_that_a_recovery_of_4_9_3_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack("broker-clean", tmp_path)
    settings: dict[str, Any] = {"config": GOLDEN / "broker-clean.conf", **KEPT}
    with pyrocketstore.open(root, read_only=True, **settings) as store:
        messages = store.query("orders", "order-5")
        assert messages and all("order-5" in m.keys.split() for m in messages)
        places = [m.phy_offset for m in messages]
        assert store.query_many("orders", ["order-5"]).phy_offset.tolist() == places
        found = {m.phy_offset for i in range(4) for m in store.read("orders", i) if m.keys}
        for place in sorted(found)[::50]:
            wanted = store.get(place)
            assert wanted is not None
            assert place in [m.phy_offset for m in store.query("orders", wanted.keys.split()[0])]
    with pyrocketstore.open(root, **settings) as store:
        assert [m.phy_offset for m in store.query("orders", "order-5")] == places
        assert store.verify().ok
        # 4.9.3's own way to look finds it, too.
        result = store.message_store.query_message("orders", "order-5", 32, 0, 1 << 62)
        assert result.phy_offsets == places
        result.release()
    with searches(monkeypatch) as ranges, pyrocketstore.open(root, **settings) as store:
        assert store.verify().ok and store.message_store.plan.replay_from is None
    assert sum(end - begin for begin, end in ranges) < 10_000


def test_4_9_3_s_answers_stay_as_they_are(tmp_path: Path) -> None:
    """Read-only, DefaultMessageStore answers as 4.9.3 does over these files."""
    root = unpack("broker-clean", tmp_path)
    config, _ = MessageStoreConfig.from_broker_conf(GOLDEN / "broker-clean.conf", root=root)
    store = DefaultMessageStore(config, read_only=True)
    store.load()
    assert store.query_message("orders", "order-5", 32, 0, 1 << 62).phy_offsets == []
    store.shutdown()


def test_messages_without_keys_are_searched_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(whole / "keyless", tmp_path / "store"))
    with searches(monkeypatch) as ranges, open_store(root, read_only=True) as store:
        for _ in range(3):
            assert store.query("T", "k1") == []
            assert len(store.query_many("T", ["a", "b"]).phy_offset) == 0
        assert len(ranges) == 1
        assert store.verify().ok
    with searches(monkeypatch) as ranges, open_store(root) as store:
        opened = len(ranges)
        assert store.query("T", "k1") == []
        assert len(ranges) == opened <= 1
        store.put("T", b"0", keys="k1")
        assert len(store.query("T", "k1")) == 1
        assert store.verify().ok


def test_what_is_not_searched_is_said(root: Path) -> None:
    shutil.rmtree(root / "index")
    with open_store(root, read_only=True, max_key_search_bytes=50_000) as store:
        end = store.message_store.get_max_phy_offset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(store.query("T", f"k{COUNT - 2}", max_num=1)) == 1
        for _ in range(2):
            with pytest.warns(pyrocketstore.StoreWarning, match=f"offsets 0 to {end - 50_000} "):
                assert store.query("T", "k1") == []
            with pytest.warns(pyrocketstore.StoreWarning, match="were not searched"):
                assert len(store.query_many("T", ["k1"]).phy_offset) == 0
    with open_store(root, max_key_search_bytes=50_000) as store:
        check(store)
        assert store.verify().ok


def test_the_command_says_what_was_not_searched(root: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pyrocketstore", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    shutil.rmtree(root / "index")
    conf = root.parent / "broker.conf"
    conf.write_text(
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "maxHashSlotNum=50\nmaxIndexNum=101\n"
    )
    result = run("query", str(root), "T", "k1", "--config", str(conf), "--json")
    assert result.returncode == 0 and json.loads(result.stdout)["keys"] == "k1"
    result = run("verify", str(root), "--config", str(conf), "--json")
    facts = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 1
    assert not any(fact.get("ok") or fact.get("complete") for fact in facts)
    result = run("info", str(root), "--config", str(conf))
    assert "not complete" in result.stdout


@pytest.mark.parametrize("call", ["fdatasync", "msync", "fallocate", "open", "pwrite", "pread"])
@pytest.mark.parametrize("at", [0, 3, 8, 20, 60])
def test_a_filling_that_fails_is_made_again(root: Path, call: str, at: int) -> None:
    for number in (0, 2, 3):
        index_files(root)[number if number == 0 else number - 1].unlink()
    env = Env()
    calls = itertools.count()

    def fail(original: Any, *args: Any) -> int:
        return original(*args) if next(calls) < at else -errno.EIO

    with broken(env, call, fail), contextlib.suppress(StoreError):
        store = open_store(root, env=env)
        store.close()
    with open_store(root) as store:
        check(store)
        assert store.verify().ok


def test_random_keys_and_deletions(tmp_path: Path) -> None:
    """A store lives on through deletions of its index, clean stops and kills."""
    draw = random.Random(pytest_seed := 20261123)
    root = tmp_path / "store"
    put: dict[str, list[int]] = {}
    places = 0
    for life in range(12):
        with open_store(root, read_only=bool(life) and draw.random() < 0.3) as store:
            for key in draw.sample(sorted(put), min(len(put), 30)):
                found = [m.phy_offset for m in store.query("T", key, max_num=1000)]
                assert found == put[key], (pytest_seed, life, key)
            for _ in range(0 if store.read_only else draw.randrange(150)):
                keys = [f"k{draw.randrange(80)}"] if draw.random() < 0.7 else None
                result = store.put("T", bytes(draw.randrange(900)), keys=keys)
                places += 1
                for key in keys or ():
                    put.setdefault(key, []).append(result.phy_offset)
        for path in index_files(root):
            if draw.random() < 0.3:
                path.unlink()
        if draw.random() < 0.3:
            (root / "abort").touch()
    with open_store(root) as store:
        for key, wanted in put.items():
            assert [m.phy_offset for m in store.query("T", key, max_num=1000)] == wanted
        assert store.verify().ok and places


def test_a_search_that_fails_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(root / "index")
    with open_store(root, read_only=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(key_gaps, "missing_keys", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                store.query("T", "k1")
        assert len(store.query("T", "k1")) == 1
    assert KeyGaps.search.__doc__


def test_keys_are_found_after_the_log_was_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: an index that survives its log does not keep new keys out. Method: the log's directory
    is deleted between two lives."""
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for i in range(50):
            store.put("t", bytes(500), keys=f"old{i}")
    shutil.rmtree(tmp_path / "commitlog")
    with pytest.warns(pyrocketstore.StoreWarning, match="no file.*messages are missing"):
        store = pyrocketstore.open(tmp_path, **SIZES)
    with store:
        store.put("t", b"", keys="new")
        assert len(store.query("t", "new")) == 1
        assert store.query("t", "old1") == []
    assert len([*tmp_path.glob(".broken/*/index/*")]) == 1
