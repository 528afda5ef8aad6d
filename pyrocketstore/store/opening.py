"""The opening of a store: its settings, and the notices to its owner."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrocketstore.arguments.scalars import check_kind
from pyrocketstore.config.message_store_config import (
    MessageStoreConfig,
    absolute_path,
    detect_sizes,
)
from pyrocketstore.display import logger, shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError
from pyrocketstore.message_store.loaded_files import LoadedFiles
from pyrocketstore.message_store.lost_ends import lost_end
from pyrocketstore.recovery.recovery_plan import RecoveryPlan
from pyrocketstore.store.presets import with_preset
from pyrocketstore.system.env import Env

if TYPE_CHECKING:
    from pyrocketstore.store.replication import Master
    from pyrocketstore.store.settings import AnyPath, StoreSettings
    from pyrocketstore.store.transactions import TransactionCheck

LOG = logger(__name__)

#: So many mismatched files are named when a store is opened.
MISMATCHED_MAX = 5
PORT_MAX = 65535


class Opening(NamedTuple):
    """The checked arguments of `open`; `notices` are warned of once the store is open.

    `base` has the settings of the caller, and `config` also the sizes of the files.
    """

    env: Env
    base: MessageStoreConfig
    config: MessageStoreConfig
    read_only: bool
    store_host: str | None
    unique_key: bool
    topics_json: bool
    notices: list[str]
    transaction_check: TransactionCheck | None
    master: Master | None


def base_settings(
    root: str,
    config: MessageStoreConfig | AnyPath | None,
    strict: bool,
    settings: StoreSettings,
    notices: list[str],
) -> MessageStoreConfig:
    """Return the settings that the caller has given for a store in `root`, or a broker.conf has.

    Adds a notice for each line of a broker.conf that has no effect. Raises StoreFormatError.
    """
    other = settings.get("store_path_root_dir")
    if other is not None and absolute_path(other, "store_path_root_dir") != root:
        raise StoreFormatError(
            f"store_path_root_dir is {shown(other)}, and the path of the store {root!r}: leave the"
            " setting out"
        )
    if config is None:
        base = MessageStoreConfig().at_root(root)
    elif isinstance(config, MessageStoreConfig):
        check_kind("config", config, MessageStoreConfig)
        base = config.at_root(root)
    else:
        path = Path(absolute_path(config, "config"))
        base, notes = MessageStoreConfig.from_broker_conf(path, strict=strict, root=root)
        notices += notes
    return (base.replace(**settings) if settings else base).absolute()


def store_host_of(config: MessageStoreConfig, *, read_only: bool) -> str:
    """Return `brokerIP1:listenPort` of the settings, the store host of records that are written.

    A store that is open read-only needs none. Raises StoreFormatError.
    """
    address, port = config.broker_ip1 or "127.0.0.1", config.listen_port
    try:
        ipaddress.ip_address(address)
        if 0 <= port <= PORT_MAX:
            return config.store_host
    except ValueError:
        pass
    if read_only:
        return MessageStoreConfig().store_host
    raise StoreFormatError(
        f"brokerIP1 {shown(address)}, listenPort {port}: records have an IP address and a port of 0"
        f" to {PORT_MAX} as their store host: change these settings, or give store_host"
    )


def check_of(value: Any, *, read_only: bool) -> TransactionCheck | None:
    """Return the argument `transaction_check`. Raises StoreTypeError, StoreFormatError."""
    if value is None:
        return None
    if not callable(value):
        raise StoreTypeError(f"transaction_check is {shown(value)}: must be a callable or None")
    if read_only:
        raise StoreFormatError("transaction_check: a store that is open read-only decides nothing")
    found: TransactionCheck = value
    return found


def with_sizes(
    env: Env, base: MessageStoreConfig, read_only: bool, preset: str | None = None
) -> MessageStoreConfig:
    """Return settings with the sizes of the files that exist, and those of a preset for others.

    A store that is opened read-only makes no file, so that a preset has no effect.
    Raises StoreCorruptionError, StoreIOError.
    """
    root, given = base.store_path_root_dir, base.given
    if preset is not None and not read_only:
        base = with_preset(env, root, base, preset)
    return detect_sizes(env, root, base, given, read_only=read_only)


def forget_notices(files: LoadedFiles, given: list[str]) -> None:
    """Drop warnings that the caller has got from the file `lost_messages` of a writable store.

    Raises StoreIOError.
    """
    files.changes.add(partial(files.loss_notices.forget, given))


def notices_of(files: LoadedFiles, plan: RecoveryPlan) -> Iterator[str]:
    """Damage that the opening found, one text for each warning."""
    yield from plan.loss_notices
    if files.unmade is not None and plan.broken:
        yield plan.early_end
    yield from plan.damage_notices
    committed = files.commit_log.committed_end
    if committed is not None and plan.log_end < committed:
        yield (
            f"{files.root}: the log ends at byte {plan.log_end}, though the entries before byte"
            f" {committed} are committed: files of the log are missing or damaged"
        )
    lost = lost_end(files, files.unmade, plan.beyond)
    if lost is not None:
        LOG.warning(
            "%s; these messages are missing: restore the files from a copy, before the store is"
            " opened for writing, which removes their units",
            lost,
        )
    log_paths = files.config.all_commit_log_paths
    for path, reason in plan.mismatched[:MISMATCHED_MAX]:
        if os.path.dirname(path) in log_paths:
            yield f"{path}: {reason}; this part of the log is read as far as the file goes"
        else:
            built = f"were built{files.changes.where} from the log"
            yield f"{path}: {reason}; the units that it lacks {built}"
    if len(plan.mismatched) > MISMATCHED_MAX:
        yield f"{len(plan.mismatched) - MISMATCHED_MAX} more files have a wrong length or name"
