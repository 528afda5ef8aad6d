"""The folder for data that recovery removes from a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrocketstore.system.env import Env

__all__ = ["broken_folder"]


def broken_folder(env: Env, root: str) -> str:
    """Return ROOT/.broken/<local time>, which the caller makes."""
    return f"{root}/.broken/{env.local_time_name(env.now_ms())}"
