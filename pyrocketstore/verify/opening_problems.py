"""Problems of verify that the opening of the store has found."""

from __future__ import annotations

from collections.abc import Iterator

from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.message_store.default_message_store import DefaultMessageStore
from pyrocketstore.message_store.lost_ends import lost_end
from pyrocketstore.results import Status
from pyrocketstore.verify.report import Problem

#: The verdicts that end the log of a valid store; "": the log has no file.
USUAL_ENDS = ("", status_name(Status.END), status_name(Status.BLANK))


def opening_problems(store: DefaultMessageStore) -> Iterator[Problem]:
    """Yield files of the index directory that are not index files. For a read-only store, yield
    also files with a wrong length or name, and files that are missing at the end of the log.

    An opening for writing repairs these, or reports that it cannot.

    Parameters
    ----------
    store : a loaded store

    Raises StoreIOError. Threads: any.
    """
    for path, reason in store.index_service.left_out.items():
        text = f"{reason}; opening the store for writing rebuilds it from the log"
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
    """Return the kind of file that a path belongs to: queue, ext or log."""
    table = store.queue_table
    if path.startswith(f"{table.path}/"):
        return "queue"
    return "ext" if path.startswith(f"{table.ext_path}/") else "log"
