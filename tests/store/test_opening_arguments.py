"""Goal: the settings of an opening come from the caller, a broker.conf or the usual values, in that
order, and a wrong one is refused before anything is opened.
Method: each function over arguments of each kind; the text of each refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import MessageStoreConfig, StoreFormatError, StoreTypeError
from pyrocketstore.store.opening import (
    PORT_MAX,
    base_settings,
    check_of,
    store_host_of,
    with_sizes,
)
from pyrocketstore.system.env import Env

LOG = "mapped_file_size_commit_log"


def settings_of(root: Path, config: Any = None, **settings: Any) -> MessageStoreConfig:
    return base_settings(str(root), config, False, settings, [])  # type: ignore[arg-type]


def test_without_settings_the_usual_ones(tmp_path: Path) -> None:
    found = settings_of(tmp_path)
    assert found.store_path_root_dir == str(tmp_path)
    assert getattr(found, LOG) == getattr(MessageStoreConfig(), LOG)


def test_the_settings_of_the_call_win(tmp_path: Path) -> None:
    given = MessageStoreConfig(mapped_file_size_commit_log=8192, listen_port=5)
    found = settings_of(tmp_path, given, mapped_file_size_commit_log=16384)
    assert (getattr(found, LOG), found.listen_port) == (16384, 5)
    assert LOG in found.given
    assert getattr(given, LOG) == 8192, "the object of the caller does not change"


def test_a_broker_conf_is_read_and_its_lines_without_effect_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("mappedFileSizeCommitLog=8192\nnoSuchKey=1\nstorePathRootDir=/elsewhere\n")
    notices: list[str] = []
    found = base_settings(str(tmp_path), path, False, {}, notices)
    assert getattr(found, LOG) == 8192 and found.store_path_root_dir == str(tmp_path)
    assert [notice for notice in notices if "noSuchKey" in notice]
    with pytest.raises(StoreFormatError, match="noSuchKey"):
        base_settings(str(tmp_path), path, True, {}, [])


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/x/.."])
def test_the_root_may_be_repeated_and_not_contradicted(tmp_path: Path, spelling: str) -> None:
    same = spelling.format(tmp_path)
    if ".." not in spelling:
        assert settings_of(tmp_path, store_path_root_dir=same).store_path_root_dir == str(tmp_path)
    with pytest.raises(StoreFormatError, match="leave the setting out"):
        settings_of(tmp_path, store_path_root_dir=f"{tmp_path}/other")


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    ("address", "port", "is_valid"),
    [
        (None, 10911, True),
        ("10.0.0.1", 0, True),
        ("::1", PORT_MAX, True),
        ("10.0.0.1", -1, False),
        ("10.0.0.1", PORT_MAX + 1, False),
        ("broker", 10911, False),
        ("10.0.0.256", 10911, False),
        ("\x1b[2J", 10911, False),
    ],
)
def test_the_store_host(address: str | None, port: int, is_valid: bool, read_only: bool) -> None:
    config = MessageStoreConfig(broker_ip1=address, listen_port=port)
    if is_valid:
        assert store_host_of(config, read_only=read_only) == config.store_host
    elif read_only:  # no record is written
        assert store_host_of(config, read_only=True) == MessageStoreConfig().store_host
    else:
        with pytest.raises(StoreFormatError, match="give store_host") as caught:
            store_host_of(config, read_only=False)
        assert str(port) in str(caught.value) and "\x1b" not in str(caught.value)


def test_the_check_of_transactions() -> None:
    assert check_of(None, read_only=True) is None
    assert check_of(print, read_only=False) is print
    with pytest.raises(StoreFormatError, match="read-only"):
        check_of(print, read_only=True)
    for read_only in (True, False):
        with pytest.raises(StoreTypeError, match="must be a callable or None"):
            check_of("print", read_only=read_only)


def test_a_preset_has_no_effect_on_a_reader(tmp_path: Path) -> None:
    base = settings_of(tmp_path)
    small = with_sizes(Env(), base, False, "small")
    assert getattr(small, LOG) == 256 << 10
    assert getattr(with_sizes(Env(), base, True, "small"), LOG) == getattr(base, LOG)


def test_the_length_of_the_files_decides(tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / "commitlog" / f"{number * 8192:020d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(8192))
    for read_only in (True, False):
        assert getattr(with_sizes(Env(), settings_of(tmp_path), read_only, "small"), LOG) == 8192
