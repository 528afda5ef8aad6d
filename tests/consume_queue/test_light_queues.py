"""Goal: a store returns the messages of its light queues, also without settings that mention them.
Method: copy a store as a kill leaves it, without the last units of its light queues, and open it
with the settings that its files imply; remove, zero, cut or exchange files of light queues of a
closed store."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner, MessageStoreConfig, PutMessageStatus
from pyrocketstore.config.message_store_config import detect_sizes
from pyrocketstore.consume_queue import unit_check
from pyrocketstore.consume_queue.mappings import QueueMappings
from pyrocketstore.record._message import properties_to_string
from pyrocketstore.system.env import Env
from support.broken_env import broken
from support.cleaned_stores import message, opened

pytestmark = pytest.mark.slow

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 400}
COUNT = 50
Places = Counter[tuple[str, int, int]]


def places(root: Path, **settings: object) -> Places:
    """The messages of each queue of a store."""
    with pyrocketstore.open(root, read_only=True, **settings) as store:
        return Counter(
            (topic, queue_id, offset)
            for topic in store.topics()
            for queue_id in store.queues(topic)
            for offset, _ in enumerate(store.read(topic, queue_id))
        )


def dispatched() -> Places:
    own = [("t", i % 3, i // 3) for i in range(COUNT)]
    return Counter([*own, *(("%LMQ%a", 0, i) for i in range(COUNT))])


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose light queue lost its last units, as where a kill came before they were put."""
    with pyrocketstore.open(tmp_path / "live", **SIZES, **LIGHT) as store:
        for number in range(COUNT):
            names = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
            store.put("t", b"%d" % number, queue_id=number % 3, properties=names)
        store.wait_dispatched()
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    path = tmp_path / "killed" / "consumequeue" / "%LMQ%a" / "0" / f"{800:020d}"
    units = path.read_bytes()
    path.write_bytes(units[:140].ljust(len(units), b"\0"))
    return tmp_path / "killed"


def test_a_killed_store_without_settings_has_every_light_unit(killed: Path) -> None:
    assert places(killed, **LIGHT) == dispatched()
    assert places(killed) == dispatched()


def test_recovery_without_settings_puts_them_on_the_disk(killed: Path) -> None:
    with pyrocketstore.open(killed) as store:
        assert store.max_offset("%LMQ%a", 0) == COUNT
    assert places(killed, enable_lmq=False) == dispatched()


def test_what_is_given_stays(killed: Path) -> None:
    with pyrocketstore.open(killed, read_only=True, enable_multi_dispatch=False) as store:
        assert store.max_offset("%LMQ%a", 0) == 47


def test_only_directories_of_light_queues_count(tmp_path: Path) -> None:
    plain = MessageStoreConfig()
    for name in ("t/0", "LMQ/0", "%LMQ%b/1"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "%LMQ%file").touch()
    assert detect_sizes(Env(), str(tmp_path), plain) is plain
    (tmp_path / "consumequeue" / "%LMQ%b" / "0").mkdir()
    found = detect_sizes(Env(), str(tmp_path), plain)
    assert (found.enable_lmq, found.enable_multi_dispatch) == (True, True)


def test_a_batch_has_every_light_unit_too(killed: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyrocketstore.spark.options import read_options
    from pyrocketstore.spark.plan.batch import plan
    from pyrocketstore.spark.read.worker import read_task

    options = read_options({"path": str(killed)})
    planned = plan(options)
    columns = {"topic": "string", "queueId": "int", "queueOffset": "bigint"}
    rows = Counter(
        tuple(row.values())
        for part in planned.tasks
        for batch in read_task(part, columns, options, planned.common)
        for row in batch.to_pylist()
    )
    assert rows == dispatched()


# ---- after a clean stop --------------------------------------------------------------------------

QUEUE_FILES = [f"{start:020d}" for start in (0, 400, 800)]
DAMAGES = ["no directory", "no last file", "zeros", "half a file", "another queue's file"]


def put_light(store: pyrocketstore.Store, count: int, **more: object) -> None:
    """`count` messages of the light queue %LMQ%a, each second of them of %LMQ%b and other/1."""
    for number in range(count):
        names = "%LMQ%a,%LMQ%b,other" if number % 2 else "%LMQ%a"
        properties = {"INNER_MULTI_DISPATCH": names}
        store.put("t", b"%d" % number, queue_id=1, properties=properties, **more)


def given(root: Path, read_only: bool) -> dict[str, list[bytes]]:
    """The bodies that each queue gives; all that is given is held against the log."""
    with pyrocketstore.open(root, read_only=read_only, **SIZES, **LIGHT) as store:
        if not read_only:
            report = store.verify()
            assert report.ok, report.problems
        return {
            f"{topic}/{queue_id}": [message.body for message in store.read(topic, queue_id)]
            for topic in store.topics()
            for queue_id in store.queues(topic)
        }


def damage(folder: Path, how: str) -> None:
    last = folder / QUEUE_FILES[-1]
    units = last.read_bytes()
    if how == "no directory":
        shutil.rmtree(folder.parent)
    elif how == "no last file":
        last.unlink()
    elif how == "zeros":
        last.write_bytes(bytes(len(units)))
    elif how == "half a file":
        last.write_bytes(units[:100])
    elif how == "another queue's file":
        shutil.copy(folder.parents[1] / "%LMQ%b" / "0" / QUEUE_FILES[0], last)
    else:
        raise AssertionError(how)


@pytest.fixture(scope="module", params=[0, 10], ids=["short log", "long log"])
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed; the long log has more files than an opening looks at."""
    root = tmp_path_factory.mktemp("stopped") / "store"
    with pyrocketstore.open(root, **SIZES, **LIGHT) as store:
        if request.param:
            store.put_many("t", [bytes(30_000)] * request.param)
        put_light(store, COUNT)
    return root


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("how", DAMAGES)
def test_after_a_clean_stop_the_log_gives_light_units_again(
    stopped: Path, tmp_path: Path, how: str
) -> None:
    """As those of the records' own queues: the log's last three files have all of them."""
    root = Path(shutil.copytree(stopped, tmp_path / "store"))
    whole = given(root, read_only=True)
    assert [len(whole[name]) for name in ("%LMQ%a/0", "%LMQ%b/0", "other/1")] == [50, 25, 25]
    damage(root / "consumequeue" / "%LMQ%a" / "0", how)
    if how == "another queue's file":  # a read-only store shows its units as they are
        with pyrocketstore.open(root, read_only=True, **SIZES, **LIGHT) as store:
            assert store.max_offset("%LMQ%a") >= COUNT
            assert not store.verify().ok
    else:
        assert given(root, read_only=True) == whole
    with pyrocketstore.open(root, **SIZES, **LIGHT) as store:
        put_light(store, 1)
    whole["%LMQ%a/0"].append(b"0")
    whole["t/1"].append(b"0")
    assert given(root, read_only=False) == whole


@pytest.mark.parametrize("name", ["%LMQ%b", "other"])
def test_further_queues_without_their_directory(stopped: Path, tmp_path: Path, name: str) -> None:
    root = Path(shutil.copytree(stopped, tmp_path / "store"))
    whole = given(root, read_only=True)
    shutil.rmtree(root / "consumequeue" / name)
    assert given(root, read_only=True) == whole
    assert given(root, read_only=False) == whole


def test_light_queues_without_any_directory(stopped: Path, tmp_path: Path) -> None:
    """The settings say that the log names light queues."""
    root = Path(shutil.copytree(stopped, tmp_path / "store"))
    whole = given(root, read_only=True)
    for name in ("%LMQ%a", "%LMQ%b"):
        shutil.rmtree(root / "consumequeue" / name)
    assert given(root, read_only=True) == whole
    assert given(root, read_only=False) == whole


def test_light_units_of_a_log_with_long_pauses(tmp_path: Path) -> None:
    """A scanned chunk that spans months holds records that only the log says all of."""
    root, ahead_ms = tmp_path / "store", [0]
    with (
        pyrocketstore.open(root, **SIZES, **LIGHT) as store,
        broken(store.message_store.env, "now_ms", lambda original: original() + ahead_ms[0]),
    ):
        put_light(store, 1)
        ahead_ms[0] = 40 * 86_400_000
        put_light(store, 3)
    whole = given(root, read_only=True)
    assert len(whole["%LMQ%a/0"]) == 4
    shutil.rmtree(root / "consumequeue" / "%LMQ%a")
    assert given(root, read_only=True) == whole
    assert given(root, read_only=False) == whole


@pytest.mark.parametrize("kind", ["prepared", "rolled back", "no directory's name", "negative"])
def test_an_opening_asks_for_no_light_unit_that_is_never_put(tmp_path: Path, kind: str) -> None:
    """Else every opening would dispatch the log again."""
    names = {"INNER_MULTI_DISPATCH": "a/b" if kind == "no directory's name" else "%LMQ%b"}
    settings = dict(LIGHT)
    if kind == "negative":
        names["INNER_MULTI_QUEUE_OFFSET"] = "-5"
        settings["enable_multi_dispatch"] = False  # which would count by itself
    message = MessageExtBrokerInner("t", b"last", 1, properties=dict(names))
    message.sys_flag = {"prepared": 0x4, "rolled back": 0xC}.get(kind, 0)
    message.properties_string = properties_to_string(names)
    with pyrocketstore.open(tmp_path, **SIZES, **settings) as store:
        put_light(store, 3)
        assert store.message_store.put_message(message).status.name == "PUT_OK"
    with pyrocketstore.open(tmp_path, **SIZES, **LIGHT) as store:
        plan = store.message_store.plan
        assert plan is not None
        assert plan.clean and plan.replay_from is None


def test_light_queues_do_not_fill_the_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: as many light queues as one likes, though each file has a mapping while it is put to.
    Method: the bound is lowered, and the mappings are counted."""
    monkeypatch.setattr(Env, "max_map_count", lambda env: 12)
    monkeypatch.setattr(QueueMappings, "_all", [])
    light: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    with pyrocketstore.open(tmp_path, **SIZES, **light) as store:
        for _ in range(3):
            for i in range(40):
                store.put("t", b"x", properties={"INNER_MULTI_DISPATCH": f"%LMQ%q{i}"})
        store.wait_dispatched()
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines()
                  if f"{tmp_path}/consumequeue" in line]  # fmt: skip
        assert 0 < len(mapped) <= 9
        assert [store.max_offset(f"%LMQ%q{i}") for i in range(40)] == [3] * 40
    table = json.loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert [*table] == ["t"]


def test_a_retry_goes_to_the_queues_that_it_names(tmp_path: Path) -> None:
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    with opened(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as store:
        for topic in ("t", "%RETRY%g", "t"):
            put = message(b"x", topic)
            put.properties.update(names)
            assert store.put_message(put).status is PutMessageStatus.PUT_OK
        store.wait_dispatched()
        assert store.get_max_offset_in_queue("%LMQ%a", 0) == 3
        assert store.get_max_offset_in_queue("%RETRY%g", 0) == 1


def test_a_message_with_many_names_is_parsed_as_often_as_one_with_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening must not parse a message again for each queue that it names."""
    calls = []
    parse = unit_check.further_queues

    def counted(*words: Any, **more: Any) -> Any:
        calls.append(words)
        return parse(*words, **more)

    monkeypatch.setattr(unit_check, "further_queues", counted)
    counts = []
    for names in (2, 200):
        path = tmp_path / str(names)
        settings = {"enable_lmq": True, "enable_multi_dispatch": True}
        with pyrocketstore.open(path, **settings) as store:
            store.put("t", b"body", light_queues=[f"d{n}" for n in range(names)])
        calls.clear()
        with pyrocketstore.open(path, **settings) as store:
            assert [m.body for m in store.read("%LMQ%d1")] == [b"body"]
        counts.append(len(calls))
    assert counts[0] == counts[1]
