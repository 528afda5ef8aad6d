"""Goal: `info` and `verify` count messages and keys alike.
Method: both over each golden store, one with every kind of record, one that has expired, and ones
that lack some of their index files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
from pyrocketstore.cli.app import app
from support.golden_stores import GOLDEN, NAMES, unpack
from support.key_stores import SETTINGS, index_files

CONF = """
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=50
maxIndexNum=98
enableLmq=true
enableMultiDispatch=true
"""


def rows(root: Path, conf: Path, *words: str) -> list[dict[str, Any]]:
    command = [words[0], str(root), *words[1:], "--config", str(conf), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code in (0, 1) and isinstance(done.exception, SystemExit | None), done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def counts(root: Path, conf: Path) -> dict[str, int]:
    """The counts of `info`, which are equal to those of `verify`."""
    facts, *queues = rows(root, conf, "info")
    report = rows(root, conf, "verify")[0]["verify"]
    found = {
        "messages": facts["store"]["message_count"],
        "queues": facts["store"]["queue_count"],
        "not_indexed": facts["store"]["not_indexed"],
        "not_indexed_keys": facts["store"]["not_indexed_keys"],
    }
    assert found == {name: report[name] for name in found}
    assert sum(row["queue"]["count"] for row in queues) == found["messages"]
    text = facts["store"]["index"]
    lacks = [
        f"no index file covers {found['not_indexed_keys']} key(s) of {found['not_indexed']}"
        " message(s)",
        f"the index files lack {report['missing_keys']} key(s)",
    ]
    named = [lacks[0]] * (found["not_indexed"] > 0) + [lacks[1]] * (report["missing_keys"] > 0)
    assert text == (f"not complete: {'; '.join(named)}" if named else "complete")
    # The three lines for people have the numbers of the details.
    done = CliRunner().invoke(app, ["verify", str(root), "--config", str(conf)])
    first, second = done.stdout.splitlines()[:2]
    assert f": {report['messages']} messages in queues; of the log, {report['records']}" in first
    assert f" records and {report['keys']} keys checked" in first
    lacking = report["missing_keys"] + report["not_indexed_keys"]
    assert (f"{lacking} key(s) are not in the index" in second) == (lacking > 0)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_golden_stores(name: str, tmp_path: Path) -> None:
    found = counts(unpack(name, tmp_path), GOLDEN / f"{name}.conf")
    assert (found["not_indexed"] > 0) == (name == "broker-clean")


def open_store(root: Path) -> pyrocketstore.Store:
    """Open a store of small files, whose index files divide the keys of records between them."""
    settings = {**SETTINGS, "max_index_num": 98}
    return pyrocketstore.open(root, **settings, enable_lmq=True, enable_multi_dispatch=True)


def fill(root: Path) -> Path:
    """Make a store with every kind of record, and its .conf."""
    with open_store(root) as store:
        for i in range(400):
            store.put("plain", bytes(300), queue_id=i % 3)
            names = [f"k{i}", "all", "all"][: i % 4]
            store.put("keys", b"%d" % i + bytes(300), keys=names or None)
            uniq = {"UNIQ_KEY": f"u{i}"}
            engine = store.message_store
            engine.put_message(MessageExtBrokerInner("uniq", bytes(100), properties=uniq))
            if i % 10 == 0:
                store.put("delayed", b"x", delay_level=18, keys="d")
                store.put("light", b"x", light_queues=["a", "b"], keys="l")
                store.prepare("half", b"x", group="g", keys="h")
                store.prepare("half", b"x", group="g", keys="h").commit()
                store.prepare("half", b"x", group="g", keys="h").rollback()
    conf = root.with_suffix(".conf")
    conf.write_text(CONF)
    return conf


def test_every_kind_of_record(tmp_path: Path) -> None:
    conf = fill(tmp_path / "s")
    whole = counts(tmp_path / "s", conf)
    assert whole["not_indexed"] == 0 < whole["messages"]
    with open_store(tmp_path / "s") as store:
        middle = store.message_store.get_max_phy_offset() // 2
        when = store.get(next(m for m in store.read("plain") if m.phy_offset > middle).phy_offset)
        assert when is not None
        store.trim("keys", before=when.store_timestamp)
        store.trim(before=when.store_timestamp)
    assert 0 < counts(tmp_path / "s", conf)["messages"] < whole["messages"]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("lost", [[0], [1], [2], [3], [2, 3], [-2], [-1], "all"], ids=str)
def test_index_files_that_are_gone(tmp_path: Path, killed: bool, lost: Any) -> None:
    conf = fill(tmp_path / "s")
    files = index_files(tmp_path / "s")
    for path in files if lost == "all" else [files[at] for at in lost]:
        path.unlink()
    if killed:
        (tmp_path / "s" / "abort").touch()
    counts(tmp_path / "s", conf)


def test_an_empty_store(tmp_path: Path) -> None:
    with pyrocketstore.open(tmp_path / "s", **SETTINGS):
        pass
    (tmp_path / "s.conf").write_text(CONF)
    assert set(counts(tmp_path / "s", tmp_path / "s.conf").values()) == {0}
