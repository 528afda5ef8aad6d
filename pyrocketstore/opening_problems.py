"""What the opening of a store found wrong, as problems of verify."""

from __future__ import annotations

from collections.abc import Iterator

from pyrocketstore._scan import status_name
from pyrocketstore.lost_ends import lost_end
from pyrocketstore.message_store import DefaultMessageStore
from pyrocketstore.verify_report import Problem

RS_BLANK, RS_END = 1, 2
#: How the log of a sound store ends; "": it has no file.
USUAL_ENDS = ("", status_name(RS_END), status_name(RS_BLANK))


def opening_problems(store: DefaultMessageStore) -> Iterator[Problem]:
    """Index files that hold no index; in a read-only store also files of a wrong length or name,
    and the files that the log has lost at its end.

    A writable open has made these good, or has said that it cannot.

    Parameters
    ----------
    store : a loaded store

    Raises StoreIOError. Threads: any.
    """
    for path, reason in store.index_service.left_out.items():
        text = f"{reason}; it is derived from the log: opening for writing builds it again"
        yield Problem("index", path, -1, text)
    plan = store.plan
    if plan is None or not store.read_only:
        return
    for path, reason in plan.mismatched:
        yield Problem(_kind_of(store, path), path, -1, reason)
    usual = not plan.clean or plan.ended_by in USUAL_ENDS
    lost = lost_end(store, plan.beyond) if usual and not plan.broken else None
    if lost is not None:
        yield Problem("log", lost.path, -1, lost.reason)


def _kind_of(store: DefaultMessageStore, path: str) -> str:
    """What a file of a wrong length is one of."""
    table = store.queue_table
    if path.startswith(f"{table.path}/"):
        return "queue"
    return "ext" if path.startswith(f"{table.ext_path}/") else "log"
