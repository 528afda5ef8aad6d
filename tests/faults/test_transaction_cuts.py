"""Goal: whatever ends a process, a committed message is seen once, a rolled-back one never, and an
undecided one is found again.
Method: a simulated device captures the moment before each call of a program that prepares,
decides, puts back, discards and opens again; images of each (a power cut, or a
kill) are opened, what is undecided is committed, and the messages are counted. Then each put fails
in turn."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import device as simulated
import pyrocketstore
from device import Captured, Device
from fault_programs import NEVER, open_store
from journal import SETTINGS
from judge import problems_but_torn
from pyrocketstore import PutError, Transaction
from pyrocketstore.record.message import real_queue
from pyrocketstore.system.env import Env
from support.seed import SEED
from support.transactions import put_by
from survivors import examine_images

QUIET: dict[str, Any] = {
    **SETTINGS,
    "flush_interval_commit_log": NEVER,
    "flush_interval_consume_queue": NEVER,
    "transaction_check_interval": NEVER,
    "transaction_time_out": -1,  # an image is opened in the same ms as the simulated clock
    "transaction_check_max": 2,
}
IMAGES = 2
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
#: The possible ends of a transaction after a crash.
Ends = dict[str, frozenset[str]]

pytestmark = pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")


class Life:
    """A program's store, and the ends that each transaction may have."""

    def __init__(self, root: Path, device: Device | None, ends: Ends, sync: bool = True) -> None:
        self.asked: list[str] = []
        self.sync = sync
        self.latest: Ends = {}  # true once they are durable
        self.answer: str | None = None
        self.ends = ends
        env = Env()
        if device is not None:
            device.attach(env)
        self.store = pyrocketstore.open(
            root, transaction_check=self.check, env=env, **QUIET, **flushing(sync)
        )
        service = self.store.message_store.services.transaction_service
        assert service is not None
        self.service: Any = service

    def check(self, transaction: Transaction) -> str | None:
        self.asked.append(transaction.transaction_id)
        return self.answer

    def prepare(self, number: int) -> Transaction:
        body = b"%d" % number
        self.ends[str(number)] = frozenset({"", "prepared"})
        queue_id, tags = number % 2, ("A", None)[number % 2]
        made = self.store.prepare("t", body, group="g", queue_id=queue_id, tags=tags, keys="k")
        self.settle(str(number), "prepared")
        return made

    def settle(self, number: str, end: str) -> None:
        self.latest[number] = frozenset({end})
        if self.sync:
            self.flushed()

    def flushed(self) -> None:
        self.ends.update(self.latest)
        self.latest.clear()

    def decide(self, number: int, transaction: Transaction, commits: bool) -> None:
        end = "committed" if commits else "rolled back"
        self.ends[str(number)] |= {end}
        if commits:
            transaction.commit()
        else:
            transaction.rollback()
        self.settle(str(number), end)

    def check_all(self, answer: str | None) -> None:
        """Run one round of checks; without an answer some are put back, and some discarded."""
        self.answer = answer
        open_ones = {
            transaction.message.body.decode(): transaction
            for transaction in self.store.transactions()
        }
        end = {"commit": "committed", "rollback": "rolled back", None: "discarded"}[answer]
        for number in open_ones:
            self.ends[number] |= {end, "discarded"}
        self.service.check_undecided()
        for number, transaction in open_ones.items():
            self.settle(number, transaction.status)


def flushing(sync: bool) -> dict[str, Any]:
    return {"flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}


def program(root: Path, device: Device, sync: bool) -> list[Captured]:
    """Run three lives of a store, and capture moments with the ends that are promised."""
    rng = random.Random(SEED)
    ends: Ends = {}
    device.promises = lambda: dict(ends)
    device.captures_max, device.rate = 120, 1.0
    number = 0
    for _ in range(3):
        life = Life(root, device, ends, sync)
        for commits in (True, False):
            life.decide(number, life.prepare(number), commits)
            number += 1
        for _ in range(3):
            made = []
            for _ in range(rng.randrange(1, 6)):
                made.append((number, life.prepare(number)))
                number += 1
            rng.shuffle(made)
            for one, transaction in made[: rng.randrange(len(made) + 1)]:
                life.decide(one, transaction, rng.random() < 0.6)
            if rng.random() < 0.6:
                life.check_all(rng.choice(("commit", "rollback", None, None, None)))
            if rng.random() < 0.6:
                life.service.persist()
            if rng.random() < 0.5:
                life.store.flush()
                life.flushed()
        life.store.close()
        life.flushed()
    device.moment("end")
    captures = device.take_captures()
    device.captures_max = 0
    return captures


def state(store: pyrocketstore.Store) -> tuple[Counter[str], dict[str, Transaction], set[str]]:
    """Return what is visible, what is undecided, and what was discarded, by number."""
    visible = Counter(m.body.decode() for m in _read(store, "t"))
    undecided = {one.message.body.decode(): one for one in store.transactions()}
    return visible, undecided, {m.body.decode() for m in _read(store, DISCARDED)}


def _read(store: pyrocketstore.Store, topic: str) -> list[pyrocketstore.MessageExt]:
    return list(store.read(topic, None)) if store.queues(topic) else []


def end_of(number: str, store_state: tuple[Any, Any, Any]) -> set[str]:
    """Return the ends that a store's state stands for."""
    visible, undecided, discarded = store_state
    if number in undecided:
        return {"prepared"}
    if visible[number]:
        return {"committed"}
    return {"discarded"} if number in discarded else {"rolled back", ""}


def examine(moment: Captured, root: Path) -> None:
    """Open an image twice: no end differs from what was promised, and no message comes twice."""
    life = Life(root, None, {})
    found = state(life.store)
    assert not {number: n for number, n in found[0].items() if n > 1}
    for number, ends in moment.promised.items():
        assert end_of(number, found) & ends, (number, ends, found)
    for number, transaction in found[1].items():
        if int(number) % 3:
            transaction.commit()
    life.answer = "commit"
    life.service.check_undecided()
    visible, undecided, _ = state(life.store)
    committed = {number for number, one in found[1].items() if one.status == "committed"}
    assert visible == Counter([*found[0], *committed])
    assert not undecided
    life.store.close()
    with open_store(root.parent, QUIET | flushing(sync=True), None) as store:
        assert state(store)[0] == visible
        assert not store.transactions()
        # A broker would decide a half message without an op message again.
        named = {int(op.body) for op in _read(store, "RMQ_SYS_TRANS_OP_HALF_TOPIC")}
        halves = _read(store, "RMQ_SYS_TRANS_HALF_TOPIC")
        # No CRC covers properties: those of a half message that was not durable may be torn.
        assert {half.queue_offset for half in halves if real_queue(half.properties)} <= named
        problems = problems_but_torn(store.verify())
        assert not problems, problems[:3]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sync", [True, False])
def test_each_call_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    monkeypatch.setattr(simulated, "FREQUENT_RATE", 0.5)
    root = tmp_path / "root"
    root.mkdir()
    device = Device(root, SEED)
    captures = program(root / "store", device, sync)
    device.release()
    wanted: set[str] = set().union(*captures[-1].promised.values())
    assert {"committed", "rolled back"} <= wanted
    examine_images(
        captures, tmp_path, IMAGES, lambda moment, path, _: examine(moment, path / "store")
    )


@pytest.mark.parametrize("call", ["commit", "rollback"])
@pytest.mark.parametrize("failing", [1, 2])
def test_each_put_of_a_decision_fails(tmp_path: Path, call: str, failing: int) -> None:
    """The first put of a commit is the commit record, the second its op message."""
    ends: Ends = {}
    life = Life(tmp_path, None, ends)
    transaction = life.prepare(1)
    count = [0]

    def fail_once(message: Any) -> Any:
        count[0] += 1
        if count[0] == failing:
            message.topic = "no/queue"  # a refusal by the engine
        return put(message)

    put = put_by(life.service, fail_once)
    failed = False
    try:
        getattr(transaction, call)()
    except PutError:
        failed = True
    assert failed == (failing == 1)
    if failed:
        assert transaction.status == "prepared"
        getattr(transaction, call)()
    wanted = 1 if call == "commit" else 0
    assert state(life.store)[0] == Counter({"1": wanted} if wanted else {})
    if call == "commit" and failing == 2:  # killed before the next round
        image = tmp_path.parent / "image"
        _copy(tmp_path, image)
        again = Life(image, None, {})
        assert again.store.transactions() == []  # its commit record was found
        assert state(again.store)[0] == Counter({"1": 1})
        again.store.close()
    life.service.check_undecided()  # writes the op message
    life.store.close()
    with pyrocketstore.open(tmp_path, **QUIET, **flushing(sync=True)) as store:
        assert store.transactions() == []
        assert state(store)[0] == Counter({"1": wanted} if wanted else {})


def _copy(source: Path, target: Path) -> None:
    """Copy a store that is open, as a kill of its process would leave it."""
    import shutil

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))
