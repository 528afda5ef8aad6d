"""Goal: when a log has lost its last files, its queues end with it: remaining messages are read,
later queue offsets are assigned again, and a flipped bit in a last unit is not taken for a lost
end. With copied queue files besides, each remaining message is read or reported, and each new put
gets its unit.
Method: remove log files of stores with idle, busy, light and ext queues, closed or killed; compare
reads and later puts with the earlier puts."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.errors import DamagedMessageError, StoreIOError, StoreWarning
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.recovery.loss_notices import LOST_MESSAGES, LossNotices
from pyrocketstore.recovery.store_files import StoreFiles
from pyrocketstore.system.env import Env
from support.damaged_stores import claim_flushed
from support.seed import SEED
from support.snapshot import snapshot
from support.unit_stores import KINDS, LOG_SIZE, PLAIN, put, turn_bit

pytestmark = pytest.mark.slow

TOPICS = ("idle", "busy", "late", "once")
#: Messages of `busy`, and how many of them come before the first one of `late`.
COUNT, LATE = 800, 650
#: Of the warning of an opening for writing.
MISSING = "these messages are missing"
Places = dict[str, list[int]]


def settings(kind: str) -> dict[str, Any]:
    return PLAIN | KINDS[kind]


def fill(root: Path, kind: str) -> None:
    """`idle` ends early, `late` begins in the last files, `once` has one message there."""
    light = kind == "light"
    with pyrocketstore.open(root, **settings(kind)) as store:
        for number in range(COUNT):
            if number < 25:
                put(store, "idle", number, light)
            put(store, "busy", number, light)
            if number >= LATE:
                put(store, "late", number - LATE, light)
        put(store, "once", 0, light)
        put(store, "busy", COUNT, light)


def places(root: Path, kind: str) -> Places:
    """{topic: one past each message, bytes of the log}; a light queue too."""
    with pyrocketstore.open(root, read_only=True, **settings(kind)) as store:
        return {
            topic: [m.phy_offset + m.size for m in store.read(topic)] for topic in store.topics()
        }  # fmt: skip


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Places]]:
    made: dict[str, tuple[Path, Places]] = {}

    def give(kind: str) -> tuple[Path, Places]:
        if kind not in made:
            root = tmp_path_factory.mktemp("filled") / "store"
            fill(root, kind)
            made[kind] = root, places(root, kind)
        return made[kind]

    return give


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())


def lose_files(root: Path, count: int) -> int:
    """Take away the log's last files; where it ends now (bytes)."""
    for path in log_files(root)[-count:]:
        path.unlink()
    return LOG_SIZE * len(log_files(root))


def kill(root: Path) -> None:
    (root / "abort").touch()
    claim_flushed(root)


def check(store: pyrocketstore.Store, left: dict[str, int]) -> None:
    for topic, end in left.items():
        assert store.max_offset(topic) == end, topic
        source = "busy" if topic.startswith("%LMQ%") else topic
        reader = store.read(topic)
        assert [m.body for m in reader] == [b"%s %d" % (source.encode(), i) for i in range(end)]
        assert reader.skipped.count == 0


def check_store(root: Path, kind: str, left: dict[str, int], is_reported: bool = True) -> None:
    """Read-only, for writing, and once more; new messages get the offsets that follow.

    The first opening for writing warns of the loss: the log has lost files, was closed, or a flush
    has covered its end.
    """
    before = snapshot(root)
    with pyrocketstore.open(root, read_only=True, **settings(kind)) as store:
        check(store, left)
        assert not is_reported or not store.verify().ok
    assert snapshot(root) == before
    with pytest.warns(StoreWarning, match=MISSING):
        store = pyrocketstore.open(root, **settings(kind))
    with store:
        check(store, left)
        report = store.verify()
        assert report.ok, report.problems[:3]
    with pyrocketstore.open(root, read_only=True, **settings(kind)) as store:
        check(store, left)
        assert store.verify().ok
    after = dict(left)
    with pyrocketstore.open(root, **settings(kind)) as store:
        for topic in TOPICS:
            for _ in range(3):
                assert put(store, topic, after[topic], kind == "light") == after[topic]
                after[topic] += 1
        if kind == "light":
            after["%LMQ%a"] += 3
        check(store, after)
        report = store.verify()
        assert report.ok, report.problems[:3]


def ends(known: Places, log_end: int) -> dict[str, int]:
    return {topic: sum(end <= log_end for end in all_) for topic, all_ in known.items()}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("missing", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_queues_end_where_the_log_ends(
    stores: Callable[[str], tuple[Path, Places]],
    tmp_path: Path,
    kind: str,
    missing: int,
    killed: bool,
) -> None:
    base, known = stores(kind)
    root = Path(shutil.copytree(base, tmp_path / "store"))
    log_end = lose_files(root, missing)
    if killed:
        kill(root)
    left = ends(known, log_end)
    assert left["once"] == 0
    assert 0 < left["busy"] < COUNT
    check_store(root, kind, left)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("bit", [20, 40, 44, 46])
def test_a_wrong_bit_is_not_a_lost_end(
    stores: Callable[[str], tuple[Path, Places]], tmp_path: Path, bit: int, killed: bool
) -> None:
    """The last unit of `idle` names a place behind the log, as those of the other queues do."""
    base, known = stores("plain")
    root = Path(shutil.copytree(base, tmp_path / "store"))
    log_end = lose_files(root, 2)
    turn_bit(root, "idle", 24, bit)
    if killed:
        kill(root)
    check_store(root, "plain", ends(known, log_end))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("damage", ["zeros", "size", "body"])
def test_an_opening_for_writing_reports_lost_messages_and_keeps_their_bytes(
    tmp_path: Path, damage: str, killed: bool
) -> None:
    """The last records are damaged, no valid record follows, and they were on the device: the store
    was closed, or was flushed before it was killed."""
    live = tmp_path / "live"
    with pyrocketstore.open(live, **PLAIN) as store:
        places = [store.put("t", b"x" * 50).phy_offset for _ in range(20)]
        end = store.message_store.commit_log.get_max_offset()
        store.flush()
        shutil.copytree(live, tmp_path / "killed")
    tmp_path = tmp_path / "killed" if killed else live
    first = places[10] if damage == "zeros" else places[19]
    log = log_files(tmp_path)[0]
    data = bytearray(log.read_bytes())
    if damage == "zeros":
        data[first:end] = bytes(end - first)
    elif damage == "size":
        data[first : first + 4] = b"\0\0\7\7"
    else:
        data[first + 90] ^= 1
    log.write_bytes(data)
    with pyrocketstore.open(tmp_path, read_only=True, **PLAIN) as store:
        assert any(one.kind == "log" for one in store.verify().problems)
    with pytest.warns(StoreWarning, match=f"t/0 names messages after it.*{MISSING}"):
        store = pyrocketstore.open(tmp_path, **PLAIN)
    with store:
        assert store.max_offset("t") == places.index(first)
        assert len(list(store.read("t"))) == places.index(first)
        assert store.put("t", b"new").queue_offset == places.index(first)
    kept = [path for path in tmp_path.glob(".broken/*/*") if path.is_file()]
    left = {} if damage == "zeros" else {f"{first:020d}": data[first:end]}
    assert {path.name: path.read_bytes() for path in kept} == left
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        assert [m.body for m in store.read("t")][-1] == b"new"


def damage_record(root: Path, phy_offset: int) -> None:
    path = log_files(root)[phy_offset // LOG_SIZE]
    with path.open("r+b") as file:
        file.seek(phy_offset % LOG_SIZE + 4)  # the magic code
        file.write(b"XXXX")


def test_a_damaged_record_is_kept_if_the_next_valid_one_is_in_a_later_file(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        places = [store.put("t", b"%d" % i + b"x" * 500).phy_offset for i in range(80)]
    at = max(place for place in places if place < LOG_SIZE)
    damage_record(tmp_path, at)
    with pytest.warns(StoreWarning, match="the log ends before"):
        pyrocketstore.open(tmp_path, **PLAIN).close()
    [kept] = tmp_path.glob(f".broken/*/{at:020d}")
    assert b"%d" % places.index(at) + b"x" * 500 in kept.read_bytes()


def damaged(root: Path) -> None:
    """The last record but four is damaged, and valid ones follow."""
    with pyrocketstore.open(root, **PLAIN) as store:
        places = [store.put("t", b"x" * 50).phy_offset for _ in range(20)]
    damage_record(root, places[-5])


def test_an_opening_that_is_interrupted_leaves_the_warning_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(tmp_path)

    def interrupt(engine: DefaultMessageStore) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DefaultMessageStore, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pyrocketstore.open(tmp_path, **PLAIN)
    assert (tmp_path / LOST_MESSAGES).exists()
    for read_only in (True, True, False):
        with pytest.warns(StoreWarning, match="the log ends before") as caught:
            pyrocketstore.open(tmp_path, read_only=read_only, **PLAIN).close()
        assert len(caught) == 1
    assert not (tmp_path / LOST_MESSAGES).exists()
    pyrocketstore.open(tmp_path, **PLAIN).close()


@pytest.mark.parametrize("interrupted", [False, True])
def test_groups_read_what_is_put_after_a_lost_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """New messages get the queue offsets of lost ones, which a group had read."""
    damaged(tmp_path)
    end = 15  # of 20
    path = tmp_path / "config/consumerOffset.json"
    known = {"t@g": {0: 20}, "t@h": {0: end - 1}, "gone@g": {3: 7}, "u@g": {0: -1}}
    path.write_text(json.dumps({"offsetTable": known}))

    def interrupt(files: StoreFiles) -> None:
        raise KeyboardInterrupt

    if interrupted:  # once the queues are cut
        with monkeypatch.context() as patch:
            patch.setattr(StoreFiles, "recover_topic_queue_table", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pyrocketstore.open(tmp_path, **PLAIN)
        assert json.loads(path.read_text()) == json.loads(json.dumps({"offsetTable": known}))
    with pytest.warns(StoreWarning, match="the log ends before"):
        store = pyrocketstore.open(tmp_path, **PLAIN)
    with store:
        for number in range(30):
            store.put("t", b"new %d" % number)
        with store.consumer("g", "t") as consumer:
            assert [m.body for m in consumer.poll(100)] == [b"new %d" % i for i in range(30)]
        positions = {row[:3]: row.position for row in store.consumer_positions()}
        assert positions["h", "t", 0] == end - 1
        assert (positions["g", "gone", 3], positions["g", "u", 0]) == (0, -1)


def test_positions_that_cannot_be_read_end_no_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged(tmp_path)
    (tmp_path / "config/consumerOffset.json").write_text("{")
    with pytest.warns(StoreWarning, match="the log ends before"):
        pyrocketstore.open(tmp_path, **PLAIN).close()
    assert "positions of groups may be after the ends of queues" in caplog.text


def test_a_warning_that_is_an_error_is_given_once(tmp_path: Path) -> None:
    damaged(tmp_path)
    earlier = "an earlier opening has lost \udcff too"
    LossNotices(Env(), str(tmp_path)).write([earlier])
    for text in ("an earlier opening", "the log ends before"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(StoreWarning, match=text):
                pyrocketstore.open(tmp_path, **PLAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyrocketstore.open(tmp_path, **PLAIN).close()
    assert not (tmp_path / LOST_MESSAGES).exists()


@pytest.mark.parametrize("proof", ["sync_point", "index"])
@pytest.mark.parametrize("files", [1, 3])
def test_a_lost_end_is_reported_without_queues(tmp_path: Path, proof: str, files: int) -> None:
    """The queues are gone, too, as if a directory had not been copied."""
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        for i in range(100):
            store.put("t", b"%d" % i + bytes(300), keys=f"k{i}")
    assert len(log_files(tmp_path)) >= 3
    log_end = lose_files(tmp_path, min(files, len(log_files(tmp_path)) - 1))
    shutil.rmtree(tmp_path / "consumequeue")
    if proof == "index":
        (tmp_path / "sync_point").unlink()
    else:
        shutil.rmtree(tmp_path / "index")
    text = "the index names a message" if proof == "index" else "a flush has covered the log"
    with pyrocketstore.open(tmp_path, read_only=True, **PLAIN) as store:
        assert any(text in problem.text for problem in store.verify().problems)
    with pytest.warns(StoreWarning, match=f"{text}.*{MISSING}"):
        store = pyrocketstore.open(tmp_path, **PLAIN)
    with store:
        assert store.message_store.commit_log.get_max_offset() <= log_end
        assert store.verify().ok
    pyrocketstore.open(tmp_path, **PLAIN).close()


def test_a_wrong_header_of_the_index_is_no_proof_of_a_lost_end(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        store.put("t", b"", keys="k")
    [path] = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    data[24:32] = (1 << 20).to_bytes(8, "big")  # the last physical offset
    path.write_bytes(data)
    with pyrocketstore.open(tmp_path, read_only=True, **PLAIN) as store:
        assert {problem.kind for problem in store.verify().problems} == {"index"}


def test_a_reader_needs_no_warnings_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        store.put("t", b"1")
    (tmp_path / LOST_MESSAGES).mkdir()
    with pyrocketstore.open(tmp_path, read_only=True, **PLAIN) as store:
        assert [m.body for m in store.read("t")] == [b"1"]
    assert "warnings of lost messages cannot be read" in caplog.text
    with pytest.raises(StoreIOError, match=LOST_MESSAGES):
        pyrocketstore.open(tmp_path, **PLAIN)


def test_a_log_that_lost_the_removal_of_a_topic_queues_what_is_put_next(tmp_path: Path) -> None:
    """The minimum of the topic is behind the new end of the log."""
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        store.put("other", b"")
        places = [store.put("t", b"x").phy_offset for _ in range(8)]
        store.drop_topic("t")
        store.put("other", b"")
    damage_record(tmp_path, places[2])
    with pytest.warns(StoreWarning, match="the log ends before"):
        store = pyrocketstore.open(tmp_path, **PLAIN)
    with store:
        stored = store.put("t", b"new")
        assert [m.body for m in store.read("t", start=stored.queue_offset)] == [b"new"]
        assert store.verify().ok
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        assert [m.body for m in store.read("t", start=stored.queue_offset)] == [b"new"]


def test_a_wrong_bit_in_a_light_queue_is_no_lost_end(tmp_path: Path) -> None:
    """Without multi-dispatch nobody searches for the record of its last unit."""
    light = settings("light")
    with pyrocketstore.open(tmp_path, **light) as store:
        for number in range(5):
            put(store, "busy", number, True)
    turn_bit(tmp_path, "%LMQ%a", 4, 46)
    pyrocketstore.open(tmp_path, **light | {"enable_multi_dispatch": False}).close()
    with pyrocketstore.open(tmp_path, **light) as store:
        assert store.max_offset("%LMQ%a") == 5


@pytest.mark.slow
def test_random_ends(stores: Callable[[str], tuple[Path, Places]], tmp_path: Path) -> None:
    """Files are lost, the last one that is left may end in zeros, and bits of units are wrong.
    Seed: ROCKETSTORE_SEED."""
    for number in range(16):
        rng = random.Random(f"{SEED}/{number}")
        kind = rng.choice(list(KINDS))
        base, known = stores(kind)
        root = Path(shutil.copytree(base, tmp_path / f"store{number}"))
        log_end = lose_files(root, rng.randrange(1, len(log_files(root)) - 4))
        if rng.random() < 0.5:  # the file ends behind one of its messages
            whole = [end for all_ in known.values() for end in all_ if end <= log_end]
            log_end = rng.choice([end for end in whole if end > log_end - LOG_SIZE])
            with log_files(root)[-1].open("r+b") as file:
                file.seek(log_end % LOG_SIZE)
                file.write(bytes(LOG_SIZE - log_end % LOG_SIZE))
        left = ends(known, log_end)
        is_reported = log_end % LOG_SIZE == 0
        if rng.random() < 0.5 and kind == "plain":
            turn_bit(root, "idle", left["idle"] - 1, rng.randrange(1, 47))
        if rng.random() < 0.5:
            kill(root)
        try:
            check_store(root, kind, left, is_reported)
        except BaseException as error:
            error.add_note(f"ROCKETSTORE_SEED={SEED}, store {number}")
            raise


def queue_files(root: Path, topic: str) -> list[Path]:
    return sorted((root / "consumequeue" / topic / "0").iterdir())


def copy_queue_files(root: Path, rng: random.Random) -> str:
    """Files of queues, mostly last ones, get the content of others; what was done."""
    done = []
    topics = sorted(path.name for path in (root / "consumequeue").iterdir())
    for topic in rng.sample(topics, rng.randrange(1, 3)):
        source = queue_files(root, rng.choice(["busy", "late", topic]))
        files = queue_files(root, topic)
        number = len(files) - 1 if rng.random() < 0.6 else rng.randrange(len(files))
        new = source[rng.randrange(len(source)) if rng.random() < 0.7 else 0]
        data = new.read_bytes()
        shift = rng.choice([0, 0, 20 * rng.randrange(20)])
        shift = shift if any(data[shift : shift + 20]) else 0  # else it looks like a queue's end
        files[number].write_bytes(data[shift:] + bytes(shift))
        done.append(f"{topic} {number} is {new.parent.parent.name}/{new.name} from {shift} on")
    return ", ".join(done)


def lose_end(root: Path, known: Places, rng: random.Random, killed: bool) -> int:
    """The log loses files, or is cut at damage in what an opening scans; where it ends now
    (bytes)."""
    if rng.random() < 0.6:
        return lose_files(root, rng.randrange(0, 7))
    begin = LOG_SIZE * (len(log_files(root)) - (1 if killed else rng.randrange(1, 3)))
    cut = rng.choice([end for all_ in known.values() for end in all_ if end >= begin])
    with log_files(root)[cut // LOG_SIZE].open("r+b") as file:
        file.seek(cut % LOG_SIZE)
        file.write(b"damaged!")
    return cut


def answered(store: pyrocketstore.Store, topic: str, end: int) -> list[int]:
    """The queue offsets that a reader gives; none before `end` is passed over silently."""
    reader = store.read(topic, on_corrupt="skip")
    source = "busy" if topic.startswith("%LMQ%") else topic
    given = []
    for message in reader:
        at = message.queue_offset
        given.append(at)
        assert message.body in (b"%s %d" % (source.encode(), at), b"new %d" % at), (topic, at)
    named = {at for each in reader.skipped.ranges for at in range(each.start, each.stop)}
    silent = set(range(end)) - set(given) - named
    assert not silent, (topic, "silent", sorted(silent), store.max_offset(topic))
    return given


def check_copies(root: Path, kind: str, left: dict[str, int]) -> None:
    """Every opening answers for all that the log has; each put is queued under its offset, which
    is given once."""
    used: dict[str, list[int]] = {topic: [] for topic in left}
    for _ in range(2):
        with pyrocketstore.open(root, **settings(kind)) as store:
            log_end = store.message_store.get_max_phy_offset()
            for queue in store.message_store.consume_queues():
                assert queue.covered_phy_offset <= log_end, queue
                assert queue.core.max_physic_offset <= log_end, queue
            for topic, end in left.items():
                answered(store, topic, end)
            for topic in TOPICS:
                for _ in range(3):
                    wanted = store.max_offset(topic)
                    assert store.put(topic, b"new %d" % wanted).queue_offset == wanted
                    used[topic].append(wanted)
                    assert store.wait_dispatched()
                    assert store.max_offset(topic) == wanted + 1, topic
            if kind == "light":
                used["%LMQ%a"] += check_light_put(store)
            for topic, offsets in used.items():
                assert len(set(offsets)) == len(offsets), topic
                if not topic.startswith("%LMQ%"):
                    assert set(offsets) <= set(answered(store, topic, left[topic])), topic


Answers = dict[str, tuple[int, list[int]]]


def answers(store: pyrocketstore.Store, left: dict[str, int]) -> Answers:
    return {topic: (store.max_offset(topic), answered(store, topic, left[topic])) for topic in left}


def check_read_only(root: Path, kind: str, left: dict[str, int]) -> None:
    """A read-only store changes nothing and answers as one that is opened for writing does, of a
    copy."""
    before = snapshot(root)
    with pyrocketstore.open(root, read_only=True, **settings(kind)) as store:
        read_only = answers(store, left)
    assert snapshot(root) == before
    copy = Path(shutil.copytree(root, root.with_name(root.name + "-copy")))
    with pyrocketstore.open(copy, **settings(kind)) as store:
        assert answers(store, left) == read_only
    shutil.rmtree(copy)


def check_light_put(store: pyrocketstore.Store) -> list[int]:
    """A message that names the light queue is queued in both of its queues."""
    ends = {topic: store.max_offset(topic) for topic in ("busy", "%LMQ%a")}
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    store.put("busy", b"new %d" % ends["busy"], properties=properties)
    assert store.wait_dispatched()
    for topic, end in ends.items():
        assert store.max_offset(topic) == end + 1, topic
    assert [m.body for m in store.read("%LMQ%a", start=ends["%LMQ%a"])] == [
        b"new %d" % ends["busy"]
    ]
    return [ends["%LMQ%a"]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")  # of a log that is damaged
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_copied_queue_files_beside_a_lost_end(
    stores: Callable[[str], tuple[Path, Places]], tmp_path: Path, kind: str, killed: bool
) -> None:
    """Seed: ROCKETSTORE_SEED."""
    base, known = stores(kind)
    for number in range(8):
        rng = random.Random(f"{SEED}/{kind}/{killed}/{number}")
        root = Path(shutil.copytree(base, tmp_path / f"store{number}"))
        text = copy_queue_files(root, rng)
        log_end = lose_end(root, known, rng, killed)
        if killed:
            kill(root)
        try:
            check_read_only(root, kind, ends(known, log_end))
            check_copies(root, kind, ends(known, log_end))
        except BaseException as error:
            error.add_note(f"ROCKETSTORE_SEED={SEED}, store {number}: {text}, log to {log_end}")
            raise
        shutil.rmtree(root)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")  # of a record that is damaged
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("topic", ["idle", "%LMQ%a"])
def test_a_unit_that_reaches_over_the_logs_end(
    stores: Callable[[str], tuple[Path, Places]], tmp_path: Path, topic: str, killed: bool
) -> None:
    """The unit of a damaged record is believed, and its size is wrong: what is put next is queued
    all the same."""
    base, known = stores("light")
    root = Path(shutil.copytree(base, tmp_path / "store"))
    if topic == "%LMQ%a":  # the light queue ends in an old file of the log
        for path in queue_files(root, topic)[1:]:
            path.unlink()
    path = queue_files(root, topic)[-1]
    count = 25 if topic == "idle" else 20
    at = (count - 1) * 20 % 400
    phy_offset = int.from_bytes(path.read_bytes()[at : at + 8], "big")
    with path.open("r+b") as file:
        file.seek(at + 8)
        file.write(b"\x3f\xff\xff\xff")
    with log_files(root)[phy_offset // LOG_SIZE].open("r+b") as file:
        file.seek(phy_offset % LOG_SIZE + 84)
        file.write(b"\x7f\xff\xff\xff")  # the body's length
    if killed:
        kill(root)
    check_copies(root, "light", dict.fromkeys(known, 0) | {topic: count - 1})


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("topic", ["idle", "busy", "late", "%LMQ%a"])
def test_a_shifted_last_file_hides_no_message(
    stores: Callable[[str], tuple[Path, Places]], tmp_path: Path, topic: str, killed: bool
) -> None:
    """The last two files lose their first units to those behind them, and end in zeros: a unit
    names a later message of its queue, and those between were taken for queued."""
    base, known = stores("light")
    left = {each: len(all_) for each, all_ in known.items()}
    root = Path(shutil.copytree(base, tmp_path / "store"))
    files = queue_files(root, topic)[-2:]
    data = b"".join(path.read_bytes() for path in files)
    used = len(data.rstrip(b"\0")) // 20 * 20
    files[-2].write_bytes(data[100:200] + bytes(300))
    files[-1].write_bytes(data[used - 40 : used] + bytes(360))
    if killed:
        kill(root)
    check_read_only(root, "light", left)
    before = snapshot(root)
    with pyrocketstore.open(root, read_only=True, **settings("light")) as store:
        for each, end in left.items():
            assert len(answered(store, each, end)) == end
        report = store.verify()
        assert not report.ok and report.advice
    assert snapshot(root) == before
    check_copies(root, "light", left)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("topic", ["idle", "late"])
def test_a_unit_that_is_missing_before_the_last_hides_no_message(
    stores: Callable[[str], tuple[Path, Places]], tmp_path: Path, topic: str, killed: bool
) -> None:
    """The last unit names a later message of its queue, and the unit before it is right."""
    base, known = stores("light")
    left = {each: len(all_) for each, all_ in known.items()}
    root = Path(shutil.copytree(base, tmp_path / "store"))
    path = queue_files(root, topic)[-1]
    data = path.read_bytes()
    used = len(data.rstrip(b"\0")) // 20 * 20
    path.write_bytes(data[: used - 40] + data[used - 20 : used] + bytes(len(data) - used + 20))
    if killed:
        kill(root)
    check_read_only(root, "light", left)
    check_copies(root, "light", left)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("field", "stated"),
    [(slice(20, 28), n) for n in (-1, 0, 1 << 40, (1 << 63) - 1)] + [(slice(12, 16), -(1 << 30))],
    ids=["-1", "0", "2^40", "2^63 - 1", "queue id"],
)
@pytest.mark.parametrize("topic", ["idle", "busy", "late"])
def test_a_last_message_that_states_another_place_stays(
    stores: Callable[[str], tuple[Path, Places]],
    tmp_path: Path,
    topic: str,
    field: slice,
    stated: int,
    killed: bool,
) -> None:
    """No checksum covers the stored queueOffset and queueId, and the unit alone names the record.
    A queue with a negative id has no directory."""
    base, known = stores("light")
    left = {each: len(all_) for each, all_ in known.items()}
    root = Path(shutil.copytree(base, tmp_path / "store"))
    path = queue_files(root, topic)[-1]
    used = len(path.read_bytes().rstrip(b"\0")) // 20 * 20
    unit = path.read_bytes()[used - 20 : used]
    phy_offset = int.from_bytes(unit[:8], "big")
    with log_files(root)[phy_offset // LOG_SIZE].open("r+b") as file:
        file.seek(phy_offset % LOG_SIZE + field.start)
        file.write(stated.to_bytes(field.stop - field.start, "big", signed=True))
    if killed:
        kill(root)
    with pyrocketstore.open(root, read_only=True, **settings("light")) as store:
        assert last_message(store, topic, left[topic]) == phy_offset
    with pyrocketstore.open(root, **settings("light")) as store:
        assert last_message(store, topic, left[topic]) == phy_offset
        assert store.put(topic, b"next").queue_offset == left[topic]
        [found] = store.read(topic, start=left[topic])
        assert found.body == b"next"


def last_message(store: pyrocketstore.Store, topic: str, end: int) -> int:
    """Return the physical offset of the last message, which `read` refuses and names."""
    assert store.max_offset(topic) == end
    with pytest.raises(DamagedMessageError, match=rf"queue offset {end - 1}\)"):
        list(store.read(topic, start=end - 1))
    [message] = store.message_store.get_message("group", topic, 0, end - 1, 32).messages()
    return message.phy_offset


@pytest.mark.filterwarnings("ignore:(?s).*must have 400:pyrocketstore.StoreWarning")
def test_a_text_in_the_place_of_a_queue_file_is_no_lost_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pyrocketstore.open(tmp_path, **PLAIN) as store:
        for number in range(10):
            put(store, "T", number, False)
    path = tmp_path / f"consumequeue/T/0/{0:020d}"
    path.write_bytes(b"not a queue\n" * path.stat().st_size)
    with pyrocketstore.open(tmp_path, read_only=True, **PLAIN) as store:
        assert len(list(store.read("T"))) == 10
    assert MISSING not in caplog.text
