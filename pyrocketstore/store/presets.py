"""Presets of `open`: file sizes for a kind of store, where neither settings nor files name them."""

from __future__ import annotations

from typing import Any

from pyrocketstore.config.file_sizes import INDEX_NAMES, PRESETS, has_index
from pyrocketstore.config.message_store_config import MessageStoreConfig
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.system.env import Env

__all__ = ["PRESETS", "check_preset", "with_preset"]


def check_preset(preset: object) -> str | None:
    """Return the name of a preset, or None. Raises StoreFormatError for any other value."""
    if preset is None or (isinstance(preset, str) and preset in PRESETS):
        return preset
    names = ", ".join(repr(name) for name in sorted(PRESETS))
    raise StoreFormatError(f"preset={shown(preset)}: must be one of {names}, or None")


def with_preset(env: Env, root: str, config: MessageStoreConfig, preset: str) -> MessageStoreConfig:
    """Return `config` with the sizes of a preset that it does not name itself.

    Where the store has index files, they determine slots and entries: the preset changes neither.
    """
    sizes: dict[str, Any] = {
        name: value for name, value in PRESETS[preset].items() if name not in config.given
    }
    if has_index(env, root):
        for name in INDEX_NAMES:
            sizes.pop(name, None)
    return config.replace(**sizes) if sizes else config
