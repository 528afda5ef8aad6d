"""Goal: the comparisons of this directory can fail. Method: a valid store of ours, whose dump the
model accepts, and each kind of wrong dump, which it must not accept. Needs no Java."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import face
from actors import OURS, ActorError, Actors, SilentError, write_conf
from broker import BOOTED, TAKEN, serving
from damaged import REBUILT, Answer, Log, differences, refused
from damaged_index import Index
from face import STORE_HOSTS, Opening
from failures import Failures, kept
from model import ALL_TIME, Model
from programs import ASCII_TOPICS, DELAY_HOURS, Program, Runner, Step, make
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.verify.dump import dump_lines
from support.golden_lines import compare_lines, index_hash, write_queries
from support.java_store import JavaStore
from support.random_messages import random_messages, spec_line

FILE_SIZE = 65_536
CONFIG = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 50,
    "maxIndexNum": 90,
}
KINDS = ("batch", "v6", "tx", "wide", "long", "collide")
KEY = ("Topic-1", "Aa")

Lines = list[dict[str, Any]]


class Valid(NamedTuple):
    """A store, its model and its dump."""

    path: Path
    model: Model
    lines: list[str]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Valid:
    directory = tmp_path_factory.mktemp("valid")
    path, conf = directory / "store", write_conf(directory / "conf", CONFIG)
    model = Model(FILE_SIZE, DELAY_HOURS * 3_600_000)
    with Actors(JavaStore()).start(OURS) as actor:
        actor.ask("open", path=str(path), conf=str(conf))
        for spec in random_messages(8, 150, KINDS):
            model.put(spec, actor.ask("put", spec=json.loads(spec_line(spec))))
        actor.ask("close")
    queries = write_queries(directory / "queries.tsv", [(*KEY, 32, *ALL_TIME)])
    config, _ = MessageStoreConfig.from_broker_conf(conf, root=path)
    return Valid(path, model, list(dump_lines(path, config, queries)))


def test_the_model_accepts_a_valid_store(valid: Valid) -> None:
    assert len(valid.model.hits(*KEY)) > 3
    valid.model.check(valid.lines)


def _change(name: str, value: Any) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        message = next(line["message"] for line in lines if "message" in line)
        assert message[name] != value
        message[name] = value

    return change


def _drop(lines: Lines) -> None:
    del lines[next(i for i, line in enumerate(lines) if "message" in line)]


def _swap(lines: Lines) -> None:
    at = next(i for i, line in enumerate(lines) if "message" in line)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]


def _lose(which: int) -> Callable[[Lines], None]:
    return lambda lines: lines[-1]["query"]["phy_offsets"].pop(which) and None


def _foreign_hit(lines: Lines) -> None:
    lines[-1]["query"]["phy_offsets"].insert(0, 1)


@pytest.mark.parametrize(
    "lie",
    [
        _change("body_sha256_8", "0" * 16),
        _change("queue_offset", 7),
        _change("tags_code", 7),
        _change("born_host", "/1.2.3.4:5"),
        _change("properties", {"KEYS": "other"}),
        _drop,
        _swap,
        _lose(0),
        _lose(-1),
        _foreign_hit,
    ],
)
def test_the_model_sees_a_lie(valid: Valid, lie: Callable[[Lines], None]) -> None:
    lines = [json.loads(line) for line in valid.lines]
    lie(lines)
    with pytest.raises(AssertionError):
        valid.model.check(map(json.dumps, lines))


@pytest.mark.parametrize("lie", [_change("body_sha256_8", "0" * 16), _drop, _lose(0), _lose(-1)])
@pytest.mark.slow
def test_what_ours_lacks_is_no_difference_to_accept(
    valid: Valid, lie: Callable[[Lines], None]
) -> None:
    lines = [json.loads(line) for line in valid.lines]
    lie(lines)
    ours = Answer(map(json.dumps, lines))
    with pytest.raises(AssertionError):
        differences(Answer(valid.lines), ours, *files_of(valid))


def files_of(valid: Valid) -> tuple[Log, Index]:
    """Return the undamaged files, which explain no difference."""
    index = Index(valid.path, CONFIG["maxHashSlotNum"], CONFIG["maxIndexNum"])
    return Log(valid.path, FILE_SIZE), index


def _invent(lines: Lines) -> None:
    at, line = _last_message(lines)
    false = {"phy_offset": line["message"]["phy_offset"] + 1, "body_sha256_8": "0" * 16}
    false["cq_offset"] = line["message"]["cq_offset"] + 1
    lines.insert(at + 1, {"message": line["message"] | false})


def _double(lines: Lines) -> None:
    at, line = _last_message(lines)
    lines.insert(at, line)


def _move(lines: Lines) -> None:
    """Move a message to another queue."""
    at, _ = _last_message(lines)
    first = next(i for i, line in enumerate(lines) if "message" in line)
    lines.insert(first, lines.pop(at))


def _last_message(lines: Lines) -> tuple[int, dict[str, Any]]:
    return [(i, line) for i, line in enumerate(lines) if "message" in line][-1]


def _double_hit(lines: Lines) -> None:
    lines[-1]["query"]["phy_offsets"].insert(0, lines[-1]["query"]["phy_offsets"][0])


def _record_without_the_key(lines: Lines) -> None:
    hits = lines[-1]["query"]["phy_offsets"]
    others = (line["message"]["phy_offset"] for line in lines if "message" in line)
    hits.append(max(set(others) - set(hits)))
    hits.sort()


def _move_the_end(lines: Lines) -> None:
    lines[-1]["query"]["index_last_update_phyoffset"] += 1


@pytest.mark.parametrize(
    "lie",
    [
        _invent,
        _double,
        _swap,
        _move,
        _foreign_hit,
        _double_hit,
        _record_without_the_key,
        _move_the_end,
    ],
)
@pytest.mark.slow
def test_what_ours_made_up_is_no_difference_to_accept(
    valid: Valid, lie: Callable[[Lines], None]
) -> None:
    lines = [json.loads(line) for line in valid.lines]
    lie(lines)
    with pytest.raises(AssertionError):
        differences(Answer(valid.lines), Answer(map(json.dumps, lines)), *files_of(valid))


@pytest.mark.parametrize("loss", [_lose(0), _lose(-1), lambda lines: _drop_a_queue(lines)])
def test_what_4_9_3_has_lost_is_accepted(valid: Valid, loss: Callable[[Lines], None]) -> None:
    lines = [json.loads(line) for line in valid.lines]
    loss(lines)
    theirs = Answer(map(json.dumps, lines))
    assert differences(theirs, Answer(valid.lines), *files_of(valid)) == {REBUILT}


def test_the_units_say_where_a_message_stands(valid: Valid) -> None:
    """A message that 4.9.3 lacks must have the unit at its queueOffset, if units were read."""
    lines = [json.loads(line) for line in valid.lines]
    at, line = _last_message(lines)
    message = line["message"]
    key = message["cq_topic"], message["cq_queue_id"]
    del lines[at]
    theirs, ours = Answer(map(json.dumps, lines)), Answer(valid.lines)
    for queue_offset, fits in (
        (message["queue_offset"], True),
        (message["queue_offset"] + 1, False),
    ):
        ours.unit_offsets = {key: {message["phy_offset"]: queue_offset}}
        if fits:
            assert differences(theirs, ours, *files_of(valid)) == {REBUILT}
        else:
            with pytest.raises(AssertionError, match=f"ours at {queue_offset}"):
                differences(theirs, ours, *files_of(valid))


@pytest.mark.parametrize("less", [1, 2])
def test_a_queue_ends_behind_its_last_message(valid: Valid, less: int) -> None:
    """4.9.3 may count more units, but ours at least one for each message."""
    lines = [json.loads(line) for line in valid.lines]
    queue = [line["queue"] for line in lines if "queue" in line][-1]
    queue["max_offset"] += 2
    theirs = Answer(map(json.dumps, lines))
    assert differences(theirs, Answer(valid.lines), *files_of(valid)) == {REBUILT}
    queue["max_offset"] -= 2 + less
    with pytest.raises(AssertionError, match=r"4\.9\.3"):
        differences(Answer(valid.lines), Answer(map(json.dumps, lines)), *files_of(valid))


def _drop_a_queue(lines: Lines) -> None:
    first, second, *_ = [i for i, line in enumerate(lines) if "queue" in line]
    del lines[first:second]


compact = partial(json.dumps, separators=(",", ":"))


def _asked(begin: int, end: int, hits: list[int], last: int) -> str:
    asked = {"topic": "T", "key": "k", "max_num": 32, "begin": begin, "end": end}
    found = {"phy_offsets": hits, "index_last_update_phyoffset": last}
    return compact({"query": asked | found})


@pytest.mark.parametrize(
    ("begin", "end", "hit", "may_lack"),
    [
        (0, 1999, 200, True),  # stored at 2000
        (0, 2000, 200, False),
        (2001, 9999, 200, True),
        (0, 1999, 250, True),  # in no queue, between 2000 and 3000
        (0, 2000, 250, False),
        (3001, 9999, 250, True),
        (3000, 9999, 250, False),
    ],
)
@pytest.mark.slow
def test_only_hits_outside_of_the_window_may_lack(
    begin: int, end: int, hit: int, may_lack: bool
) -> None:
    messages = [
        compact({"message": {"phy_offset": at, "store_timestamp": 10 * at}})
        for at in (100, 200, 300)
    ]
    theirs = [*messages, _asked(begin, end, [hit], 300)]
    ours = [*messages, _asked(begin, end, [], 0)]
    if may_lack:
        compare_lines(theirs, ours, unclean=True)
    else:
        with pytest.raises(AssertionError, match="hits missing"):
            compare_lines(theirs, ours, unclean=True)


def test_the_first_file_may_be_made_by_who_is_killed(valid: Valid) -> None:
    """The first file may exist or not for a log without a record, and only then."""
    for rolling, least, fits in ((True, 0, True), (True, -1, True), (False, 0, False)):
        model = Model(valid.model.file_size, valid.model.delay_ms)
        model.rolling = rolling
        lines = [json.dumps({"store": {"min_phy_offset": least, "max_phy_offset": 0}})]
        if fits:
            model.check(lines)
        else:
            with pytest.raises(AssertionError, match="the model has"):
                model.check(lines)


def test_an_earlier_end_of_the_log_is_not_accepted(valid: Valid) -> None:
    theirs, ours = Answer(valid.lines), Answer(valid.lines)
    ours.lines = []
    ours.store = theirs.store | {"max_phy_offset": theirs.end - 1}
    with pytest.raises(AssertionError, match="ends at"):
        differences(theirs, ours, *files_of(valid))


def test_a_refusal_needs_its_reason(valid: Valid) -> None:
    with pytest.raises(AssertionError, match="does not load"):
        refused(None, Answer(valid.lines), valid.path)
    with pytest.raises(AssertionError, match="NullPointer"):
        refused(ActorError("NullPointerException"), Answer(valid.lines), valid.path)
    with pytest.raises(AssertionError, match="no chain loops"):
        refused(SilentError("answers nothing"), Answer(valid.lines), valid.path)


def test_only_a_chain_that_loops_hangs_4_9_3(valid: Valid, tmp_path: Path) -> None:
    _, index = files_of(valid)
    shutil.copytree(valid.path / "index", tmp_path / "index")
    index = index._replace(root=tmp_path)
    path = min((tmp_path / "index").iterdir())
    file = index.files()[0]
    slot, newest = next((s, n) for s, n in file.slots.items() if file.entries[n][3])
    chain = [newest]
    while file.entries[chain[-1]][3]:
        chain.append(file.entries[chain[-1]][3])
    absent = next(k for k in map(str, range(10**6)) if index_hash("T", k) % file.slot_count == slot)
    asked = [("T", absent, 32, *ALL_TIME)]
    for target, loops in ((0, False), (chain[-1], False), (newest, True)):
        at = 40 + 4 * file.slot_count + 20 * chain[-1] + 16
        with path.open("r+b") as data:
            data.seek(at)
            data.write(struct.pack(">i", target))
        assert index.loops(asked) == loops
    assert not index.loops([("T", absent, 32, 0, 1)]), "4.9.3 looks at no file of another time"
    assert not index.loops([("T", absent, 0, *ALL_TIME)]), "a query for no message"


def test_failures_are_kept_and_reported_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    conf = tmp_path / "conf"
    conf.write_text("some")
    failures = Failures(most=2)
    with pytest.raises(ExceptionGroup) as caught:
        for number in range(9):
            case = tmp_path / "case"
            with failures.one(f"number {number}", f"SEED={number} make"), kept(case, conf):
                (case / "file").write_text(str(number))
                assert number % 2 == 0, "odd"
    assert not case.exists()
    assert len(caught.value.exceptions) == 2
    paths = [Path(e.__notes__[0].rpartition(" ")[2]) for e in caught.value.exceptions]
    assert [(path / "file").read_text() for path in paths] == ["1", "3"]
    assert (paths[0] / "conf").exists()
    said = capsys.readouterr().out
    assert "number 4" not in said
    assert all(text in said for text in ("number 3", "SEED=3 make", str(paths[1]), "odd"))


def test_a_lost_record_of_a_killed_process_is_seen(valid: Valid, tmp_path: Path) -> None:
    """`survive` accepts a prefix of the pending puts, and nothing else."""
    model = Model(FILE_SIZE, 0)
    for i, record in enumerate(valid.model.records[:5]):
        model.records.append(record)
        model.end = valid.model.records[i + 1].phy_offset
    store = tmp_path / "store"
    shutil.copytree(valid.path, store)
    with pytest.raises(AssertionError):
        model.survive(store, random_messages(9, 150, KINDS))


@pytest.mark.parametrize(
    "opening", [Opening(STORE_HOSTS[0], False), Opening(STORE_HOSTS[-1], True)]
)
@pytest.mark.slow
def test_the_model_knows_every_form_of_the_api(opening: Opening, tmp_path: Path) -> None:
    rng = random.Random(1)
    where = (rng, opening, ASCII_TOPICS, 900)
    mixed = [make_one(*where) for make_one in (face.single, face.batch) for _ in range(25)]
    wanted = {("put", form) for form in face.FORMS}
    wanted |= {("put_batch", form) for form in face.BATCH_FORMS}
    assert {(spec["way"], spec["form"]) for spec in mixed} == wanted
    singles = [face.single(*where) for _ in range(25)]
    steps = [
        Step("put", OURS, mixed + random_messages(3, 9, KINDS)),
        Step("put", OURS, face.columns(rng, opening, ASCII_TOPICS, 30), "columns"),
        Step("put", OURS, face.columns(rng, opening, ASCII_TOPICS, 31), "columns"),
        Step("put", OURS, singles, "together"),
        Step("put", OURS, random_messages(2, 25, KINDS), "together"),
        Step("close", OURS),
    ]
    config = CONFIG | {"flushDiskType": "SYNC_FLUSH"}
    runner = Runner(Program("", config, opening, steps), Actors(JavaStore()), tmp_path)
    with runner.open(OURS) as actor:
        for step in steps:
            runner.do(step, actor)
    names = {name for record in runner.model.records for name in record.properties}
    assert {"TAGS", "KEYS", "long"} <= names
    queries = write_queries(tmp_path / "queries.tsv", [(*KEY, 64, *ALL_TIME)])
    settings, _ = MessageStoreConfig.from_broker_conf(runner.conf, root=runner.root)
    runner.model.check(dump_lines(runner.root, settings, queries))


@pytest.mark.slow
def test_a_record_whose_properties_are_torn_is_what_is_there(valid: Valid, tmp_path: Path) -> None:
    """Properties may be written up to some byte, then zeros, only in the last record."""
    *before, last = valid.model.records
    assert last.text and last.item is last.spec
    model = Model(FILE_SIZE, 0)
    model.records, model.end = before, last.phy_offset
    store = tmp_path / "store"
    shutil.copytree(valid.path, store)
    path = store / "commitlog" / f"{last.phy_offset - last.phy_offset % FILE_SIZE:020d}"
    end = last.phy_offset % FILE_SIZE + last.size
    with path.open("r+b") as file:
        file.seek(end - 5)
        file.write(bytes(5))
    (store / "abort").touch()  # and no record was dispatched
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    config = MessageStoreConfig.from_broker_conf(write_conf(tmp_path / "conf", CONFIG), root=store)
    queries = write_queries(tmp_path / "queries.tsv", [(*KEY, 32, *ALL_TIME)])
    with pytest.raises(AssertionError):
        valid.model.check(dump_lines(store, config[0], queries))
    assert model.survive(store, [last.spec]) == 1
    model.check(dump_lines(store, config[0], queries))
    with path.open("r+b") as file:
        file.seek(end - 1)
        file.write(b"?")
    model.records, model.end = before, last.phy_offset
    with pytest.raises(AssertionError):
        model.survive(store, [last.spec])


def test_an_answer_that_is_wrong_is_seen(valid: Valid) -> None:
    spec = random_messages(1, 1)[0]
    (record,) = valid.model.predict(spec)
    answer = {"status": "PUT_OK", "wrote_offset": record.phy_offset, "wrote_bytes": record.size}
    answer |= {"logics_offset": record.queue_offset, "msg_num": 1, "msg_id": record.msg_id}
    for name in ("status", "wrote_offset", "wrote_bytes", "logics_offset", "msg_num", "msg_id"):
        with pytest.raises(AssertionError, match="wanted"):
            valid.model.put(spec, answer | {name: "other", "store_timestamp": 0})


def test_a_server_whose_port_was_taken_is_started_once_more() -> None:
    taken = f"java.net.BindException: {TAKEN}"

    def says(*texts: str) -> tuple[list[int], Callable[[], list[str]]]:
        chosen: list[int] = []
        return chosen, lambda: ["sh", "-c", f"echo {texts[len(chosen)]}"]

    for texts, count in (((BOOTED,), 0), ((taken, BOOTED), 1)):
        chosen, command = says(*texts)
        with serving(command, partial(chosen.append, 1)):
            assert len(chosen) == count
    for texts in ((taken, taken), ("another reason",)):
        chosen, command = says(*texts)
        with (
            pytest.raises(ActorError, match=texts[-1]),
            serving(command, partial(chosen.append, 1)),
        ):
            pass


def test_a_seed_makes_the_same_program_again() -> None:
    assert make("a.1.9") == make("a.1.9")
    assert len(make("a.1.9").steps) == 9
    assert make("a.1.9") != make("a.2.9")


def test_hits_at_the_edges_of_a_query_are_left_out() -> None:
    """The edges are the first second, and the delay of a file's first message at the end."""
    runner = object.__new__(Runner)
    times = {100: 5000, 200: 5900, 300: 7000, 400: 7500}
    records = [
        SimpleNamespace(
            phy_offset=offset,
            store_timestamp=time,
            properties={} if offset == 200 else {"KEYS": "k"},
            spec={"sys_flag": 0},
        )
        for offset, time in times.items()
    ]
    runner.model = SimpleNamespace(records=records)
    assert runner.late_as_first() == {100: 0, 300: 2000, 400: 0}
    for begin, end, left in (
        (0, 9000, [100, 300, 400]),
        (0, 8999, [100, 400]),
        (4000, 7499, [100]),
        (4001, 7500, [400]),
    ):
        query = {"begin": begin, "end": end, "phy_offsets": [100, 300, 400]}
        (line,) = runner.without_edges([json.dumps({"query": query}, separators=(",", ":"))])
        assert json.loads(line)["query"]["phy_offsets"] == left
