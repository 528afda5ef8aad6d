"""Goal: a preset sets only the sizes that neither the caller nor the index files have set.
Method: `with_preset` over directories with and without index files, and settings of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrocketstore import MessageStoreConfig, StoreFormatError
from pyrocketstore.store.presets import PRESETS, check_preset, with_preset
from pyrocketstore.system.env import Env

LOG, QUEUE = "mapped_file_size_commit_log", "mapped_file_size_consume_queue"
INDEX = ("max_hash_slot_num", "max_index_num")


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_known_preset_is_accepted(preset: str | None) -> None:
    assert check_preset(preset) == preset


@pytest.mark.parametrize("preset", ["Small", "", "small ", 0, False, b"small", ["small"], "\x1b"])
def test_any_other_value_is_refused(preset: object) -> None:
    with pytest.raises(StoreFormatError, match="must be one of 'small', or None") as caught:
        check_preset(preset)
    assert "\x1b" not in str(caught.value)


def sizes_of(root: Path, **given: Any) -> dict[str, int]:
    found = with_preset(Env(), str(root), MessageStoreConfig().replace(**given), "small")
    return {name: getattr(found, name) for name in PRESETS["small"]}


def test_all_sizes_are_set_in_an_empty_directory(tmp_path: Path) -> None:
    assert sizes_of(tmp_path) == PRESETS["small"]


@pytest.mark.parametrize("name", PRESETS["small"])
def test_a_size_of_the_caller_stays(tmp_path: Path, name: str) -> None:
    """Also if it is the usual one."""
    usual = getattr(MessageStoreConfig(), name)
    assert sizes_of(tmp_path, **{name: usual}) == {**PRESETS["small"], name: usual}


@pytest.mark.parametrize(("data", "has_index"), [(b"x", True), (b"", False)])
def test_index_files_decide_on_their_sizes(tmp_path: Path, data: bytes, has_index: bool) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20240101000000000").write_bytes(data)
    usual = {name: getattr(MessageStoreConfig(), name) for name in INDEX}
    assert sizes_of(tmp_path) == {**PRESETS["small"], **(usual if has_index else {})}


def test_a_config_that_names_all_is_returned_as_it_is(tmp_path: Path) -> None:
    config = MessageStoreConfig(**{LOG: 8192, QUEUE: 200, **dict.fromkeys(INDEX, 10)})
    assert with_preset(Env(), str(tmp_path), config, "small") is config
