"""Goal: half messages are one transaction if they are copies of each other, and two if a producer
has reused its UNIQ_KEY; copies do not hold the positions back.
Method: a table of pairs of half messages, put by the engine's own put as a broker writes them, with
what became of the first one and where the broker's position is; all is committed, and counted."""

from __future__ import annotations

import itertools
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from support.grids import mostly_slow
from support.sizes import SIZES
from support.transactions import HALF, commit_of_another, half_of_another

OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
BORN = 1_700_000_000_000

#: Properties of a half message that a check of 4.9.3 changes when it puts it back.
COPIES: dict[str, dict[str, Any]] = {
    "put back": {"TRANSACTION_CHECK_TIMES": "1"},
    "put back often": {"TRANSACTION_CHECK_TIMES": "14"},
    "put back within its immunity": {
        "TRANSACTION_CHECK_TIMES": "1", "TRAN_PREPARED_QUEUE_OFFSET": "77", "WAIT": "false",
    },
    "put back with light queues": {
        "TRANSACTION_CHECK_TIMES": "2", "INNER_MULTI_QUEUE_OFFSET": "5",
        "INNER_MULTI_DISPATCH": "%LMQ%a",
    },
}  # fmt: skip
#: Changes that make another transaction of it.
OTHERS: dict[str, dict[str, Any]] = {
    "other body": {"body": b"other"},
    "other birth": {"born": BORN + 1},
    "other host": {"host": "127.0.0.1:7"},
    "other keys": {"KEYS": "other"},
    "other user property": {"a": "c"},
    "one property more": {"b": "c"},
    "other group": {"PGROUP": "other"},
    "other queue": {"REAL_QID": "1"},
    "other topic": {"REAL_TOPIC": "u"},
}
OTHERS |= {f"{name}, put back": {**kind, **COPIES["put back"]} for name, kind in OTHERS.items()}
#: The end of the first half message.
FATES = ("undecided", "rolled back", "committed", "committed without op")


def opened(path: Path, **more: Any) -> pyrocketstore.Store:
    settings = {"transaction_check_interval": 10_000_000, "transaction_time_out": -1, **SIZES}
    return pyrocketstore.open(path, **{**settings, **more})


def put_half(store: pyrocketstore.Store, unique_id: str | None, **more: Any) -> Any:
    """Put the half message of the table, with what `more` changes."""
    named = {"body": b"x", "born": BORN, "KEYS": "k", "a": "b", "WAIT": "true", **more}
    return half_of_another(store, named.pop("body"), unique_id, **named)


def delivered(store: pyrocketstore.Store) -> int:
    return sum(len(list(store.read(name, None))) for name in ("t", "u") if store.queues(name))


def make(path: Path, second: dict[str, Any], fate: str, unique_id: str | None, passed: int) -> None:
    """Make the store of a row: two half messages, and a position that passes none or the first."""
    with opened(path / "live") as store:
        light = {name: value for name, value in second.items() if name == "INNER_MULTI_DISPATCH"}
        half = store.get(put_half(store, unique_id, **light).phy_offset)
        assert half is not None
        if fate.startswith("committed"):
            commit_of_another(store, half, half.phy_offset)
        if fate in ("rolled back", "committed"):
            store.put(OP, b"0", tags="d")
        put_half(store, unique_id, **second)
        if passed:
            consumers = store._all_consumers()
            consumers.load()
            consumers.offsets.commit_offset("CID_RMQ_SYS_TRANS", HALF, 0, passed)
            consumers.offsets.commit_offset("CID_RMQ_SYS_TRANS", OP, 0, 0)
            consumers.offsets.persist()
        store.flush()
        shutil.copytree(path / "live", path / "killed", ignore=shutil.ignore_patterns("lock"))
    (path / "live").rename(path / "clean")


def check(path: Path, expected: int) -> None:
    """Commit what is undecided; compare the number of messages, also after another opening."""
    with pyrocketstore.open(path, read_only=True, **SIZES) as reader:
        undecided = [one.transaction_id for one in reader.transactions()]
    with opened(path) as store:
        assert [one.transaction_id for one in store.transactions()] == undecided
        for one in store.transactions():
            one.commit()
        assert store.transactions() == []
        assert delivered(store) == expected
    with opened(path) as store:
        assert store.transactions() == []
        assert delivered(store) == expected
        store.message_store.services.transaction_service.persist()
        rows = {row.topic: row.position for row in store.consumer_positions()}
        assert rows[HALF] == store.max_offset(HALF) == 2


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("name", mostly_slow(OTHERS, 9))
def test_a_reused_message_is_two_transactions(tmp_path: Path, name: str, fate: str) -> None:
    for unique_id, passed in itertools.product(("id", None), (0, 1)):
        folder = tmp_path / f"{unique_id} {passed}"
        make(folder, OTHERS[name], fate, unique_id, passed)
        # The position passes only what is decided, or was put back as a copy behind it.
        expected = 1 if fate == "rolled back" or (passed and fate == "undecided") else 2
        for end in ("clean", "killed"):
            check(folder / end, expected)


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("name", COPIES)
def test_copies_are_one_transaction(tmp_path: Path, name: str, fate: str) -> None:
    for unique_id, passed in itertools.product(("id", None), (0, 1)):
        if fate != "undecided" and passed and unique_id is None:
            continue  # nothing is left that shows what became of it
        folder = tmp_path / f"{unique_id} {passed}"
        make(folder, COPIES[name], fate, unique_id, passed)
        is_lost_op = passed and fate == "rolled back"  # 4.9.3 asks about the copy again, too
        for end in ("clean", "killed"):
            check(folder / end, 1 if is_lost_op or fate != "rolled back" else 0)


@pytest.mark.parametrize("unique_id", ["id", None])
def test_several_generations_of_copies_are_one(tmp_path: Path, unique_id: str | None) -> None:
    """A broker that is killed before it writes its position puts the original back again."""
    with opened(tmp_path) as store:
        for times in (0, 1, 2, 3, 1, 2, 1):
            put_half(store, unique_id, **({"TRANSACTION_CHECK_TIMES": str(times)} if times else {}))
        put_half(store, unique_id, body=b"y")
        put_half(store, unique_id, body=b"y", TRANSACTION_CHECK_TIMES="1")
    with opened(tmp_path) as store:
        assert [one.message.body for one in store.transactions()] == [b"x", b"y"]
        for one in store.transactions():
            one.commit()
        assert sorted(message.body for message in store.read("t")) == [b"x", b"y"]


def test_equal_half_messages_without_unique_key_are_two(tmp_path: Path) -> None:
    """Nothing shows that one is a copy of the other."""
    with opened(tmp_path) as store:
        put_half(store, None)
        put_half(store, None)
    with opened(tmp_path) as store:
        for one in store.transactions():
            one.commit()
        assert delivered(store) == 2


def test_the_id_of_several_transactions_names_the_first(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(3):
            put_half(store, "id", body=b"%d" % number)
    for number in range(3):
        with pyrocketstore.open(tmp_path, read_only=True, **SIZES) as reader:
            found = reader.transaction("id")
            assert found is not None
            assert found.message.body == b"%d" % number
        with opened(tmp_path) as store:
            found = store.transaction("id")
            assert found is not None
            found.commit()
            assert len(store.transactions()) == 2 - number
    with opened(tmp_path) as store:
        assert store.transaction("id") is None
        assert [message.body for message in store.read("t")] == [b"0", b"1", b"2"]


def test_what_is_merged_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        for times in "123":
            put_half(store, "merged", TRANSACTION_CHECK_TIMES=times)
        put_half(store, "decided", body=b"y")
        put_half(store, "decided", body=b"y", TRANSACTION_CHECK_TIMES="1")
        store.put(OP, b"3", tags="d")
    with caplog.at_level(logging.WARNING), opened(tmp_path) as store:
        assert [one.transaction_id for one in store.transactions()] == ["merged"]
    text = caplog.text
    assert "2 half messages are copies of 1 undecided transactions" in text
    assert "queue offsets 4: copies of the decided half message of transaction decided" in text


@pytest.mark.parametrize("ending", ["committed", "rolled back", "discarded", "undecided"])
@pytest.mark.parametrize("reused", [False, True])
def test_positions_pass_the_copies_at_the_first_put_back(
    tmp_path: Path, ending: str, reused: bool
) -> None:
    """A killed broker has left 40 half messages of each transaction, without op messages."""
    with opened(tmp_path) as store:
        for times, number in itertools.product(range(40), range(3)):
            marks = {"TRANSACTION_CHECK_TIMES": str(times)} if times else {}
            put_half(store, "id" if reused else f"id{number}", body=b"%d" % number, **marks)
    check_max = 45 if ending == "discarded" else 10_000
    for _ in range(2):
        more = {"transaction_check": lambda one: None, "transaction_check_max": check_max}
        with opened(tmp_path, **more) as store:
            service = (store.transactions(), store.message_store.services.transaction_service)[1]
            for _ in range(5):
                service.check_undecided()
                service.persist()
                rows = {row.topic: row.position for row in store.consumer_positions()}
                assert store.max_offset(HALF) - rows[HALF] == len(store.transactions())
    with opened(tmp_path) as store:
        for one in store.transactions():
            if ending == "committed":
                one.commit()
            elif ending == "rolled back":
                one.rollback()
        assert len(store.transactions()) == 3 * (ending == "undecided")
        assert delivered(store) == 3 * (ending == "committed")
        ops = [int(message.body) for message in store.read(OP)]
        assert len(set(ops)) == len(ops)
