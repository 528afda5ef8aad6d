"""Goal: a directory that one side wrote opens on the other, at any time.
Method: random messages of every kind go in on one side; then both sides dump the store, and the
two dumps and the list of what was put must be equal. Both endings: a clean close, and SIGKILL."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from golden_lines import Line, compare_lines, java_hash, message_lines, write_queries
from java_store import JavaStore, require_java
from pyrocketstore.config import MessageStoreConfig
from pyrocketstore.dump import dump_lines
from random_messages import SCHEDULE_TOPIC, is_queued, random_messages, random_queries, stored_form

pytestmark = pytest.mark.java

#: Small files, so that a few hundred messages roll over several of each kind. All delays are so
#: long that nothing is delivered while a test runs.
DELAY_HOURS = 1
CONFIG = {
    "mappedFileSizeCommitLog": 131_072,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 100,
    "maxIndexNum": 150,
    "messageDelayLevel": " ".join([f"{DELAY_HOURS}h"] * 18),
}
#: Offsets by time are compared only where a queue fits one file.
LARGER_QUEUES = CONFIG | {"mappedFileSizeConsumeQueue": 2000}
LMQ_CONFIG = CONFIG | {
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": 65_536,
    "enableLmq": True,
    "enableMultiDispatch": True,
}
MIXED = ("batch", "v6", "mixhost", "tx", "delay", "comp", "empty", "collide", "wide")
CHILD = Path(__file__).with_name("put_child.py")
CHILD_TIMEOUT_S = 120
#: The child runs the very build that this process runs.
CHILD_ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(pyrocketstore.__file__).parent.parent)}
CLEAN, CRASH = "clean", "crash"

Spec = dict[str, Any]
Result = dict[str, Any]


# ---- both sides ---------------------------------------------------------------------------


class OurStore:
    """Puts through a child process of ours."""

    @staticmethod
    def put(
        store: Path, specs: Sequence[Spec], config: Mapping[str, Any], ending: str
    ) -> list[Result]:
        specs_path = store.parent / f"{store.name}.specs"
        specs_path.write_bytes(pickle.dumps(specs))
        conf = write_conf(store.parent / f"{store.name}.conf", config)
        how = "kill" if ending == CRASH else "clean"
        done = subprocess.run(
            [sys.executable, str(CHILD), str(store), str(conf), str(specs_path), how],
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            env=CHILD_ENVIRONMENT,
        )
        expected = -signal.SIGKILL if ending == CRASH else 0
        assert done.returncode == expected, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    @staticmethod
    def dump(store: Path, config: Mapping[str, Any], queries: Path) -> list[str]:
        conf = write_conf(store.parent / f"{store.name}.conf", config)
        settings, warnings = MessageStoreConfig.from_broker_conf(conf, root=store)
        assert not warnings
        return list(dump_lines(store, settings, queries))


class TheirStore:
    """The same over RocketMQ 4.9.3; a dump recovers a copy."""

    def __init__(self, java: JavaStore) -> None:
        self.java = java

    def put(
        self, store: Path, specs: Sequence[Spec], config: Mapping[str, Any], ending: str
    ) -> list[Result]:
        how = "halt" if ending == CRASH else "clean"
        return self.java.put(store, specs, config, ending=how)

    def dump(self, store: Path, config: Mapping[str, Any], queries: Path) -> list[str]:
        copy = store.parent / f"{store.name}.copy"
        shutil.copytree(store, copy)  # keeps the times of the files
        try:
            return self.java.dump(copy, config, queries)
        finally:
            shutil.rmtree(copy)


@pytest.fixture(scope="module")
def theirs() -> TheirStore:
    return TheirStore(require_java())


def write_conf(path: Path, config: Mapping[str, Any]) -> Path:
    lines = (f"{k}={str(v).lower() if isinstance(v, bool) else v}\n" for k, v in config.items())
    path.write_text("".join(lines), encoding="ascii")
    return path


def both_dumps(
    store: Path,
    theirs: TheirStore,
    config: Mapping[str, Any],
    put: Sequence[tuple[Spec, Result]],
    seed: int,
    *,
    unclean: bool,
) -> list[str]:
    """Dump on both sides, compare, and give ours."""
    times = [result["store_timestamp"] for _, result in put]
    rows = random_queries(seed, [spec for spec, _ in put], (min(times), max(times)))
    queries = write_queries(store.parent / f"{store.name}.tsv", rows)
    ours = OurStore.dump(store, config, queries)
    compare_lines(theirs.dump(store, config, queries), ours, unclean=unclean)
    return ours


# ---- the list of what was put -------------------------------------------------------------


def expected_messages(put: Iterable[tuple[Spec, Result]]) -> list[Line]:
    """What a dump must show of each queued message, in the order of the puts."""
    found = []
    for spec, result in put:
        assert result["status"] == "PUT_OK", (spec, result)
        stored = spec if "batch" in spec else stored_form(spec)
        items = spec.get("batch", [stored])
        ids = result["msg_id"].split(",")
        assert len(ids) == len(items) == result["msg_num"]
        if not is_queued(spec):
            continue
        for i, (item, msg_id) in enumerate(zip(items, ids, strict=True)):
            line = _expected(stored, item, result["store_timestamp"])
            line |= {"queue_offset": result["logics_offset"] + i, "msg_id": msg_id}
            found.append(line | {"phy_offset": int(msg_id[-16:], 16)})
    return found


def _expected(stored: Spec, item: Spec, store_timestamp: int) -> Line:
    properties = dict(item["properties"])
    if item is not stored:  # the batch's own come behind, and win
        properties |= dict(stored["properties"])
    tags_code = java_hash(properties["TAGS"]) if "TAGS" in properties else 0
    if stored["topic"] == SCHEDULE_TOPIC:
        tags_code = store_timestamp + DELAY_HOURS * 3_600_000
    body = item["body"]
    return {
        "topic": stored["topic"],
        "queue_id": stored["queue_id"],
        "tags_code": tags_code,
        "flag": item["flag"],
        "born_timestamp": stored["born_timestamp"],
        "store_timestamp": store_timestamp,
        "born_host": java_host(stored["born_host"]),
        "store_host": java_host(stored["store_host"]),
        "reconsume_times": stored["reconsume_times"],
        "prepared_transaction_offset": stored.get("prepared_transaction_offset", 0),
        "body_len": len(body),
        "body_sha256_8": hashlib.sha256(body).hexdigest()[:16] if body else "",
        "properties": properties,
    }


def java_host(text: str) -> str:
    """A host as Java's InetSocketAddress prints it."""
    address, _, port = text.rpartition(":")
    if not address.startswith("["):
        return f"/{text}"
    groups = ipaddress.ip_address(address[1:-1]).exploded.split(":")
    return f"/[{':'.join(f'{int(group, 16):x}' for group in groups)}]:{port}"


def assert_holds(
    lines: Iterable[str], put: Iterable[tuple[Spec, Result]], *, with_ext: bool = False
) -> None:
    """The dump shows what was put, each at its place, and nothing else but LMQ units."""
    have = {
        (m["topic"], m["queue_id"], m["cq_offset"]): m
        for m in message_lines(lines)
        if not m["cq_topic"].startswith("%LMQ%")
    }
    expected = expected_messages(put)
    for want in expected:
        message = have.pop((want["topic"], want["queue_id"], want["queue_offset"]))
        for name, value in want.items():
            if name == "tags_code" and with_ext:
                continue  # the unit holds an address
            if name == "properties" and "INNER_MULTI_DISPATCH" in value:
                added = message[name].pop("INNER_MULTI_QUEUE_OFFSET")
                assert added.count(",") == value["INNER_MULTI_DISPATCH"].count(",")
            assert message[name] == value, f"{name}: {message[name]!r}, put was {value!r}"
    assert not have, f"{len(have)} messages that nobody put: {next(iter(have.items()))}"


def pairs(specs: Sequence[Spec], results: Sequence[Result]) -> list[tuple[Spec, Result]]:
    return list(zip(specs, results, strict=True))


# ---- ours, read by the real store ---------------------------------------------------------


@pytest.mark.parametrize("ending", [CLEAN, CRASH])
@pytest.mark.parametrize(("config", "kinds"), [(CONFIG, MIXED), (LMQ_CONFIG, ("lmq",))])
def test_the_real_store_reads_what_we_wrote(config, kinds, ending, theirs, tmp_path):
    store = tmp_path / "store"
    specs = random_messages(21, 350, kinds, max_body=1500)
    put = pairs(specs, OurStore.put(store, specs, config, ending))
    assert (store / "abort").exists() == (ending == CRASH)
    assert len(list((store / "commitlog").iterdir())) > 2
    assert len(list((store / "index").iterdir())) > 2
    assert max(len(list(q.iterdir())) for q in (store / "consumequeue").glob("*/*")) > 1
    lines = both_dumps(store, theirs, config, put, 5, unclean=ending == CRASH)
    assert_holds(lines, put, with_ext="enableConsumeQueueExt" in config)


@pytest.mark.parametrize("acknowledged", [1, 40, 133])
def test_the_real_store_reads_what_we_wrote_before_a_kill_at_any_time(
    acknowledged, theirs, tmp_path
):
    store = tmp_path / "store"
    # 4.9.3 rebuilds units of delayed messages with wrong tags codes.
    kinds = [kind for kind in MIXED if kind != "delay"]
    specs = random_messages(acknowledged, 200, kinds, max_body=3000)
    specs_path = tmp_path / "specs"
    specs_path.write_bytes(pickle.dumps(specs))
    conf = write_conf(tmp_path / "conf", CONFIG)
    command = [sys.executable, str(CHILD), str(store), str(conf), str(specs_path), "linger"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=CHILD_ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        results = [json.loads(child.stdout.readline()) for _ in range(acknowledged)]
        child.kill()
        # Puts that returned before the signal came through count as well.
        results += [json.loads(line) for line in child.stdout if line.endswith("}\n")]
    results = [result for result in results if result]
    put = pairs(specs[: len(results)], results)
    lines = both_dumps(store, theirs, CONFIG, put, 6, unclean=True)
    end = max(result["wrote_offset"] + result["wrote_bytes"] for result in results)
    known = [line for line in lines if not _is_message_from(line, end)]
    assert_holds(known, put)


def _is_message_from(line: str, phy_offset: int) -> bool:
    """A message that lies at or behind `phy_offset`: put, but its result was never printed."""
    return line.startswith('{"message"') and json.loads(line)["message"]["phy_offset"] >= phy_offset


def test_the_real_store_reads_what_the_face_wrote(theirs, tmp_path):
    store = tmp_path / "store"
    rng = random.Random(24)
    bodies = [rng.randbytes(rng.randrange(1500)) for _ in range(300)]
    put: list[tuple[int, bytes, str | None]] = []
    conf = write_conf(tmp_path / "face.conf", CONFIG)
    with pyrocketstore.open(store, config=conf) as ours:
        for i, body in enumerate(bodies[:100]):
            keys = [f"k{i}", "order"] if i % 3 else None
            named = {"цвет": "🚀", "a": str(i)} if i % 4 == 0 else None
            ours.put("Topic-1", body, queue_id=i % 4, tags="TagA", keys=keys, properties=named)
            put.append((i % 4, body, "TagA"))
        many = bodies[100:250]
        ids = [i % 2 for i in range(len(many))]
        tags = [None if i % 5 else "标签1" for i in range(len(many))]
        columns = ours.put_many("Topic-1", many, queue_ids=ids, tags=tags, keys=["Aa"] * 150)
        put += zip(ids, many, tags, strict=True)
        ours.put_batch("Topic-1", [{"body": body, "tags": "B"} for body in bodies[250:]], 3)
        put += [(3, body, "B") for body in bodies[250:]]
    rows = [("Topic-1", key, 64, 0, 1 << 62) for key in ("k1", "order", "Aa", "k3", "BB")]
    queries = write_queries(tmp_path / "queries.tsv", rows)
    lines = OurStore.dump(store, CONFIG, queries)
    compare_lines(theirs.dump(store, CONFIG, queries), lines)
    found = sorted(message_lines(lines), key=lambda message: message["phy_offset"])
    assert [(m["queue_id"], m["body_sha256_8"], m["properties"].get("TAGS")) for m in found] == [
        (q, hashlib.sha256(b).hexdigest()[:16] if b else "", tag) for q, b, tag in put
    ]
    assert [m["queue_offset"] for m in found[100:250]] == columns[0].tolist()
    assert [m["phy_offset"] for m in found[100:250]] == columns[1].tolist()


def test_both_end_a_torn_log_at_the_same_record(theirs, tmp_path):
    """Zeros from some byte of the last record on, as after a crash of the machine."""
    whole = tmp_path / "whole"
    specs = random_messages(23, 60, ("v6", "tx"), max_body=900)
    specs[-1] |= {"properties": [("KEYS", "the-last one"), ("TAGS", "TagX")], "sys_flag": 0}
    put = pairs(specs, OurStore.put(whole, specs, CONFIG, CRASH))
    last = put[-1][1]
    names = sorted(path.name for path in (whole / "commitlog").iterdir())
    file_from_offset = max(int(name) for name in names if int(name) <= last["wrote_offset"])
    position = last["wrote_offset"] - file_from_offset
    end = position + last["wrote_bytes"]
    topic_at = end - len("KEYS.the-last one.TAGS.TagX") - 2 - len("Topic-0")
    in_properties = end - 5  # no CRC covers it: 4.9.3 takes the record, and so do we
    cuts = (position, position + 4, position + 30, position + 60, topic_at - 9, topic_at + 2)
    for cut in (*cuts, in_properties):
        store = tmp_path / f"torn-{cut}"
        shutil.copytree(whole, store)
        with (store / "commitlog" / f"{file_from_offset:020}").open("r+b") as file:
            file.seek(cut)
            file.write(bytes(end - cut))
        lines = both_dumps(store, theirs, CONFIG, put, 7, unclean=True)
        if cut != in_properties:
            assert_holds(lines, put[:-1])


def test_same_input_same_files(theirs, tmp_path):
    """Log and queues equal byte for byte, but for the times at which things were stored."""
    specs = random_messages(31, 250, MIXED)
    ours, java = tmp_path / "ours", tmp_path / "java"
    OurStore.put(ours, specs, CONFIG, CLEAN)
    theirs.put(java, specs, CONFIG, CLEAN)
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


# ---- theirs, read by us -------------------------------------------------------------------


@pytest.mark.parametrize("ending", [CLEAN, CRASH])
@pytest.mark.parametrize(
    ("seed", "config", "kinds", "max_body"),
    [
        (41, LARGER_QUEUES, ("plain",), 2000),
        (42, LARGER_QUEUES, MIXED, 700),
        (43, CONFIG, ("batch", "mixhost", "collide", "tx"), 5000),
        (44, LMQ_CONFIG, ("lmq", "v6"), 1500),
    ],
)
def test_other_stores(seed, config, kinds, max_body, ending, theirs, tmp_path):
    store = tmp_path / "store"
    specs = random_messages(seed, 300, kinds, max_body=max_body)
    with_pauses: list[Spec] = []
    for i, spec in enumerate(specs):
        with_pauses += [{"sleep_ms": 5}, spec] if i % 9 == 0 else [spec]
    put = pairs(specs, theirs.put(store, with_pauses, config, ending))
    lines = both_dumps(store, theirs, config, put, seed, unclean=ending == CRASH)
    assert_holds(lines, put, with_ext="enableConsumeQueueExt" in config)


# ---- taking turns -------------------------------------------------------------------------


@pytest.mark.parametrize("endings", [(CLEAN,) * 4, (CLEAN, CRASH) * 2, (CRASH, CLEAN) * 2])
def test_taking_turns(endings, theirs, tmp_path):
    store = tmp_path / "store"
    put: list[tuple[Spec, Result]] = []
    for turn, ending in enumerate(endings):
        side = (OurStore, theirs)[turn % 2]
        specs = random_messages(100 + turn, 120, MIXED)
        put += pairs(specs, side.put(store, specs, CONFIG, ending))
        lines = both_dumps(store, theirs, CONFIG, put, turn, unclean=CRASH in endings)
        assert_holds(lines, put)
