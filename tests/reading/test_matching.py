"""Goal: `where=` selects by properties in `read`, `read_batch`, `consumer`, `follow` and in the
commands, with the same answers everywhere.
Method: messages with random properties in several queues; each call is compared with
`Sql92Filter.matches` over everything."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import DamagedMessageError, Sql92Filter, StoreFormatError, StoreTypeError
from support.seed import SEED
from support.sizes import SIZES

COUNT = 300
FILTERS = (
    "a > 5 AND region IN ('eu', 'us')",
    "a BETWEEN 2 AND 7 OR b IS NULL",
    "NOT (region = 'eu') AND b IS NOT NULL",
    "missing IS NULL",
    "missing = 'x'",
    "TAGS = 'A' AND a <= 3",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    rng = random.Random(SEED)
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(COUNT):
            named = {"a": str(rng.randrange(10)), "region": rng.choice(("eu", "us", "as", "é"))}
            if rng.random() < 0.5:
                named["b"] = "x"
            if rng.random() < 0.1:
                named["a"] = "none"
            store.put(
                "t", b"%d" % number, queue_id=number % 3, properties=named, tags=rng.choice("AB")
            )
    return root


def expected(store: pyrocketstore.Store, where: str, queue_id: int | None) -> list[bytes]:
    passing = Sql92Filter(where)
    return [m.body for m in store.read("t", queue_id) if passing.matches(m.properties)]


@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("read_only", [False, True])
def test_each_call_selects_the_same(path: Path, where: str, read_only: bool) -> None:
    with pyrocketstore.open(path, read_only=read_only, **SIZES) as store:
        everything = expected(store, where, None)
        assert [m.body for m in store.read("t", None, where=where)] == everything
        for queue_id in range(3):
            wanted = expected(store, where, queue_id)
            assert [m.body for m in store.read("t", queue_id, where=where)] == wanted
            for columns in (["body"], None, ["properties_map", "body"], ["queue_offset", "body"]):
                batch = store.read_batch("t", queue_id, start=0, where=where, columns=columns)
                assert batch.column("body").to_pylist() == wanted
                if columns is not None:
                    assert batch.schema.names == columns
                assert batch.schema.metadata[b"next_offset"] == b"%d" % (COUNT // 3)
            none = store.read_batch("t", queue_id, start=0, where=where, columns=[])
            assert (none.num_rows, none.num_columns) == (len(wanted), 0)
        with store.consumer(f"g{read_only}", "t", where=where) as consumer:
            found = []
            while polled := consumer.poll(50, 0):
                found += [m.body for m in polled]
        assert sorted(found) == sorted(everything)


def test_a_consumer_passes_what_it_leaves_out(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(20):
            store.put("t", b"%d" % number, properties={"a": str(number)})
        with store.consumer("g", "t", where="a < 5") as consumer:
            assert [m.body for m in consumer.poll(32, 0)] == [b"%d" % n for n in range(5)]
            assert consumer.poll(32, 0) == []
            consumer.commit()
        (row,) = store.consumer_positions()
        assert row.position == 20
        with store.consumer("g", "t", where="a < 5") as consumer:
            store.put("t", b"20", properties={"a": "20"})
            store.put("t", b"21", properties={"a": "1"})
            assert [m.body for m in consumer.poll(32, 1)] == [b"21"]


def test_tags_and_where_both_count(path: Path) -> None:
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        found = [m.body for m in store.read("t", 0, tags="A", where="region = 'eu'")]
        assert found == expected(store, "TAGS = 'A' AND region = 'eu'", 0)
        batch = store.read_batch("t", start=0, tags="A", where="region = 'eu'", columns=["body"])
        assert batch.column("body").to_pylist() == found


def test_a_filter_object_is_a_filter_too(path: Path) -> None:
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        passing = Sql92Filter(FILTERS[0])
        assert [m.body for m in store.read("t", 0, where=passing)] == expected(store, FILTERS[0], 0)


@pytest.mark.parametrize("where", ["a >", "", "a = ", "'a", 7, b"a = 1"])
def test_wrong_filters(path: Path, where: Any) -> None:
    kind = StoreTypeError if not isinstance(where, str) else StoreFormatError
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        for call in (
            lambda: store.read("t", where=where),
            lambda: store.read("t", None, where=where),
            lambda: store.read_batch("t", start=0, where=where),
            lambda: store.consumer("g", "t", where=where),
        ):
            with pytest.raises(kind):
                call()


def test_damage_is_reported_also_for_what_may_not_match(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(5):
            store.put("t", b"body %d" % number, properties={"a": str(number)})
        store.flush()
        log = tmp_path / "commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"body 0"))
            file.write(b"body x")
        reader = store.read("t", where="a > 2", check_crc=True)
        with pytest.raises(DamagedMessageError):
            next(iter(reader))
        assert [m.body for m in reader] == [b"body 3", b"body 4"]
        assert reader.skipped.count == 1


def test_the_command(path: Path) -> None:
    words = ["-m", "pyrocketstore", "cat", str(path), "t", "--json", "--where", FILTERS[0]]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        wanted = [body.decode() for body in expected(store, FILTERS[0], None)]
    assert [line["body"] for line in found] == wanted
    bad = subprocess.run(
        [sys.executable, *words[:-1], "a >"], capture_output=True, text=True, check=False
    )
    assert bad.returncode
    assert "Traceback" not in bad.stderr


# ---- follow -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", FILTERS)
def test_follow_selects_the_same(path: Path, where: str) -> None:
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        for queue_id in (None, 0, 2):
            found = [m.body for m in store.follow("t", queue_id, where=where, timeout=0)]
            assert sorted(found) == sorted(expected(store, where, queue_id))
        both = [m.body for m in store.follow("t", 0, where=where, tags="A", timeout=0)]
        assert both == [m.body for m in store.read("t", 0, where=where, tags="A")]


def test_follow_waits_for_a_message_that_passes(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        messages = store.follow("t", where=Sql92Filter("a > 5"), timeout=0.2)
        for number in (1, 7, 2, 9):
            store.put("t", b"%d" % number, properties={"a": str(number)})
        assert [next(messages).body for _ in range(2)] == [b"7", b"9"]
        done = threading.Event()

        def others() -> None:
            while not done.wait(0.02):
                store.put("t", b"1", properties={"a": "1"})

        thread = threading.Thread(target=others)
        thread.start()
        try:
            assert list(messages) == []  # only other messages came within the timeout
        finally:
            done.set()
            thread.join()


@pytest.mark.parametrize("at", range(4))
def test_an_interrupted_filter_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    with pyrocketstore.open(tmp_path, **SIZES) as store:
        for number in range(4):
            store.put("t", b"%d" % number, properties={"a": str(number % 2)})
        messages = store.follow("t", where="a = '1'", timeout=0)
        calls, matches = iter(range(100)), Sql92Filter.matches

        def interrupted(self: Sql92Filter, properties: Any) -> bool:
            if next(calls) == at:
                raise KeyboardInterrupt
            return matches(self, properties)

        monkeypatch.setattr(Sql92Filter, "matches", interrupted)
        found = []
        for _ in range(6):
            try:
                found.append(next(messages).body)
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
        assert found == [b"1", b"3"]


@pytest.mark.parametrize("where", ["a >", 7])
def test_follow_refuses_wrong_filters(path: Path, where: Any) -> None:
    refusal = StoreTypeError if where == 7 else StoreFormatError
    with pyrocketstore.open(path, read_only=True, **SIZES) as store, pytest.raises(refusal):
        store.follow("t", where=where)


def test_the_command_follow(path: Path) -> None:
    words = ["-m", "pyrocketstore", "follow", str(path), "t", "--json", "--timeout", "0"]
    words += ["--queue", "1", "--where", FILTERS[0]]
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    found = [json.loads(line)["body"].encode() for line in run.stdout.splitlines()]
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        assert found == expected(store, FILTERS[0], 1)


@pytest.mark.parametrize("where", [1, b"a = 1", True, ["a = 1"]])
def test_a_filter_of_another_type_names_the_argument(path: Path, where: Any) -> None:
    reason = f"^where must be a str, a Sql92Filter or None, not {type(where).__name__}$"
    with pyrocketstore.open(path, read_only=True, **SIZES) as store:
        for call in (
            lambda: store.read("t", where=where),
            lambda: store.read_batch("t", start=0, where=where),
            lambda: store.follow("t", where=where),
            lambda: store.consumer("g", "t", where=where),
        ):
            with pytest.raises(StoreTypeError, match=reason):
                call()


@pytest.mark.parametrize("command", ["cat", "follow"])
def test_a_wrong_filter_is_wrong_usage(path: Path, command: str) -> None:
    words = ["-m", "pyrocketstore", command, str(path), "t", "--where", "a >"]
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert run.returncode == 2
    assert "character 4" in run.stderr
