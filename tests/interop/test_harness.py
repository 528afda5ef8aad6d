"""Goal: the comparisons of this directory can fail. Method: a sound store of ours, whose dump the
model accepts; then each kind of lie, which it must not accept. Needs no Java."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from actors import OURS, ActorError, Actors, write_conf
from damaged import Answer, Log, differences, refused
from golden_lines import write_queries
from java_store import JavaStore
from model import ALL_TIME, Model
from programs import DELAY_HOURS, make
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.dump import dump_lines
from random_messages import random_messages, spec_line

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


class Sound(NamedTuple):
    """A store, what it holds, and its dump."""

    path: Path
    model: Model
    lines: list[str]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    directory = tmp_path_factory.mktemp("sound")
    path, conf = directory / "store", write_conf(directory / "conf", CONFIG)
    model = Model(FILE_SIZE, DELAY_HOURS * 3_600_000)
    with Actors(JavaStore()).start(OURS) as actor:
        actor.ask("open", path=str(path), conf=str(conf))
        for spec in random_messages(8, 150, KINDS):
            model.put(spec, actor.ask("put", spec=json.loads(spec_line(spec))))
        actor.ask("close")
    queries = write_queries(directory / "queries.tsv", [(*KEY, 32, *ALL_TIME)])
    config, _ = MessageStoreConfig.from_broker_conf(conf, root=path)
    return Sound(path, model, list(dump_lines(path, config, queries)))


def test_the_model_accepts_a_sound_store(sound: Sound) -> None:
    assert len(sound.model.hits(*KEY)) > 3
    sound.model.check(sound.lines)


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
def test_the_model_sees_a_lie(sound: Sound, lie: Callable[[Lines], None]) -> None:
    lines = [json.loads(line) for line in sound.lines]
    lie(lines)
    with pytest.raises(AssertionError):
        sound.model.check(map(json.dumps, lines))


@pytest.mark.parametrize("lie", [_change("body_sha256_8", "0" * 16), _drop, _lose(0), _lose(-1)])
def test_what_ours_lacks_is_no_difference_to_accept(
    sound: Sound, lie: Callable[[Lines], None]
) -> None:
    lines = [json.loads(line) for line in sound.lines]
    lie(lines)
    ours = Answer(map(json.dumps, lines))
    with pytest.raises(AssertionError):
        differences(Answer(sound.lines), ours, Log(sound.path, FILE_SIZE))


def test_an_earlier_end_of_the_log_is_not_accepted(sound: Sound) -> None:
    theirs, ours = Answer(sound.lines), Answer(sound.lines)
    ours.lines = []
    ours.store = theirs.store | {"max_phy_offset": theirs.end - 1}
    with pytest.raises(AssertionError, match="ends at"):
        differences(theirs, ours, Log(sound.path, FILE_SIZE))


def test_a_refusal_needs_its_reason(sound: Sound) -> None:
    with pytest.raises(AssertionError, match="does not load"):
        refused(None, Answer(sound.lines), sound.path)
    with pytest.raises(AssertionError, match="NullPointer"):
        refused(ActorError("NullPointerException"), Answer(sound.lines), sound.path)


def test_a_lost_record_of_a_killed_process_is_seen(sound: Sound, tmp_path: Path) -> None:
    """`survive` takes a first part of what was pending, and nothing else."""
    model = Model(FILE_SIZE, 0)
    for i, record in enumerate(sound.model.records[:5]):
        model.records.append(record)
        model.end = sound.model.records[i + 1].phy_offset
    store = tmp_path / "store"
    shutil.copytree(sound.path, store)
    with pytest.raises(AssertionError):
        model.survive(store, random_messages(9, 150, KINDS))


def test_an_answer_that_is_wrong_is_seen(sound: Sound) -> None:
    spec = random_messages(1, 1)[0]
    (record,) = sound.model.place(spec)
    answer = {"status": "PUT_OK", "wrote_offset": record.phy_offset, "wrote_bytes": record.size}
    answer |= {"logics_offset": record.queue_offset, "msg_num": 1, "msg_id": record.msg_id}
    for name in ("status", "wrote_offset", "wrote_bytes", "logics_offset", "msg_num", "msg_id"):
        with pytest.raises(AssertionError, match="wanted"):
            sound.model.put(spec, answer | {name: "other", "store_timestamp": 0})


def test_a_seed_makes_the_same_program_again() -> None:
    assert make("a.1", steps=9) == make("a.1", steps=9)
    assert make("a.1", steps=9) != make("a.2", steps=9)
