"""Tag expressions of the face, compared exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore._text import tags_code


class TagsExpression(NamedTuple):
    """`TagA || TagB`: the tags, and their hashes (int64[n])."""

    tags: frozenset[str]
    codes: npt.NDArray[np.int64]


def tags_filter(expression: str) -> TagsExpression | None:
    """None for "*" and "", which is every message."""
    if expression.strip() in ("", "*"):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return TagsExpression(tags, np.array([tags_code(tag) for tag in tags], np.int64))
