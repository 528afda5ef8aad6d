"""Goal: a transaction is decided once, by the program, by its block or by a check, and is found
again after the process that has made it.
Method: `Store.prepare` and the calls of what it returns; the records of other writers are put by
the engine's own put; rounds of checks are run by hand."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    MessageExt,
    PutError,
    StoreFormatError,
    StoreStateError,
    StoreTypeError,
    Transaction,
)
from pyrocketstore.transaction import service as transaction_service
from support.sizes import SIZES
from support.transactions import commit_of_another, half_of_another, put_by

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD = "TRANS_CHECK_MAX_TIME_TOPIC"
NEVER = 10_000_000
LONGEST_S = 20.0
#: The birth of half messages that are copies.
BORN = 1_700_000_000_000


def opened(path: Path, **more: Any) -> pyrocketstore.Store:
    settings = {"transaction_check_interval": NEVER, "transaction_time_out": -1, **SIZES, **more}
    return pyrocketstore.open(path, **settings)


def messages(store: pyrocketstore.Store, topic: str = "t") -> list[MessageExt]:
    return list(store.read(topic, None)) if store.queues(topic) else []


def bodies(store: pyrocketstore.Store, topic: str = "t") -> list[bytes]:
    return [message.body for message in messages(store, topic)]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def service_of(store: pyrocketstore.Store) -> Any:
    store.transactions()
    return store.message_store.services.transaction_service


def prepared(store: pyrocketstore.Store, body: bytes = b"x", **more: Any) -> Transaction:
    return store.prepare("t", body, group="g", **more)


def positions(store: pyrocketstore.Store) -> dict[str, int]:
    return {row.topic: row.position for row in store.consumer_positions()}


# ---- decisions ----------------------------------------------------------------------------------


def test_a_block_commits_and_rolls_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with prepared(store, b"yes", keys="k", tags="A", queue_id=2) as transaction:
            assert bodies(store) == []
            assert (transaction.topic, transaction.queue_id) == ("t", 2)
        assert transaction.status == "committed"
        with pytest.raises(KeyError), prepared(store, b"no") as transaction:
            raise KeyError
        assert transaction.status == "rolled back"
        with prepared(store, b"decided inside") as transaction:
            transaction.rollback()
        with pytest.raises(KeyError), prepared(store, b"kept") as transaction:
            transaction.commit()
            raise KeyError
        assert sorted(bodies(store)) == [b"kept", b"yes"]
        (found,) = store.query("t", "k")
        assert (found.queue_id, found.tags, found.sys_flag & 0xC) == (2, "A", 8)
        assert store.query("t", found.properties["UNIQ_KEY"]) == [found]
        assert store.verify().ok


def test_a_decision_is_made_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first, second = prepared(store), prepared(store)
        result = first.commit()
        assert result is not None
        assert first.commit() is result is first.result
        with pytest.raises(StoreStateError, match="it was committed"):
            first.rollback()
        second.rollback()
        second.rollback()
        with pytest.raises(StoreStateError, match="it was rolled back"):
            second.commit()
        assert bodies(store) == [b"x"]
        assert [op.body for op in messages(store, OP)] == [b"0", b"1"]
        assert store.transactions() == []


def test_what_is_found_again_is_the_same(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        made = prepared(store, b"1", properties={"a": "b"}, flag=7, born_timestamp=12)
        other = prepared(store, b"2")
        assert [one.transaction_id for one in store.transactions()] == [
            made.transaction_id,
            other.transaction_id,
        ]
    with pyrocketstore.open(tmp_path, read_only=True) as reader:
        found = reader.transaction(made.transaction_id)
        assert found is not None
        assert (found.message.body, found.message.flag) == (b"1", 7)
        assert (found.born_timestamp, found.group, found.status) == (12, "g", "prepared")
        with pytest.raises(StoreStateError, match="read-only"):
            found.commit()
        with pytest.raises(StoreStateError, match="read-only"):
            reader.prepare("t", b"", group="g")
        assert len(reader.transactions()) == 2
        with opened(tmp_path) as store:
            again = store.transaction(made.transaction_id)
            assert again is not None
            again.commit()
            (message,) = messages(store)
            assert (message.flag, message.born_timestamp) == (7, 12)
            assert message.properties["a"] == "b"
            assert store.transaction(made.transaction_id) is None
            store.flush()
        reader.refresh()
        assert [one.message.body for one in reader.transactions()] == [b"2"]


def test_the_handle_belongs_to_an_open_store(tmp_path: Path) -> None:
    store = opened(tmp_path)
    made = prepared(store)
    store.close()
    for call in (made.commit, made.rollback, lambda: made.message):
        with pytest.raises(StoreStateError, match="closed"):
            call()
    store = opened(tmp_path)
    found = store.transactions()[0]
    del store
    gc.collect()
    assert found.commit() is not None  # it keeps the store open
    found._owner.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("checks", [False, True])
def test_a_store_that_nobody_holds_is_closed(tmp_path: Path, checks: bool) -> None:
    more = {"transaction_check": lambda one: None} if checks else {}
    store = opened(tmp_path, transaction_check_interval=5, **more)
    prepared(store).commit()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del store
        gc.collect()
    with opened(tmp_path) as store:
        assert bodies(store) == [b"x"]


def test_threads_decide_one_transaction_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(20):
            transaction, outcomes = prepared(store), list[str]()

            def decide(
                call: Callable[[], object], outcomes: list[str] = outcomes, name: str = ""
            ) -> None:
                try:
                    call()
                    outcomes.append(name)
                except StoreStateError:
                    pass

            threads = [
                threading.Thread(target=decide, args=(call,), kwargs={"name": name})
                for call, name in (
                    (transaction.commit, "c"), (transaction.rollback, "r"),
                    (transaction.commit, "c"), (transaction.rollback, "r"),
                )
            ]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(set(outcomes)) == 1
            assert len(outcomes) == 2
            assert transaction.status == {"c": "committed", "r": "rolled back"}[outcomes[0]]
        ops = [int(op.body) for op in messages(store, OP)]
        assert sorted(ops) == list(range(20))


def test_many_threads_prepare_and_decide(tmp_path: Path) -> None:
    with opened(tmp_path) as store:

        def work(number: int) -> None:
            for count in range(50):
                transaction = prepared(store, b"%d %d" % (number, count))
                if count % 3 == 0:
                    transaction.commit()
                elif count % 3 == 1:
                    transaction.rollback()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = sorted(b"%d %d" % (n, count) for n in range(4) for count in range(0, 50, 3))
        assert sorted(bodies(store)) == expected
        service_of(store).persist()
    with opened(tmp_path) as store:
        left = sorted(one.message.body for one in store.transactions())
        assert left == sorted(b"%d %d" % (n, count) for n in range(4) for count in range(2, 50, 3))
        assert sorted(bodies(store)) == expected


def test_a_signal_handler_in_a_decision(tmp_path: Path) -> None:
    """It may decide another transaction, and an error says that it interrupts this one."""
    with opened(tmp_path) as store:
        first, second = prepared(store, b"1"), prepared(store, b"2")
        service, refused = service_of(store), list[StoreStateError]()

        def handle(number: int, frame: object) -> None:
            put_by(service, put)
            second.commit()
            with pytest.raises(StoreStateError, match="interrupted") as caught:
                first.rollback()
            refused.append(caught.value)

        def interrupted(message: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return put(message)

        before = signal.signal(signal.SIGUSR1, handle)
        put = put_by(service, interrupted)
        try:
            first.commit()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert refused
        assert sorted(bodies(store)) == [b"1", b"2"]


def test_two_searches_for_what_an_interrupted_put_has_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later search does not register a transaction that the caller of the first decided."""
    with opened(tmp_path) as store:
        service = service_of(store)

        def interrupted(message: Any) -> Any:
            put(message)
            raise KeyboardInterrupt

        put = put_by(service, interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepared(store, b"x")
        put_by(service, put)
        read = transaction_service.read_prepared

        def overtaken(*args: Any) -> Any:
            found = read(*args)
            monkeypatch.setattr(transaction_service, "read_prepared", read)
            store.transactions()[0].commit()
            return found

        monkeypatch.setattr(transaction_service, "read_prepared", overtaken)
        assert store.transactions() == []
        assert bodies(store) == [b"x"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_that_raises_in_a_put(tmp_path: Path, when: str) -> None:
    """Each call may be repeated: what it has stored is found."""
    with opened(tmp_path) as store:
        service, armed = service_of(store), list[bool]()

        def interrupted(message: Any) -> Any:
            result = put(message) if when == "after" or not armed else None
            if armed.pop() if armed else False:
                raise KeyboardInterrupt
            return result

        put = put_by(service, interrupted)
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            prepared(store, b"x")
        assert len(store.transactions()) == (when == "after")
        transaction = store.transactions()[0] if when == "after" else prepared(store, b"x")
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            transaction.commit()
        if when == "after":
            assert store.transactions() == []
            assert transaction.result is not None
        result = transaction.commit()
        assert (result.queue_offset, result.message_count) == (0, 1)
        assert store.get(result.msg_id) == store.get(result.phy_offset)
        other = prepared(store, b"y")
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            other.rollback()
        other.rollback()
        put_by(service, put)
        assert bodies(store) == [b"x"]
        assert store.transactions() == []
        service_of(store).check_undecided()
        service_of(store).persist()
        assert positions(store)[HALF] == store.max_offset(HALF)
    with opened(tmp_path) as store:
        assert bodies(store) == [b"x"]
        assert store.transactions() == []


# ---- checks -------------------------------------------------------------------------------------


def test_a_message_within_its_immunity_is_not_asked_about(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def check(transaction: Transaction) -> None:
        asked.append(transaction.message.body)

    with opened(tmp_path, transaction_check=check, transaction_time_out=600_000) as store:
        prepared(store, b"young")
        prepared(store, b"old", born_timestamp=1)
        prepared(store, b"late", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "0"})
        prepared(store, b"odd", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "x"})
        time.sleep(0.002)
        service_of(store).check_undecided()
        assert asked == [b"old", b"late"]
        assert bodies(store, HALF)[4:] == [b"old", b"late"]  # put back
        assert [one.check_times for one in store.transactions()] == [0, 0, 1, 1]


def test_nothing_is_asked_inside_of_a_block(tmp_path: Path) -> None:
    asked: list[bytes] = []
    with opened(tmp_path, transaction_check=lambda one: asked.append(one.message.body)) as store:
        with prepared(store, b"in"):
            service_of(store).check_undecided()
            assert asked == []
        assert bodies(store) == [b"in"]


class Text(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("of the program")

    def __str__(self) -> str:
        raise ValueError("of the program")


@pytest.mark.parametrize(
    "answer",
    ["commit", "rollback", None, "yes", True, 1, np.array(["commit", "x"]), np.array(["commit"]),
     Text("yes")],
)  # fmt: skip
def test_answers(tmp_path: Path, answer: object) -> None:
    with opened(tmp_path, transaction_check=lambda one: answer) as store:
        transaction = prepared(store)
        service_of(store).check_undecided()
        expected = {"commit": "committed", "rollback": "rolled back"}
        wanted = expected.get(answer, "prepared") if isinstance(answer, str) else "prepared"
        assert transaction.status == wanted
        assert transaction.check_times == (wanted == "prepared")


def test_the_text_of_an_answer_counts(tmp_path: Path) -> None:
    with opened(tmp_path, transaction_check=lambda one: Text("commit")) as store:
        transaction = prepared(store)
        service_of(store).check_undecided()
        assert transaction.status == "committed"


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, MemoryError]
)
def test_no_exception_of_a_check_ends_the_store(tmp_path: Path, error: type[BaseException]) -> None:
    def check(transaction: Transaction) -> None:
        asked.set()
        raise error

    asked = threading.Event()
    with opened(tmp_path, transaction_check=check, transaction_check_interval=5) as store:
        prepared(store)
        assert asked.wait(LONGEST_S)
        until(lambda: store.transactions()[0].check_times > 1)
        store.put("t", b"")


def test_a_handler_closes_the_store_inside_of_a_decision(tmp_path: Path) -> None:
    """The thread of the checks must not wait for the call that the handler has interrupted."""
    more = {"transaction_check": lambda one: None, "transaction_check_interval": 1}
    store = opened(tmp_path, **more)
    transaction, main = prepared(store), threading.get_ident()

    def interrupted(message: Any) -> Any:
        if threading.get_ident() == main:
            time.sleep(0.05)  # the check comes to this transaction
            signal.raise_signal(signal.SIGUSR1)
        return put(message)

    before = signal.signal(signal.SIGUSR1, lambda *_: store.close())
    try:
        service = service_of(store)
        put = put_by(service, interrupted)
        with pytest.raises(StoreStateError, match="closed"):
            transaction.commit()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not service.is_alive
    with opened(tmp_path) as again:
        assert len(again.transactions()) == 1


def test_each_half_message_gets_an_op_message(tmp_path: Path) -> None:
    """A broker whose position is before a half message without one decides it again."""
    with opened(tmp_path, transaction_check=lambda one: None) as store:
        blocking = prepared(store, b"slow", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
        first, second = prepared(store, b"paid"), prepared(store, b"refused")
        for _ in range(5):
            service_of(store).check_undecided()
        first.commit()
        second.rollback()
        assert blocking.status == "prepared"
    with opened(tmp_path) as store:
        assert positions(store).get(HALF, 0) == 0
        named = {int(op.body) for op in messages(store, OP)}
        assert named == set(range(1, store.max_offset(HALF)))


def test_copies_that_a_broker_has_left_get_one_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(4):
            half_of_another(store, b"x", "id", born=BORN)
        for _ in range(3):
            half_of_another(store, b"y", "decided", born=BORN)
        store.put(OP, b"5", tags="d")
    with opened(tmp_path) as store:
        (transaction,) = store.transactions()
        assert {int(op.body) for op in messages(store, OP)} == {4, 5, 6}
        transaction.rollback()
        assert {int(op.body) for op in messages(store, OP)} == set(range(7))


def test_a_close_writes_the_positions_of_an_earlier_process(tmp_path: Path) -> None:
    with opened(tmp_path / "0") as store:
        prepared(store).commit()
        prepared(store).rollback()
        store.flush()
        shutil.copytree(tmp_path / "0", tmp_path / "1", ignore=shutil.ignore_patterns("lock"))
    with opened(tmp_path / "1") as store:
        assert store.transactions() == []
    with opened(tmp_path / "1") as store:
        assert positions(store) == {HALF: 2, OP: 2}


def test_a_check_that_raises_or_decides_itself(tmp_path: Path) -> None:
    def check(transaction: Transaction) -> str:
        if transaction.message.body == b"raises":
            raise ValueError("of the program")
        transaction.rollback()
        return "commit"

    with opened(tmp_path, transaction_check=check) as store:
        first, second = prepared(store, b"raises"), prepared(store, b"decides")
        service_of(store).check_undecided()
        assert (first.status, first.check_times) == ("prepared", 1)
        assert second.status == "rolled back"
        assert bodies(store) == []


def test_after_so_many_checks_a_transaction_is_discarded(tmp_path: Path) -> None:
    with opened(tmp_path, transaction_check=lambda one: None, transaction_check_max=2) as store:
        transaction = prepared(store, tags="A", keys="k")
        for _ in range(3):
            service_of(store).check_undecided()
        assert transaction.status == "discarded"
        (message,) = messages(store, DISCARD)
        assert message.properties == transaction.message.properties
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"
        with pytest.raises(StoreStateError, match="discarded"):
            transaction.commit()
        transaction.rollback()
    with opened(tmp_path) as store:
        assert store.transactions() == []
        assert bodies(store) == []


@pytest.mark.parametrize("expires", [True, False])
def test_an_old_transaction_is_discarded_only_if_files_expire(
    tmp_path: Path, expires: bool
) -> None:
    more = {"file_reserved_time": 1} if expires else {}
    with opened(tmp_path, transaction_check=lambda one: None, **more) as store:
        old = store.message_store.now() - 2 * 3_600_000
        transaction = prepared(store, born_timestamp=old)
        service_of(store).check_undecided()
        assert transaction.status == ("discarded" if expires else "prepared")


def test_the_thread_checks_what_an_earlier_process_has_left(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepared(store)
    asked = threading.Event()

    def check(transaction: Transaction) -> str:
        asked.set()
        return "commit"

    more = {"transaction_check": check, "transaction_check_interval": 5}
    with opened(tmp_path, **more) as store:
        assert asked.wait(LONGEST_S)
        end = time.monotonic() + LONGEST_S
        while store.transactions():
            assert time.monotonic() < end
            time.sleep(0.002)
        assert bodies(store) == [b"x"]


def test_a_close_does_not_wait_for_a_check(tmp_path: Path) -> None:
    begun, ends = threading.Event(), threading.Event()

    def check(transaction: Transaction) -> str:
        begun.set()
        assert ends.wait(LONGEST_S)
        return "commit"

    with opened(tmp_path, transaction_check=check, transaction_check_interval=5) as store:
        prepared(store)
        assert begun.wait(LONGEST_S)
    ends.set()
    with opened(tmp_path) as store:
        assert bodies(store) == []
        assert len(store.transactions()) == 1


def test_a_check_may_close_the_store(tmp_path: Path) -> None:
    closed = threading.Event()

    def check(transaction: Transaction) -> str:
        store.close()
        closed.set()
        return "commit"

    store = opened(tmp_path, transaction_check=check, transaction_check_interval=5)
    prepared(store)
    assert closed.wait(LONGEST_S)
    assert store.closed
    with opened(tmp_path) as store:
        assert len(store.transactions()) == 1


# ---- what other writers leave -------------------------------------------------------------------


def test_a_commit_record_of_an_earlier_half_message_counts(tmp_path: Path) -> None:
    """A broker committed the first half message while it put it back: one message, not two."""
    with opened(tmp_path) as store:
        half = store.get(half_of_another(store, b"x", "id", born=BORN).phy_offset)
        assert half is not None
        half_of_another(store, b"x", "id", born=BORN, TRANSACTION_CHECK_TIMES="10")
        commit_of_another(store, half, half.phy_offset)
        # The positions of the broker have passed the first half message and its op message.
        offsets = store._all_consumers()
        offsets.load()
        offsets.offsets.commit_offset("CID_RMQ_SYS_TRANS", HALF, 0, 1)
    with opened(tmp_path) as store:
        assert store.transactions() == []
        assert bodies(store) == [b"x"]
        assert [op.body for op in messages(store, OP)] == [b"1"]


@pytest.mark.parametrize("size", [1, 300])
def test_a_commit_record_without_an_op_message_counts(tmp_path: Path, size: int) -> None:
    with opened(tmp_path) as store:
        for _ in range(size):
            store.put("t", b"between")
        for body in (b"a", b"b"):
            result = half_of_another(store, body, None if body == b"a" else "id", KEYS="k")
            half = store.get(result.phy_offset)
            assert half is not None
            for _ in range(size):
                store.put("t", b"between", tags="A", keys="k")
            commit_of_another(store, half, half.phy_offset)
    with pyrocketstore.open(tmp_path, read_only=True) as reader:
        assert reader.transactions() == []
    with opened(tmp_path) as store:
        assert store.transactions() == []
        assert [op.body for op in messages(store, OP)] == [b"0", b"1"]
        assert sorted(set(bodies(store))) == [b"a", b"b", b"between"]
        assert bodies(store).count(b"a") == bodies(store).count(b"b") == 1


def test_an_op_message_of_a_removed_queue_decides_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(OP, b"0", tags="d")
        half_of_another(store, b"x", "id")
    with opened(tmp_path) as store:
        assert [one.transaction_id for one in store.transactions()] == ["id"]


@pytest.mark.parametrize(
    "named",
    [{"REAL_TOPIC": ""}, {"REAL_TOPIC": "../x"}, {"REAL_QID": "-1"}, {"REAL_QID": "x"},
     {"REAL_TOPIC": HALF}],
)  # fmt: skip
def test_a_half_message_that_names_no_queue_is_left_out(
    tmp_path: Path, named: dict[str, str]
) -> None:
    with opened(tmp_path) as store:
        half_of_another(store, b"odd", "odd", **named)
        half_of_another(store, b"x", "id")
    with opened(tmp_path) as store:
        assert [one.transaction_id for one in store.transactions()] == ["id"]


@pytest.mark.parametrize("body", [b"", b"x", b"-1", b"\xff", b"99999999999999999999", b"1"])
def test_an_op_message_that_names_nothing_is_left_out(tmp_path: Path, body: bytes) -> None:
    with opened(tmp_path) as store:
        half_of_another(store, b"x", "id")
        store.put(OP, body, tags="d")
    with opened(tmp_path) as store:
        (transaction,) = store.transactions()
        transaction.commit()
    with opened(tmp_path) as store:
        assert store.transactions() == []
        assert positions(store) == {HALF: 1, OP: 2 if body != b"1" else 0}


def test_an_op_message_for_the_original_decides_what_was_put_back(tmp_path: Path) -> None:
    """4.9.3 puts a half message back within its immunity, and names the first one."""
    with opened(tmp_path) as store:
        half_of_another(store, b"x", "id")
        half_of_another(store, b"x", None, TRAN_PREPARED_QUEUE_OFFSET="0")
        store.put(OP, b"0", tags="d")
    with opened(tmp_path) as store:
        assert store.transactions() == []


def test_an_op_message_has_the_tag_of_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        half_of_another(store, b"x", "id")
        for tags in ("D", "x", None):
            store.put(OP, b"0", tags=tags)
    with opened(tmp_path) as store:
        assert [one.transaction_id for one in store.transactions()] == ["id"]


def test_a_half_message_that_names_light_queues_waits_too(tmp_path: Path) -> None:
    light: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    with opened(tmp_path, **light) as store:
        with pytest.raises(StoreFormatError, match="INNER_MULTI_DISPATCH"):
            prepared(store, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        half_of_another(store, b"x", "id", INNER_MULTI_DISPATCH="%LMQ%a")
        shown = len(bodies(store, "%LMQ%a"))  # 4.9.3's store puts it there itself
    with opened(tmp_path, transaction_check=lambda one: None, **light) as store:
        for _ in range(3):
            service_of(store).check_undecided()
        assert len(bodies(store, "%LMQ%a")) == shown
        store.transactions()[0].commit()
        assert len(bodies(store, "%LMQ%a")) == shown + 1
    with opened(tmp_path, **light) as store:
        assert store.transactions() == []


# ---- positions ----------------------------------------------------------------------------------


def test_positions_pass_what_is_decided_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        made = [prepared(store, b"%d" % number) for number in range(6)]
        assert positions(store) == {}
        for number in (0, 1, 3):
            made[number].commit()
        service_of(store).persist()
        assert positions(store) == {HALF: 2, OP: 2}
        made[2].rollback()
        service_of(store).persist()
        assert positions(store) == {HALF: 4, OP: 4}
    with opened(tmp_path) as store:
        assert [one.message.body for one in store.transactions()] == [b"4", b"5"]
        service_of(store).persist()
        assert positions(store) == {HALF: 4, OP: 4}


def test_positions_behind_the_end_are_of_another_queue(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        half_of_another(store, b"x", "id")
        consumers = store._all_consumers()
        consumers.load()
        consumers.offsets.commit_offset("CID_RMQ_SYS_TRANS", HALF, 0, 50)
        consumers.offsets.commit_offset("CID_RMQ_SYS_TRANS", OP, 0, 50)
    with opened(tmp_path) as store:
        (transaction,) = store.transactions()
        transaction.commit()
    with opened(tmp_path) as store:
        assert store.transactions() == []
        assert positions(store) == {HALF: 1, OP: 1}


@pytest.mark.parametrize("half", [None, 0, 1000])
def test_an_op_position_alone_passes_nothing(tmp_path: Path, half: int | None) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            prepared(store).rollback()
        store.close()
    rows = {f"{OP}@CID_RMQ_SYS_TRANS": {0: 3}}
    if half is not None:
        rows[f"{HALF}@CID_RMQ_SYS_TRANS"] = {0: half}
    (tmp_path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": rows}))
    with opened(tmp_path) as store:
        assert store.transactions() == []


@pytest.mark.parametrize("read_only", [False, True])
def test_no_consumer_takes_the_positions(tmp_path: Path, read_only: bool) -> None:
    with opened(tmp_path) as store:
        prepared(store)
    with opened(tmp_path, read_only=read_only) as store:
        if read_only:  # in memory
            store.consumer("CID_RMQ_SYS_TRANS", HALF).close()
        else:
            with pytest.raises(StoreFormatError, match="CID_RMQ_SYS_TRANS"):
                store.consumer("CID_RMQ_SYS_TRANS", HALF)


def test_a_message_that_cannot_be_put_back_is_discarded(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepared(store, bytes(9000))
    more = {"max_message_size": 5000, "transaction_check_max": 2}
    with opened(tmp_path, transaction_check=lambda one: None, **more) as store:
        (transaction,) = store.transactions()
        for _ in range(3):
            service_of(store).check_undecided()
        assert transaction.status == "discarded"
    with opened(tmp_path) as store:
        assert store.transactions() == []


def test_a_half_message_that_expires_is_given_up(tmp_path: Path) -> None:
    with opened(tmp_path, mapped_file_size_commit_log=4096) as store:
        transaction = prepared(store)
        log = store.message_store.commit_log
        while log.get_max_offset() < log.get_min_offset() + 3 * 4096:
            store.put("t", bytes(1000))
        store.trim(before=store.message_store.now() + 1000)
        assert store.transactions() == []
        assert transaction.status == "expired"
        with pytest.raises(StoreStateError, match="expired"):
            transaction.commit()
        transaction.rollback()
        service_of(store).persist()
        assert positions(store)[HALF] == 1
        second = prepared(store, b"second")
        second.commit()
        service_of(store).persist()
        assert positions(store) == {HALF: 2, OP: 1}


def test_the_queues_of_transactions_are_kept(tmp_path: Path) -> None:
    """A queue that begins at 0 again would be passed over up to the position."""
    with opened(tmp_path, mapped_file_size_commit_log=4096) as store:
        for _ in range(3):
            prepared(store).rollback()
        log = store.message_store.commit_log
        while log.get_max_offset() < log.get_min_offset() + 3 * 4096:
            store.put("t", bytes(1000))
        store.wait_dispatched()
        store.trim(before=store.message_store.now() + 1000)
        store.message_store.clean_expired_consumer_queue()
        store.message_store.clean_unused_topic(["t"])
        assert (store.max_offset(HALF), store.max_offset(OP)) == (3, 3)
        prepared(store, b"next").commit()
    with opened(tmp_path, mapped_file_size_commit_log=4096) as store:
        assert store.transactions() == []
        assert b"next" in bodies(store)


# ---- arguments ----------------------------------------------------------------------------------


def test_arguments(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for group in ("", "a b", "x" * 256):
            with pytest.raises(StoreFormatError):
                store.prepare("t", b"", group=group)
        for value in (None, 1, b"g"):
            wrong: Any = value
            with pytest.raises(StoreTypeError):
                store.prepare("t", b"", group=wrong)
            with pytest.raises(StoreTypeError):
                store.transaction(wrong)
        for topic in (HALF, OP, "SCHEDULE_TOPIC_XXXX"):
            with pytest.raises(StoreFormatError):
                store.prepare(topic, b"", group="g")
        with pytest.raises(StoreFormatError):
            prepared(store, properties={"UNIQ_KEY": "mine"})
        with pytest.raises(PutError):
            prepared(store, bytes(store.message_store.commit_log.core.max_message_size))
        with pytest.raises(PutError):
            prepared(store, properties={"a": "x" * 32_660})
        assert store.transactions() == []
        assert messages(store, HALF) == []
    check: Any = 1
    with pytest.raises(StoreTypeError, match="transaction_check"):
        opened(tmp_path, transaction_check=check)
    with pytest.raises(StoreFormatError, match="read-only"):
        opened(tmp_path, transaction_check=print, read_only=True)
    with pytest.raises(StoreFormatError):
        opened(tmp_path, transaction_check_interval=0)


def test_the_largest_message_can_be_committed(tmp_path: Path) -> None:
    topic = "t" * 127
    with opened(tmp_path, transaction_check=lambda one: None) as store:
        size = store.message_store.commit_log.core.max_message_size
        while True:
            try:
                transaction = store.prepare(topic, bytes(size), group="g")
                break
            except PutError:
                size -= 1
        for _ in range(3):
            service_of(store).check_undecided()
        assert transaction.check_times == 3
        transaction.commit()
        assert [len(body) for body in bodies(store, topic)] == [size]


def test_a_broker_finds_the_queue_in_topics_json(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        prepared(store, queue_id=5)
    text = (tmp_path / "config" / "topics.json").read_text()
    assert '"t":{' in text.replace(" ", "").replace("\n", "").replace("\t", "")
    assert '"readQueueNums":6' in text
