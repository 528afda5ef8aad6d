"""Goal: the advice of verify names what is missing, and following it repairs the store; a log
without files never counts as an empty store. Method: delete derived files, read the advice, follow
it, and verify again; run the commands on such stores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.cli.commands import app
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.verify.report import VerifyReport
from support.snapshot import snapshot

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 101,
}
CONF = "maxHashSlotNum=50\nmaxIndexNum=101\n"
COUNT = 300


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twelve files of the log; the first four alone name the queue T/7."""
    root = tmp_path_factory.mktemp("advice") / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        for i in range(COUNT):
            queue_id = 7 if i % 4 == 0 and i < COUNT // 3 else 0
            store.put("T", bytes(500), queue_id=queue_id, keys=f"k{i}")
    (root.parent / "broker.conf").write_text(CONF)
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    (tmp_path / "broker.conf").write_text(CONF)
    return Path(shutil.copytree(filled, tmp_path / "store"))


def run(root: Path, command: str, *words: str) -> Result:
    conf = str(root.parent / "broker.conf")
    before = snapshot(root)
    result = CliRunner().invoke(app, [command, str(root), *words, "--config", conf])
    assert snapshot(root) == before
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def verify(root: Path) -> VerifyReport:
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        return store.verify()


def open_once(root: Path) -> None:
    pyrocketstore.open(root, **SETTINGS).close()


def test_nothing_is_advised_for_a_store_that_is_whole(root: Path) -> None:
    assert verify(root).advice == []
    result = run(root, "verify")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("which", [slice(None), slice(1, 2), slice(0, 2)], ids=str)
def test_keys_that_no_index_file_has(root: Path, which: slice) -> None:
    for path in sorted((root / "index").iterdir())[which]:
        path.unlink()
    report = verify(root)
    assert report.problem_count == 0 and not report.ok
    (sentence,) = report.advice
    assert f"{report.not_indexed} messages" in sentence
    assert "open the store for writing once" in sentence
    for words in ((), ("--json",)):
        result = run(root, "verify", *words)
        assert result.exit_code == 1
        assert sentence in " ".join(result.stderr.split())
    assert json.loads(result.stdout.splitlines()[0])["verify"]["not_indexed"] == report.not_indexed
    open_once(root)
    assert verify(root).ok


def test_a_last_index_file_that_is_gone(root: Path) -> None:
    max((root / "index").iterdir()).unlink()
    report = verify(root)
    assert report.missing_keys == report.problem_count == 100
    (sentence,) = report.advice
    assert f"lacks {report.missing_keys} keys" in sentence
    open_once(root)
    assert verify(root).ok


def test_keys_that_an_index_file_has_lost(root: Path) -> None:
    path = sorted((root / "index").iterdir())[1]
    data = bytearray(path.read_bytes())
    at = 40 + 50 * 4 + 30 * 20
    data[at : at + 4] = bytes(4)  # the hash of an entry
    path.write_bytes(data)
    report = verify(root)
    assert report.missing_keys == 1 and not report.ok
    assert any("delete" in sentence and "index" in sentence for sentence in report.advice)
    path.unlink()
    open_once(root)
    assert verify(root).ok


def test_units_that_are_missing(root: Path) -> None:
    """An opening after a clean stop looks at the log's last three files, and sees nothing."""
    shutil.rmtree(root / "consumequeue/T/7")
    report = verify(root)
    assert report.missing_units == COUNT // 12
    (sentence,) = report.advice
    assert f"{report.missing_units} units" in sentence
    assert all(word in sentence for word in ("`abort`", "`checkpoint`", "for writing once"))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    open_once(root)
    assert verify(root).ok


def follow_unit_advice(root: Path, **settings: Any) -> None:
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    pyrocketstore.open(root, **SETTINGS, **settings).close()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("byte", [6, 11, 19], ids=["phy_offset", "size", "tags_code"])
def test_units_that_are_wrong(root: Path, byte: int) -> None:
    flip(root / f"consumequeue/T/7/{400:020d}", 2 * 20 + byte)
    (sentence,) = verify(root).advice
    assert "units of queues" in sentence and "`abort`" in sentence
    follow_unit_advice(root)
    assert verify(root).ok


def header_of(root: Path, queue_offset: int) -> tuple[Path, int, int]:
    """Return the log file and the position of a record of T/0, and its physical offset."""
    data = (root / f"consumequeue/T/0/{queue_offset // 20 * 400:020d}").read_bytes()
    phy_offset = int.from_bytes(data[queue_offset % 20 * 20 :][:8], "big")
    return (
        root / f"commitlog/{phy_offset >> 14 << 14:020d}",
        phy_offset % (1 << 14),
        phy_offset,
    )


def state_offset(root: Path, queue_offset: int, stated: int) -> tuple[Path, int, int]:
    """Let a record of T/0 state another queue offset."""
    path, position, phy_offset = header_of(root, queue_offset)
    data = bytearray(path.read_bytes())
    assert data[position + 20 : position + 28] == queue_offset.to_bytes(8, "big")
    data[position + 20 : position + 28] = stated.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    return path, position, phy_offset


LAST = COUNT - COUNT // 12 - 1  # the last queue offset of T/0


@pytest.mark.parametrize("queue_offset", [0, 1, 40, LAST - 29, LAST - 4, LAST])
@pytest.mark.parametrize("stated", ["behind", "far", "inside", "negative"])
def test_a_record_that_states_another_queue_offset(
    root: Path, queue_offset: int, stated: str
) -> None:
    """No unit is missing or wrong, and nothing is advised that changes nothing."""
    wrong = {"behind": LAST + 17, "far": (1 << 63) - 1, "inside": queue_offset ^ 16, "negative": -5}
    path, position, phy_offset = state_offset(root, queue_offset, wrong[stated])
    for after in ("a stop", "the former advice"):
        report = verify(root)
        (problem,) = report.problems
        assert (problem.kind, problem.path, problem.position) == ("log", str(path), position), after
        assert f"states queue offset {wrong[stated]}, but unit {queue_offset} of" in problem.text
        assert f"no checksum covers this field; `get {phy_offset}` prints the m" in problem.text
        assert (report.problem_count, report.missing_units, report.repeated) == (1, 0, 0)
        assert report.complete and not report.consistent
        (sentence,) = report.advice
        assert sentence.startswith("1 message states another queue offset than the unit")
        assert "no opening repairs it" in sentence and "nothing is to be done" in sentence
        assert "`abort`" not in sentence and "for writing" not in sentence
        result = run(root, "dump")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.count('{"message"') == COUNT
        assert run(root, "get", str(phy_offset)).exit_code == 0
        follow_unit_advice(root)


def test_records_in_a_row_that_state_other_queue_offsets(root: Path) -> None:
    for queue_offset in (40, 41, 42, 43, LAST):
        state_offset(root, queue_offset, queue_offset + (1 << 20))
    report = verify(root)
    assert report.other_offsets == report.problem_count == 5
    assert report.advice[0].startswith("5 messages state another queue offset")


def test_a_record_that_states_another_queue_offset_beside_missing_units(root: Path) -> None:
    """Only the other units are missing, and the advice on them is true."""
    state_offset(root, 40, 1 << 20)
    (root / f"consumequeue/T/0/{3 * 400:020d}").write_bytes(bytes(400))
    report = verify(root)
    assert report.missing_units_of == {("T", 0): 20}
    assert (report.missing_units, report.problem_count, report.other_offsets) == (20, 21, 1)
    follow_unit_advice(root)
    assert verify(root).problem_count == 1


def test_the_only_unit_of_a_queue(tmp_path: Path) -> None:
    """No other unit proves it: an opening moves the message to the stated queue offset."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.put("T", b"x")
    state_offset(root, 0, 16)
    report = verify(root)
    assert report.other_offsets == 0 and not report.ok
    (sentence,) = report.advice
    assert "open the store for writing once" in sentence
    open_once(root)
    assert verify(root).ok


def test_a_light_queue_of_which_a_record_states_another_queue_offset(tmp_path: Path) -> None:
    root = tmp_path / "store"
    light: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    with pyrocketstore.open(root, **SETTINGS, **light) as store:
        for _ in range(10):
            store.put("T", b"x", light_queues=["a"])
    path = root / f"commitlog/{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"_QUEUE_OFFSET\x017", b"_QUEUE_OFFSET\x019"))
    report = verify(root)
    assert (report.problem_count, report.other_offsets) == (1, 1)
    assert "queue offset 9, but unit 7 of the queue %LMQ%a/0 names" in report.problems[0].text


@pytest.mark.parametrize("which", ["later", "earlier", "other file", "renamed", "swapped"])
def test_units_that_are_shifted_prove_no_queue_offset(root: Path, which: str) -> None:
    """Each names a record that states another queue offset: the units are wrong."""
    files = [root / f"consumequeue/T/0/{i * 400:020d}" for i in range(6)]
    data = files[0].read_bytes()
    if which == "later":
        files[0].write_bytes(data[:100] + data[80:380])
    elif which == "earlier":
        files[0].write_bytes(data[:100] + data[120:] + files[1].read_bytes()[:20])
    elif which == "other file":
        shutil.copy(files[3], files[1])
    elif which == "renamed":
        files[1].rename(files[2])
    else:
        files[0].write_bytes(data[:100] + data[120:140] + data[100:120] + data[140:])
    report = verify(root)
    assert report.other_offsets == 0 and not report.ok
    assert all("for writing once" in sentence for sentence in report.advice)
    follow_unit_advice(root)
    assert verify(root).ok


def test_the_units_of_a_moved_file_prove_no_queue_offset(root: Path) -> None:
    """They name records whose own units are missing, and no record states their queue offsets."""
    first = root / f"consumequeue/T/7/{0:020d}"
    shutil.copy(first, root / f"consumequeue/T/7/{800:020d}")
    first.unlink()
    assert verify(root).other_offsets == 0


def test_ext_units_that_are_wrong(tmp_path: Path) -> None:
    ext: dict[str, Any] = {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 1000,
    }
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS, **ext) as store:
        for i in range(COUNT):
            store.put("T", bytes(500), tags="A", queue_id=0 if i else 7)
    flip(root / f"consumequeue_ext/T/7/{0:020d}", 9)
    with pyrocketstore.open(root, read_only=True, **SETTINGS, **ext) as opened:
        (sentence,) = opened.verify().advice
    assert "ext units" in sentence and "`abort`" in sentence
    follow_unit_advice(root, **ext)
    with pyrocketstore.open(root, read_only=True, **SETTINGS, **ext) as opened:
        assert opened.verify().ok


def test_a_damaged_log_is_restored_first(root: Path) -> None:
    """With `abort`, and without `checkpoint`, an opening would end the log at the damage."""
    shutil.rmtree(root / "consumequeue/T/7")
    damaged = root / f"commitlog/{2 << 14:020d}"
    flip(damaged, 100)
    log, units = verify(root).advice
    assert "restore the files" in log
    assert "units of queues are missing" in units and "restore it first" in units
    assert "make an empty file" not in log + units
    flip(damaged, 100)
    follow_unit_advice(root)
    assert verify(root).ok


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize("which", [slice(1, 2), slice(2, 3)], ids=["no file", "keys"])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_no_opening_before_the_log_is_restored(root: Path, which: slice, is_wrong: bool) -> None:
    """Derived files are repaired by an opening for writing, which may cut a damaged log."""
    for path in sorted((root / "index").iterdir())[which]:
        path.unlink()
    if is_wrong:
        flip(max((root / "consumequeue/T/0").iterdir()), 4)
    once = "open the store for writing once"
    assert any(once in text for text in verify(root).advice)
    flip(root / f"commitlog/{2 << 14:020d}", 100)
    log, *others = verify(root).advice
    assert "without a copy, save the messages that can be read before that opening" in log
    for text in others:
        assert once not in text or f"restore the damaged log first; then {once}" in text
    assert any(once in text for text in others)


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
@pytest.mark.parametrize(("number", "is_scanned"), [(2, False), (10, True)])
def test_advice_on_reading_a_damaged_log(root: Path, number: int, is_scanned: bool) -> None:
    """Recovery ends the log at damage that it scans; a read then skips nothing."""
    flip(root / f"commitlog/{number << 14:020d}", 100)
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        report = store.verify()
        messages = store.read("T", 0, on_corrupt="skip")
        count = len(list(messages))
        end = store.message_store.get_max_phy_offset()
    (text,) = report.advice
    whole = COUNT - COUNT // 12
    if is_scanned:
        assert f"ends the log at byte {end}" in text and "returns no later message" in text
        assert count < whole - 1 and messages.skipped.count == 0
    else:
        assert text.endswith("reading with on_corrupt='skip' returns the undamaged messages")
        assert count + messages.skipped.count == whole


def test_an_index_of_unknown_geometry(root: Path) -> None:
    """No opening for writing is advised: without the settings it is refused."""
    (root / "sync_point").unlink()  # it names the sizes; 4.9.3 does not write it
    with pyrocketstore.open(root, read_only=True) as store:
        report = store.verify()
    (text,) = report.advice
    assert report.not_indexed is report.not_indexed_keys is None
    assert report.missing_keys == 0 and "pass these settings with --config" in text
    result = CliRunner().invoke(app, ["verify", str(root), "--details"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[1] == "lost or wrong\tthe index was not checked"
    assert "not indexed\t-" in lines and "not indexed keys\t-" in lines
    result = CliRunner().invoke(app, ["verify", str(root), "--json"])
    counts = json.loads(result.stdout.splitlines()[0])["verify"]
    assert counts["not_indexed"] is counts["not_indexed_keys"] is None
    facts = json.loads(CliRunner().invoke(app, ["info", str(root), "--json"]).stdout.split("\n")[0])
    assert facts["store"]["not_indexed"] is facts["store"]["not_indexed_keys"] is None
    with pytest.raises(pyrocketstore.StoreFormatError, match="maxHashSlotNum"):
        pyrocketstore.open(root)
    assert verify(root).ok


def test_ext_units_that_were_not_checked(tmp_path: Path) -> None:
    """Without enableConsumeQueueExt they are not read: the store is not called ok."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS, enable_consume_queue_ext=True) as store:
        for i in range(10):
            store.put("T", b"x", tags="A", keys=f"k{i}")
    (tmp_path / "broker.conf").write_text(CONF)
    result = run(root, "verify")
    verdict, wrong, remedy = result.stdout.splitlines()[:3]
    assert result.exit_code == 1
    assert "the store is not complete: 10 messages" in verdict
    assert wrong == "lost or wrong\tthe ext units of 10 units were not checked"
    assert "enableConsumeQueueExt=true" in remedy and "--config" in remedy
    report = verify(root)
    assert (report.ext_unresolved, report.ok, report.consistent) == (10, False, True)
    assert report.advice == [remedy.partition("\t")[2]]
    with (tmp_path / "broker.conf").open("a") as file:
        file.write("enableConsumeQueueExt=true\n")
    result = run(root, "verify")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("verdict\tthe store is ok")


def test_queue_offsets_that_were_given_twice(root: Path) -> None:
    """No advice brings both messages into the queue, and one sentence says so."""
    shutil.rmtree(root / "consumequeue/T/7")
    with pyrocketstore.open(root, **SETTINGS) as store:
        assert [store.put("T", b"again", queue_id=7).queue_offset for _ in range(3)] == [0, 1, 2]
    _, sentence = verify(root).advice
    assert sentence.startswith("3 messages have a queue offset that a later message")


@pytest.mark.parametrize("with_index", [True, False])
def test_a_log_without_files_is_no_empty_store(root: Path, with_index: bool) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    if not with_index:
        shutil.rmtree(root / "index")
    report = verify(root)
    assert not report.ok and not report.consistent
    assert "the log has no file" in report.problems[0].text
    assert ["restore it" in sentence for sentence in report.advice] == [True]
    for words in (["verify"], ["info"], ["cat", "T"], ["cat", "T", "--queue=7"]):
        result = run(root, words[0], *words[1:])
        assert result.exit_code == 1, words
    assert not (root / ".broken").exists()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_advice_in_a_store_that_was_new(tmp_path: Path, is_damaged: bool) -> None:
    """A log that was empty at the opening has files since the first put."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        sent = [store.put("T", b"x" * 100).phy_offset for _ in range(10)]
        bad = MessageExtBrokerInner("T", b"x", properties_string="a\1b")
        put = store.message_store.put_message(bad)
        store.wait_dispatched()
        store.flush()
        with (root / f"commitlog/{0:020d}").open("r+b") as file:
            file.seek(put.phy_offset + put.wrote_bytes - 1)
            file.write(bytes(1))
        if is_damaged:
            with (root / f"commitlog/{0:020d}").open("r+b") as file:
                file.seek(sent[4] + 4)
                file.write(bytes(4))
        report = store.verify()
    assert not report.ok and report.files == 1
    *log, properties = report.advice
    assert properties.startswith("1 messages have properties that are not complete")
    assert [text.startswith("the log is damaged") for text in log] == [True] * is_damaged


def test_a_log_of_an_empty_file_is_no_missing_log(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.put("T", b"x")
    (root / f"commitlog/{0:020d}").write_bytes(b"")
    report = verify(root)
    assert not report.ok and report.files == 0
    (text,) = report.advice
    assert text.startswith("all files of the log are empty (length 0), and nothing")
    assert "all files of the log are empty" in report.problems[0].text


def test_the_log_says_what_becomes_of_the_queues(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read-only store sets nothing aside, and does not say so."""
    for path in (root / "commitlog").iterdir():
        path.unlink()
    with pyrocketstore.open(root, read_only=True, **SETTINGS):
        pass
    (text,) = [r.getMessage() for r in caplog.records if "commit log is empty" in r.getMessage()]
    assert "are set aside" not in text and "opening the store for writing moves" in text
    caplog.clear()
    with pytest.warns(pyrocketstore.StoreWarning, match="no file.*messages are missing"):
        open_once(root)
    (text,) = [r.getMessage() for r in caplog.records if "commit log is empty" in r.getMessage()]
    (kept,) = (root / ".broken").iterdir()
    assert f"were moved to {kept}" in text


def test_commands_say_that_a_queue_lost_its_end(root: Path) -> None:
    """Where all was read that there is; a queue that lost nothing is fine."""
    for path in sorted((root / "commitlog").iterdir())[-2:]:
        path.unlink()
    assert run(root, "verify").exit_code == 1
    assert run(root, "info").exit_code == 1
    assert run(root, "cat", "T").exit_code == 1
    assert run(root, "cat", "T", "--queue=0").exit_code == 1
    assert run(root, "cat", "T", "--queue=0", "--count=5").exit_code == 0
    assert run(root, "cat", "T", "--queue=7").exit_code == 0


@pytest.mark.parametrize("is_opened", [False, True])
def test_lost_files_can_be_restored(root: Path, is_opened: bool) -> None:
    """Before an opening for writing nothing else is required; after one, `verify` says what is."""
    files = sorted((root / "commitlog").iterdir())[-3:]
    copies = [Path(shutil.copy(path, root.parent)) for path in files]
    for path in files[1:]:
        path.unlink()
    text = run(root, "info").stderr
    assert "from a copy, before the store is opened for writing, which removes their units" in text
    if is_opened:
        match = "and the file in which the log ends now, from a copy, before new messages get"
        with pytest.warns(pyrocketstore.StoreWarning, match=match):
            open_once(root)
    for copy in copies if is_opened else copies[1:]:
        shutil.copy(copy, root / "commitlog")
    if is_opened and not verify(root).ok:
        assert all("for writing once" in text for text in verify(root).advice)
        open_once(root)
    assert verify(root).ok
    with pyrocketstore.open(root, read_only=True, **SETTINGS) as store:
        assert store.max_offset("T", 0) + store.max_offset("T", 7) == COUNT


@pytest.mark.parametrize("name", ["topics.json", "delayOffset.json", "topicMinOffset.json"])
@pytest.mark.parametrize("backup", ["none", "valid", "damaged"])
def test_a_damaged_file_of_config_is_reported(root: Path, name: str, backup: str) -> None:
    """Goal: a store that an opening for writing refuses is not `ok`."""
    path = root / "config" / name
    for each in (path, path.with_name(f"{name}.bak")):
        each.unlink(missing_ok=True)
    path.write_text('{"cut')
    valid = '{"topicMinOffsetTable":{}}' if name == "topicMinOffset.json" else "{}"
    if backup != "none":
        path.with_name(f"{name}.bak").write_text(valid if backup == "valid" else '{"cut')
    report = verify(root)
    if backup == "valid":
        assert report.ok, report.problems
        open_once(root)
        return
    (problem,) = report.problems
    assert (problem.kind, problem.path) == ("config", str(path))
    assert report.complete and not report.consistent
    (text,) = report.advice
    assert text.startswith(str(problem)) and "an opening for writing is refused" in text
    with pytest.raises(StoreCorruptionError) as refused:
        open_once(root)
    assert refused.value.reason == problem.text
    assert f"config\t{path}\t-\t" in run(root, "verify").stdout
    path.unlink()
    path.with_name(f"{name}.bak").unlink(missing_ok=True)
    assert verify(root).ok
    open_once(root)


@pytest.mark.parametrize(
    ("name", "refused", "settings"),
    [
        ("consumerOffset.json", "a consumer is refused", {}),
        ("subscriptionGroup.json", "a consumer is refused", {}),
        ("consumerFilter.json", "a consumer with a filter is refused", {"where": "a > 5"}),
    ],
)
def test_a_damaged_file_of_consumers_is_reported(
    root: Path, name: str, refused: str, settings: dict[str, Any]
) -> None:
    path = root / "config" / name
    path.write_text('{"cut')
    (problem,) = verify(root).problems
    assert (problem.kind, problem.path) == ("config", str(path))
    (text,) = verify(root).advice
    assert text.startswith(str(problem)) and refused in text and "for writing" not in text
    for command in ("verify", "info"):
        result = run(root, command)
        assert result.exit_code == 1 and str(path) in result.stdout + result.stderr
    with (
        pyrocketstore.open(root, **SETTINGS) as store,
        pytest.raises(StoreCorruptionError) as said,
    ):
        store.consumer("group", "T", **settings)
    assert said.value.reason == problem.text
    path.unlink()
    assert verify(root).ok and run(root, "info").exit_code == 0


def test_a_config_that_is_no_directory_is_one_problem(root: Path) -> None:
    shutil.rmtree(root / "config")
    (root / "config").write_text("")
    (problem,) = verify(root).problems
    assert (problem.kind, problem.path) == ("config", str(root / "config"))


def test_a_damaged_topics_json_can_be_made_again(root: Path) -> None:
    """Goal: after its advice all topics are listed, also those of the log's first files."""
    with pyrocketstore.open(root, **SETTINGS) as store:
        store.put("later", b"x", queue_id=2)
    path = root / "config" / "topics.json"
    path.write_text('{"cut')
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    (text,) = verify(root).advice
    assert "delete it, its backup and `checkpoint`, and make an empty file `abort`" in text
    path.unlink()
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    open_once(root)
    table = json.loads(path.read_text())["topicConfigTable"]
    assert {name: entry["readQueueNums"] for name, entry in table.items()} == {"T": 8, "later": 3}
    assert verify(root).ok


@pytest.mark.filterwarnings("ignore::pyrocketstore.StoreWarning")
def test_a_damaged_topics_json_beside_a_damaged_log(root: Path) -> None:
    """Its advice names the steps that read the whole log for an undamaged log only: they would
    lose all messages after the damage."""
    path = root / "config" / "topics.json"
    path.write_text('{"cut')
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    flip(root / f"commitlog/{2 << 14:020d}", 100)
    log, text = verify(root).advice
    assert log.startswith("the log is damaged")
    assert "run `verify`, and only if it reports no damage of the log, delete it" in text
    assert "would end a damaged one at the first damage, without all later messages" in text
    assert text.endswith("the log is damaged: restore it first")
    end = verify(root).recovery["log_end"]
    pyrocketstore.open(root, topics_json=False, **SETTINGS).close()
    assert verify(root).recovery["log_end"] == end
    path.unlink()
    follow_unit_advice(root)
    assert verify(root).recovery["log_end"] == 2 << 14


@pytest.mark.parametrize("position", [24, 32])
def test_the_command_says_why_a_valid_store_is_only_read(root: Path, position: int) -> None:
    with (root / "checkpoint").open("r+b") as file:
        file.seek(position)
        file.write(b"\xff" * 8)  # 5.x writes -1 for no offset
    assert verify(root).ok
    result = run(root, "verify")
    assert result.exit_code == 0
    assert "RocketMQ 5.x has written this store" in result.stderr


def test_config_of_a_store_that_is_only_read_is_not_checked(root: Path) -> None:
    (root / "config" / "topics.json").write_text('{"cut')
    assert not verify(root).ok
    (root / "timerwheel").write_bytes(b"a file of 5.x")
    assert verify(root).ok
