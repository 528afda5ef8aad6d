"""Goal: each side opens a directory of the other side, in cases that random programs do not cover.
Method: light queues (LMQ) on both sides, `Store`, equal input on both sides, and a log that is torn
at every part of its last record. Both sides dump the store, and the dumps must be equal."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from actors import JAVA, OURS, Actors, actors, write_conf
from model import Model, Stored
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.verify.dump import dump_lines
from support.golden_lines import Line, compare_lines, message_lines, write_queries
from support.java_store import require_java
from support.random_messages import SCHEDULE_TOPIC, random_messages, random_queries, spec_line

pytestmark = pytest.mark.java

#: Small files, so that a few hundred messages roll over several of each kind. The delays are so
#: long that no message is delivered while a test runs.
FILE_SIZE = 131_072
HOUR_MS = 3_600_000
CONFIG = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 100,
    "maxIndexNum": 150,
    "messageDelayLevel": " ".join(["1h"] * 18),
}
LMQ_CONFIG = CONFIG | {
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": 65_536,
    "enableLmq": True,
    "enableMultiDispatch": True,
}
MIXED = ("batch", "v6", "mixhost", "tx", "delay", "comp", "empty", "collide", "wide")
LMQ_PREFIX = "%LMQ%"

Spec = dict[str, Any]


@pytest.fixture(scope="module")
def pool() -> Iterator[Actors]:
    with actors(require_java()) as made:
        yield made


def put(
    pool: Actors, side: str, store: Path, specs: Sequence[Spec], config: Mapping[str, Any], end: str
) -> list[Line]:
    """Put all messages through one process and `end` it: close or kill."""
    conf = write_conf(store.parent / f"{store.name}.conf", config)
    with pool.start(side) as actor:
        assert actor.ask("open", path=str(store), conf=str(conf))["open"]
        answers = [actor.ask("put", spec=json.loads(spec_line(spec))) for spec in specs]
        actor.ask("wait")
        if end == "close":
            actor.ask("close")
    assert (store / "abort").exists() == (end == "kill")
    return answers


def both_dumps(
    pool: Actors, store: Path, config: Mapping[str, Any], queries: Path, *, unclean: bool
) -> list[str]:
    """Dump on both sides, compare, and return our dump. 4.9.3 recovers a copy."""
    conf = write_conf(store.parent / f"{store.name}.conf", config)
    settings, warnings = MessageStoreConfig.from_broker_conf(conf, root=store)
    assert not warnings
    ours = list(dump_lines(store, settings, queries))
    copy = store.parent / f"{store.name}.copy"
    shutil.copytree(store, copy)  # keeps modification times
    theirs = pool.dump(copy, conf, queries)
    shutil.rmtree(copy)
    assert theirs is not None
    compare_lines(theirs, ours, unclean=unclean)
    return ours


def asked(store: Path, seed: int, specs: Sequence[Spec], answers: Sequence[Line]) -> Path:
    """Return random queries for the messages."""
    times = [answer["store_timestamp"] for answer in answers]
    rows = random_queries(seed, specs, (min(times), max(times)))
    return write_queries(store.parent / f"{store.name}.tsv", rows)


# ---- light queues --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("side", [OURS, JAVA])
def test_light_queues(side: str, end: str, pool: Actors, tmp_path: Path) -> None:
    store = tmp_path / "store"
    specs = random_messages(21, 350, ("lmq", "v6"), max_body=1500)
    answers = put(pool, side, store, specs, LMQ_CONFIG, end)
    assert len(list((store / "commitlog").iterdir())) > 2
    assert max(len(list(q.iterdir())) for q in (store / "consumequeue").glob("*/*")) > 1
    queries = asked(store, 5, specs, answers)
    lines = both_dumps(pool, store, LMQ_CONFIG, queries, unclean=end == "kill")
    assert_holds(lines, specs, answers)


def assert_holds(lines: Sequence[str], specs: Sequence[Spec], answers: Sequence[Line]) -> None:
    """Return each message in its queue and in every light queue that it names."""
    dumped = message_lines(lines)
    have = {m["phy_offset"]: m for m in dumped if not m["cq_topic"].startswith(LMQ_PREFIX)}
    light = [(m["cq_topic"], m["phy_offset"]) for m in dumped if m["cq_topic"][:5] == LMQ_PREFIX]
    named = []
    for spec, answer in zip(specs, answers, strict=True):
        assert answer["status"] == "PUT_OK"
        at = answer["wrote_offset"]
        record = Stored(spec, spec, answer["logics_offset"], at, answer["store_timestamp"])
        message = have.pop(at)
        lmq = [
            name for name in record.properties.get("INNER_MULTI_DISPATCH", "").split(",") if name
        ]
        named += [(name, at) for name in lmq]
        added = message["properties"].pop("INNER_MULTI_QUEUE_OFFSET", "")
        assert len(added.split(",")) == max(1, len(lmq))
        for name, value in record.fields(HOUR_MS).items():
            # The unit has an address in the ext file; the added property is part of the size.
            if name not in ("tags_code", "size", "store_size"):
                assert message[name] == value, f"{name}: {message[name]!r}, put was {value!r}"
    assert not have, "messages that were never put"
    assert sorted(light) == sorted(named)


# ---- Store ---------------------------------------------------------------------------------------


def test_the_real_store_reads_what_our_store_wrote(pool: Actors, tmp_path: Path) -> None:
    store = tmp_path / "store"
    rng = random.Random(24)
    bodies = [rng.randbytes(rng.randrange(1500)) for _ in range(300)]
    wanted: list[tuple[int, bytes, str | None]] = []
    conf = write_conf(tmp_path / "face.conf", CONFIG)
    with pyrocketstore.open(store, config=conf) as ours:
        for i, body in enumerate(bodies[:100]):
            keys = [f"k{i}", "order"] if i % 3 else None
            named = {"цвет": "🚀", "a": str(i)} if i % 4 == 0 else None
            ours.put("Topic-1", body, queue_id=i % 4, tags="TagA", keys=keys, properties=named)
            wanted.append((i % 4, body, "TagA"))
        many = bodies[100:250]
        ids = [i % 2 for i in range(len(many))]
        tags = [None if i % 5 else "标签1" for i in range(len(many))]
        columns = ours.put_many("Topic-1", many, queue_ids=ids, tags=tags, keys=["Aa"] * 150)
        wanted += zip(ids, many, tags, strict=True)
        ours.put_batch("Topic-1", [{"body": body, "tags": "B"} for body in bodies[250:]], 3)
        wanted += [(3, body, "B") for body in bodies[250:]]
    rows = [("Topic-1", key, 64, 0, 1 << 62) for key in ("k1", "order", "Aa", "k3", "BB")]
    queries = write_queries(tmp_path / "queries.tsv", rows)
    lines = both_dumps(pool, store, CONFIG, queries, unclean=False)
    found = sorted(message_lines(lines), key=lambda message: message["phy_offset"])
    assert [(m["queue_id"], m["body_sha256_8"], m["properties"].get("TAGS")) for m in found] == [
        (q, hashlib.sha256(b).hexdigest()[:16] if b else "", tag) for q, b, tag in wanted
    ]
    assert [m["queue_offset"] for m in found[100:250]] == columns[0].tolist()
    assert [m["phy_offset"] for m in found[100:250]] == columns[1].tolist()


# ---- torn logs -----------------------------------------------------------------------------------


def test_both_end_a_torn_log_at_the_same_record(pool: Actors, tmp_path: Path) -> None:
    """Zero the last record from some byte on, as after a crash of the machine."""
    whole = tmp_path / "whole"
    specs = random_messages(23, 60, ("v6", "tx"), max_body=900)
    specs[-1] |= {"properties": [("KEYS", "the-last one"), ("TAGS", "TagX")], "sys_flag": 0}
    answers = put(pool, OURS, whole, specs, CONFIG, "kill")
    queries = asked(whole, 7, specs, answers)
    model = Model(FILE_SIZE, HOUR_MS)
    for spec, answer in zip(specs[:-1], answers, strict=False):
        model.put(spec, answer)
    last = answers[-1]
    file_from_offset = last["wrote_offset"] - last["wrote_offset"] % FILE_SIZE
    position = last["wrote_offset"] - file_from_offset
    end = position + last["wrote_bytes"]
    topic_at = end - len("KEYS.the-last one.TAGS.TagX") - 2 - len("Topic-0")
    in_properties = end - 5  # no CRC covers it: 4.9.3 accepts the record, and so does our store
    cuts = (position, position + 4, position + 30, position + 60, topic_at - 9, topic_at + 2)
    for cut in (*cuts, in_properties):
        store = tmp_path / f"torn-{cut}"
        shutil.copytree(whole, store)
        with (store / "commitlog" / f"{file_from_offset:020}").open("r+b") as file:
            file.seek(cut)
            file.write(bytes(end - cut))
        lines = both_dumps(pool, store, CONFIG, queries, unclean=True)
        if cut != in_properties:
            model.check(lines)


# ---- the same input on both sides ----------------------------------------------------------------


def test_same_input_same_files(pool: Actors, tmp_path: Path) -> None:
    """Log and queues are equal byte for byte, except for store times."""
    specs = random_messages(31, 250, MIXED)
    ours, java = tmp_path / "ours", tmp_path / "java"
    put(pool, OURS, ours, specs, CONFIG, "close")
    put(pool, JAVA, java, specs, CONFIG, "close")
    for directory in ("commitlog", "consumequeue"):
        assert _files(ours / directory) == _files(java / directory)
    for name in _files(java / "commitlog"):
        assert _without_times(ours / "commitlog" / name) == _without_times(
            java / "commitlog" / name
        )
    for name in _files(java / "consumequeue"):
        our_units = (ours / "consumequeue" / name).read_bytes()
        java_units = (java / "consumequeue" / name).read_bytes()
        if name.startswith(SCHEDULE_TOPIC):  # the tags code is a time
            our_units, java_units = _without_tags(our_units), _without_tags(java_units)
        assert our_units == java_units, name


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _without_times(path: Path) -> bytes:
    data, at = bytearray(path.read_bytes()), 0
    while at + 40 < len(data) and data[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
        size, sys_flag = struct.unpack_from(">i", data, at)[0], data[at + 39]
        store_time_at = at + 48 + (20 if sys_flag & 0x10 else 8)
        data[store_time_at : store_time_at + 8] = bytes(8)
        at += size
    return bytes(data)


def _without_tags(units: bytes) -> bytes:
    return b"".join(units[at : at + 12] for at in range(0, len(units), 20))
