"""Problems of verify that the opening of the store has found."""

from __future__ import annotations

from collections.abc import Iterator

from pyrocketstore.commit_log._scan import status_name
from pyrocketstore.commit_log.other_formats import why_checkpoint_is_damaged, why_only_read
from pyrocketstore.commit_log.topic_min_offset_file import TopicMinOffsetFile
from pyrocketstore.consumer.consumer_filters import ConsumerFilters
from pyrocketstore.consumer.offsets import ConsumerOffsets
from pyrocketstore.consumer.subscription_groups import SubscriptionGroups
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.lost_ends import LostEnd, lost_end
from pyrocketstore.message_store.topic_config import TopicConfigFile
from pyrocketstore.recovery.plan import COMMITTED_END
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.results import Status
from pyrocketstore.schedule.delay_offsets import DelayOffsets
from pyrocketstore.verify.report import Problem

#: The verdicts that end the log of a valid store; "": the log has no file.
USUAL_ENDS = ("", status_name(Status.END), status_name(Status.BLANK), COMMITTED_END)


def opening_problems(store: LoadedFiles) -> Iterator[Problem]:
    """Yield files of the index directory that are not index files. For a read-only store, yield
    also files with a wrong length or name, files that are missing at the end of the log, damage at
    that end which no valid record follows, and files of `config` that are not valid.

    An opening for writing repairs these, or reports that it cannot.

    Parameters
    ----------
    store : its loaded files

    Raises StoreIOError. Threads: any.
    """
    for path, reason in store.index_service.left_out.items():
        text = f"{reason}; opening the store for writing rebuilds it from the log"
        yield Problem("index", path, -1, text)
    plan = store.unmade
    if plan is None:
        return
    yield from config_problems(store)
    damage = why_checkpoint_is_damaged(store.env, store.config)
    if damage:
        text = f"{damage}; it counts as missing, and opening the store for writing makes it again"
        yield Problem("checkpoint", f"{store.root}/checkpoint", -1, text)
    for path, reason in plan.mismatched:
        yield Problem(_kind_of(store, path), path, -1, reason)
    if plan.broken:
        return
    end = damaged_end(store, plan)
    if end is not None:
        yield end
        return
    lost = lost_log_end(store)
    if lost is not None:
        yield Problem("log", lost.path, -1, lost.reason)


def lost_log_end(store: LoadedFiles) -> LostEnd | None:
    """Return what the log of a read-only store has lost at its end; None where nothing, or where
    its end is damaged instead. Raises StoreIOError."""
    plan = store.unmade
    if plan is None or plan.broken or damaged_end(store, plan) is not None:
        return None
    return lost_end(store, plan, plan.beyond)


def damaged_end(store: LoadedFiles, plan: RecoveryPlan) -> Problem | None:
    """Return the damage at which the log ends; None where it ends as that of a valid store does."""
    if plan.broken:
        size = sum(chunk[2] for chunk in plan.broken)
        text = (
            f"{plan.ended_by}; the log ends here, though valid records follow, in"
            f" {size} bytes of {len(plan.broken)} file(s)"
        )
    elif plan.clean and plan.ended_by not in USUAL_ENDS:
        text = f"{plan.ended_by}; the log ends here, though the store was stopped cleanly"
    else:
        return None
    return Problem("log", *store.commit_log.position_of(plan.log_end), text)


def config_problems(store: LoadedFiles) -> Iterator[Problem]:
    """Yield the files of `config` that are damaged, with their backups, of a read-only store that
    may be written; damaged entries of the others are logged. Raises StoreIOError.

    A read-only opening reads few of them: see `REFUSED_BY` for what each refuses.
    """
    env, config, root = store.env, store.config, store.root
    if why_only_read(env, config):
        return
    filters = ConsumerFilters(
        env,
        root,
        config.max_error_rate_of_bloom_filter,
        config.expect_consumer_num_use_filter,
        config.filter_data_clean_time_span,
        store.newest_store_timestamp,
    )
    known = set()
    for read in (
        TopicConfigFile(env, f"{root}/config/topics.json").load,
        DelayOffsets(env, root).load,
        TopicMinOffsetFile(env, root).read,
        ConsumerOffsets(env, root, lmq=config.enable_lmq).load,
        SubscriptionGroups(env, root, lmq=config.enable_lmq).load,
        filters.load,
    ):
        try:
            read()
        except StoreCorruptionError as error:
            if error.path in known:  # `config` itself
                continue
            known.add(error.path)
            yield Problem("config", error.path, error.position, error.reason)


def _kind_of(store: LoadedFiles, path: str) -> str:
    """Return the kind of file that a path belongs to: queue, ext or log."""
    table = store.queue_table
    if path.startswith(f"{table.path}/"):
        return "queue"
    return "ext" if path.startswith(f"{table.ext_path}/") else "log"
