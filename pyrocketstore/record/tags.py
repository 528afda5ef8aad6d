"""Tag expressions of the public API, compared exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyrocketstore.arguments.scalars import INT32_MAX, INT32_MIN, exact_text, is_encodable
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreTypeError
from pyrocketstore.record._text import tags_code
from pyrocketstore.record.message import ALL_TAGS, JAVA_BLANKS, SCHEDULE_TOPIC, TAGS_SEPARATOR


class TagsExpression(NamedTuple):
    """`TagA || TagB`: the tags, and their hashes (int64[n])."""

    tags: frozenset[str]
    codes: npt.NDArray[np.int64]

    def may_match(self, tags_code: npt.NDArray[np.int64], topic: str) -> npt.NDArray[np.bool_]:
        """Which units of a queue may name a message with one of the tags.

        A unit decides only where its code surely is the hash of a tag, which is an int32. Ext
        addresses and delivery times are none: there the record must decide.

        Parameters
        ----------
        tags_code : int64[n], of units
        topic : the queue's

        Returns
        -------
        bool[n]
        """
        if topic == SCHEDULE_TOPIC:
            return np.ones(len(tags_code), np.bool_)
        other = (tags_code < INT32_MIN) | (tags_code > INT32_MAX)
        return np.asarray(other | np.isin(tags_code, self.codes), np.bool_)


def tags_filter(expression: object) -> TagsExpression | None:
    """None for None, "*" and "", which are every message. Raises StoreTypeError: it is not a str.

    Source: RocketMQ 4.9.3 FilterAPI#buildSubscriptionData: parts are trimmed as Java trims.
    """
    if expression is None or (type(expression) is str and expression == ALL_TAGS):
        return None
    if not issubclass(type(expression), str):
        kind = type(expression).__name__
        reason = "must be a str as 'TagA || TagB', or None"
        raise StoreTypeError(f"tags is {shown(expression)} ({kind}): {reason}")
    expression = exact_text("tags", expression)
    if expression.strip(JAVA_BLANKS) in ("", ALL_TAGS):
        return None
    parts = (part.strip(JAVA_BLANKS) for part in expression.split(TAGS_SEPARATOR))
    # A part with a lone surrogate is the tag of no message.
    tags = frozenset(part for part in parts if part and is_encodable(part))
    return TagsExpression(tags, np.array([tags_code(tag) for tag in tags], np.int64))
