"""Where what recovery takes out of a store is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrocketstore.env import Env

__all__ = ["broken_folder"]


def broken_folder(env: Env, root: str) -> str:
    """ROOT/.broken/<local time>, for what is set aside now; it is not made here."""
    return f"{root}/.broken/{env.local_time_name(env.now_ms())}"
