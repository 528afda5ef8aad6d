"""Settings of a store: MessageStoreConfig with the defaults of 4.9.3, read from a broker.conf."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyrocketstore.config.dledger import with_dledger_log
from pyrocketstore.config.file_sizes import (
    INDEX_NAMES,
    LOG_SIZE,
    log_file_size,
    queue_file_size,
    sizes_beside,
)
from pyrocketstore.config.keys import OTHER_KEYS
from pyrocketstore.config.properties_file import PropertyLine, read_properties
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError, StoreTypeError
from pyrocketstore.record.message import LMQ_PREFIX
from pyrocketstore.system.env import Env
from pyrocketstore.system.signal_shield import imported

CQ_STORE_UNIT_SIZE = 20
DEFAULT_LISTEN_PORT = 10911
MULTI_PATH_SPLITTER = ","

LIGHT_QUEUE_SETTINGS = ("enable_lmq", "enable_multi_dispatch")


class FlushDiskType(enum.Enum):
    """The flush mode of puts. Source: RocketMQ 4.9.3 FlushDiskType."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(enum.Enum):
    """The role of a store among its replicas. Source: RocketMQ 4.9.3 BrokerRole."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


_PATH_KINDS = (bytes, os.PathLike)

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_LONG_NAMES = frozenset(
    """
    flush_delay_offset_interval os_page_cache_busy_time_out_mills max_outstanding_put_bytes
    max_unforced_bytes max_key_search_bytes retention_bytes retention_free_bytes
    filter_data_clean_time_span transaction_check_interval transaction_time_out
    """.split()
)
_PATH_NAMES = (
    "store_path_root_dir",
    "store_path_commit_log",
    "read_only_commit_log_store_paths",
)
#: Smallest entry count of an index file: 4.9.3 leaves the first entry empty.
INDEX_NUM_MIN = 2
_POSITIVE_NAMES = tuple(
    """
    mapped_file_size_commit_log mapped_file_size_consume_queue
    mapped_file_size_consume_queue_ext max_hash_slot_num max_index_num max_message_size
    max_outstanding_puts max_outstanding_put_bytes clean_resource_interval
    transaction_check_interval expect_consumer_num_use_filter
    """.split()
)
CLEANING_NAMES = frozenset({"file_reserved_time", "disk_max_used_space_ratio"})
#: 0: no limit.
_LIMIT_NAMES = ("retention_bytes", "retention_free_bytes")


def _default_root() -> str:
    return str(Path.home() / "store")


# Without generated __repr__ and __eq__: making them takes 1.3 ms, a part of each import.
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class MessageStoreConfig:
    """Every key of 4.9.3's MessageStoreConfig in snake_case, with its default.

    Parameters
    ----------
    Units: sizes are bytes; `*_interval`, `*_timeout` and `*_mills` milliseconds; `*_pages` pages of
    4 KiB; `file_reserved_time` hours; `*_ratio` percent.

    disk_max_used_space_ratio : limited to 10..95
    mapped_file_size_consume_queue : rounded up to whole units of 20 bytes
    store_path_commit_log : None is `commitlog` below the root; commas separate several paths
    read_only_commit_log_store_paths : used only with several commit log paths
    broker_ip1, listen_port : keys of a broker.conf that make up the store host
    transaction_time_out : ms; a transaction is not checked for so long after its birth
    transaction_check_interval : ms between two rounds of checks
    transaction_check_max : a transaction that so many checks did not decide is discarded
    enable_calc_filter_bit_map : with `enable_consume_queue_ext`, ext units have bit maps of the
        registered filters
    expect_consumer_num_use_filter, max_error_rate_of_bloom_filter : number of filters for which the
        bit maps are made, and percent of other filters that they may hit then
    filter_data_clean_time_span : ms after which the filter of a group without members is removed
    given : the names of the settings that were set explicitly; filled in by the constructor
    source_path : the broker.conf that the settings were read from, or None

    Settings that 4.9.3 does not have:

    max_outstanding_puts, max_outstanding_put_bytes : limits of the puts under SYNC_FLUSH whose
        futures are not done
    max_unforced_bytes : limit of the bytes that are put and not flushed under ASYNC_FLUSH; 0: none
    max_key_search_bytes : limit of the log bytes without index entries that a key search scans
    retention_age : datetime.timedelta, or a number of seconds; files of the log whose newest
        message is older are deleted; None: none are
    retention_bytes : while all files of the log are longer together, the oldest is deleted; 0: none
    retention_free_bytes : while a disk of the log has less room, the oldest file of the log is
        deleted; 0: none
    stall_warning_mills : a longer operation is logged; 0: none is
    sync_flush_by_service : under SYNC_FLUSH, flush in the service thread alone
    syncfs_least_files : least number of dirty queue files for which a flush calls syncfs; 0: never
    write_without_mmap : write log and queues by pwrite

    Raises
    ------
    StoreFormatError
        A value of the wrong type, out of Java's range, or a size that is not positive.

    Source: RocketMQ 4.9.3 MessageStoreConfig.
    Differs: 4.9.3 keeps `storePathCommitLog` at ~/store/commitlog whatever the root is.
    """

    # Paths
    store_path_root_dir: str = dataclasses.field(default_factory=_default_root)
    store_path_commit_log: str | None = None
    read_only_commit_log_store_paths: str | None = None

    # Files
    mapped_file_size_commit_log: int = LOG_SIZE
    mapped_file_size_consume_queue: int = 300_000 * CQ_STORE_UNIT_SIZE
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 << 20
    bit_map_length_consume_queue_ext: int = 64
    max_message_size: int = 4 << 20
    check_crc_on_recover: bool = True

    # Put
    use_reentrant_lock_when_put_message: bool = True
    os_page_cache_busy_time_out_mills: int = 1000
    put_msg_index_hight_water: int = 600_000
    debug_lock_enable: bool = False
    duplication_enable: bool = False

    # Flush and commit
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: int = 5000
    flush_interval_commit_log: int = 500
    flush_commit_log_timed: bool = True
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = 4096
    #: The service thread makes every flush, so that a put times out even if the device hangs.
    sync_flush_by_service: bool = False
    #: From so many dirty queue files on, syncfs flushes them all; 0: never.
    syncfs_least_files: int = 64
    #: Log and queues are written by pwrite: a failing device then causes an error, not a SIGBUS.
    write_without_mmap: bool = False

    # Cleaning
    clean_resource_interval: int = 10_000
    delete_commit_log_files_interval: int = 100
    delete_consume_queue_files_interval: int = 100
    destroy_maped_file_interval_forcibly: int = 120_000
    redelete_hanged_file_interval: int = 120_000
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    file_reserved_time: int = 72
    clean_file_forcibly_enable: bool = True

    # Retention by rules that 4.9.3 does not have
    retention_age: datetime.timedelta | None = None
    retention_bytes: int = 0
    retention_free_bytes: int = 0

    # Pull
    max_transfer_bytes_on_message_in_memory: int = 256 << 10
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    disk_fall_recorded: bool = True
    offset_check_in_slave: bool = False

    # Index
    message_index_enable: bool = True
    message_index_safe: bool = False
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32

    # Replicas
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    slave_timeout: int = 3000
    ha_listen_port: int = 10912
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000
    ha_transfer_batch_size: int = 32 << 10
    ha_master_address: str | None = None
    ha_slave_fallbehind_max: int = 256 << 20
    enable_dleger_commit_log: bool = False
    dleger_group: str | None = None
    dleger_peers: str | None = None
    dleger_self_id: str | None = None
    preferred_leader_id: str | None = None
    enable_batch_push: bool = False

    # Delayed messages and queues of light consumers
    message_delay_level: str = DELAY_LEVELS
    flush_delay_offset_interval: int = 10_000
    enable_schedule_message_stats: bool = True
    enable_schedule_async_deliver: bool = False
    schedule_async_deliver_max_pending_limit: int = 2000
    schedule_async_deliver_max_resend_num2_blocked: int = 3
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000

    # Limits and warnings that 4.9.3 does not have
    max_outstanding_puts: int = 10_000
    max_outstanding_put_bytes: int = 64 << 20
    max_unforced_bytes: int = 0
    max_key_search_bytes: int = 1 << 30
    stall_warning_mills: int = 1000

    # Keys of 4.9.3's other classes that the store needs
    transaction_time_out: int = 6000
    transaction_check_interval: int = 60_000
    transaction_check_max: int = 15
    enable_calc_filter_bit_map: bool = False
    expect_consumer_num_use_filter: int = 32
    max_error_rate_of_bloom_filter: int = 20
    filter_data_clean_time_span: int = 24 * 3600 * 1000
    broker_ip1: str | None = None
    listen_port: int = DEFAULT_LISTEN_PORT

    given: frozenset[str] = frozenset()
    source_path: str | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen for everyone else
        changed = set()
        for name, given in list(self.__dict__.items()):
            # An opening makes several of these; nearly all values are the checked defaults.
            if name not in _KINDS or (name in _DEFAULTS and given is _DEFAULTS[name]):
                continue
            value = _checked(name, _KINDS[name], given)
            set_field(self, name, value)
            if name in _DEFAULTS and value != _DEFAULTS[name]:
                changed.add(name)
        for name in _POSITIVE_NAMES:
            if getattr(self, name) <= 0:
                raise StoreFormatError(f"{name}={getattr(self, name)}: must be positive")
        for name in _LIMIT_NAMES:
            if getattr(self, name) < 0:
                raise StoreFormatError(
                    f"{name}={getattr(self, name)}: must be 0, for no limit, or positive"
                )
        if self.syncfs_least_files < 0:
            raise StoreFormatError(
                f"syncfs_least_files={self.syncfs_least_files}: must be 0, for never, or positive"
            )
        if self.max_index_num < INDEX_NUM_MIN:
            raise StoreFormatError(
                f"max_index_num={self.max_index_num}: must be at least {INDEX_NUM_MIN}: the first "
                "entry of an index file holds no key"
            )
        if not 1 <= self.max_error_rate_of_bloom_filter < 100:
            raise StoreFormatError(
                f"max_error_rate_of_bloom_filter={self.max_error_rate_of_bloom_filter}: must be 1"
                " to 99 percent"
            )
        units = -(-self.mapped_file_size_consume_queue // CQ_STORE_UNIT_SIZE)
        set_field(self, "mapped_file_size_consume_queue", units * CQ_STORE_UNIT_SIZE)
        ratio = min(max(self.disk_max_used_space_ratio, 10), 95)
        set_field(self, "disk_max_used_space_ratio", ratio)
        set_field(self, "given", frozenset(self.given | changed))

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in _KINDS)
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        """The values of all settings, without `given` and `source_path`."""
        return tuple(getattr(self, name) for name in _KINDS)

    def with_dledger_log(self, env: Env, root: str) -> MessageStoreConfig:
        """Return the settings for reading the store in `root`: if it has a DLedger log, with that
        among the paths of the log. Raises StoreFormatError: it has several.
        """
        paths = self.all_commit_log_paths
        found = with_dledger_log(env, root, paths, self.dleger_self_id)
        if found == paths:
            return self
        return dataclasses.replace(self, store_path_commit_log=MULTI_PATH_SPLITTER.join(found))

    @property
    def commit_log_path(self) -> str:
        """Directory of the commit log; the first one if there are several."""
        return self.commit_log_paths[0]

    @property
    def commit_log_paths(self) -> tuple[str, ...]:
        """Directories in which commit log files are made, each once.

        They are those of `store_path_commit_log`, else `commitlog` in the root.
        """
        given = _split_paths(self.store_path_commit_log)
        return given or (str(Path(self.store_path_root_dir) / "commitlog"),)

    @property
    def read_only_commit_log_paths(self) -> tuple[str, ...]:
        """Directories whose commit log files are read, and in which none is made.

        Without several commit log paths there are none.

        Source: RocketMQ 4.9.3 MultiPathMappedFileQueue.
        """
        if not self.is_multi_path:
            return ()
        return _split_paths(self.read_only_commit_log_store_paths)

    @property
    def all_commit_log_paths(self) -> tuple[str, ...]:
        """All directories of the commit log, including the read-only ones."""
        return (*self.commit_log_paths, *self.read_only_commit_log_paths)

    @property
    def named_directories(self) -> tuple[str, ...]:
        """The directories that were named explicitly, and may therefore be symbolic links."""
        if "store_path_commit_log" not in self.given:
            return (self.store_path_root_dir,)
        return (self.store_path_root_dir, *self.all_commit_log_paths)

    @property
    def is_multi_path(self) -> bool:
        """True if the commit log is in several directories."""
        return MULTI_PATH_SPLITTER in (self.store_path_commit_log or "")

    @property
    def store_host(self) -> str:
        """`brokerIP1:listenPort`, the store host in the records that the broker writes."""
        host = self.broker_ip1 or "127.0.0.1"
        return f"[{host}]:{self.listen_port}" if ":" in host else f"{host}:{self.listen_port}"

    @property
    def enables_cleaning(self) -> bool:
        """True if `Store` deletes expired files as 4.9.3 does.

        It does if a retention time or a disk ratio was set, or if the settings are a broker's.
        """
        return self.source_path is not None or not self.given.isdisjoint(CLEANING_NAMES)

    @property
    def enables_retention(self) -> bool:
        """True if one of `retention_age`, `retention_bytes` and `retention_free_bytes` is set."""
        limits = (self.retention_bytes, self.retention_free_bytes)
        return self.retention_age is not None or any(limits)

    @property
    def is_sync_flush(self) -> bool:
        """True if a put waits until it is on the device."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def is_transient_store_pool_enable(self) -> bool:
        """True if the pool is used: enabled, under ASYNC_FLUSH, and not on a slave."""
        return (
            self.transient_store_pool_enable
            and not self.is_sync_flush
            and self.broker_role is not BrokerRole.SLAVE
        )

    def replace(self, **settings: Any) -> MessageStoreConfig:
        """Return a copy with some settings changed; these count as set explicitly.

        Raises
        ------
        StoreFormatError
            An unknown name (the message suggests the nearest one), or an invalid value.
        """
        for name in settings:
            if name not in _KINDS:
                raise StoreFormatError(f"{name}: unknown setting{_nearest(name)}")
        given = self.given | settings.keys()
        return dataclasses.replace(self, **settings, given=given)

    def at_root(self, root: str | Path) -> MessageStoreConfig:
        """Return a copy for a store in `root`, which may differ from the configured root.

        A single commit log path below the old root becomes `root/commitlog`, unless it is below
        `root` too. Several paths keep their path relative to the root. A path outside of the old
        root does not change.
        """
        root = _path_text(root, "root")
        log_path, read_only = self.store_path_commit_log, self.read_only_commit_log_store_paths
        if self.is_multi_path:
            log_path = _moved_paths(log_path, self.store_path_root_dir, root)
            read_only = _moved_paths(read_only, self.store_path_root_dir, root)
        elif (
            log_path is not None
            and _is_below(log_path, self.store_path_root_dir)
            and not _is_below(log_path, root)
        ):
            log_path = None
        return dataclasses.replace(
            self,
            store_path_root_dir=root,
            store_path_commit_log=log_path,
            read_only_commit_log_store_paths=read_only,
        )

    def absolute(self) -> MessageStoreConfig:
        """Return a copy with absolute paths, which a later chdir does not affect.

        Raises StoreFormatError for a path that is empty or cannot be made absolute.
        """
        paths: dict[str, Any] = {}
        for name in _PATH_NAMES:
            value = getattr(self, name)
            if name == "store_path_root_dir":
                paths[name] = absolute_path(value, name)
            elif value is not None:
                parts = [absolute_path(part, name) for part in _split_paths(value)]
                if any(MULTI_PATH_SPLITTER in part for part in parts):
                    raise StoreFormatError(
                        f"{name}={shown(value)}: relative to a directory with a comma in its name;"
                        " change to another directory, or give an absolute path"
                    )
                # A splitter at the end marks a list of one path.
                last = MULTI_PATH_SPLITTER if MULTI_PATH_SPLITTER in value else ""
                paths[name] = MULTI_PATH_SPLITTER.join(parts) + last * (len(parts) == 1)
        if all(getattr(self, name) == value for name, value in paths.items()):
            return self
        return dataclasses.replace(self, **paths)

    @classmethod
    def from_broker_conf(
        cls, path: str | Path, *, strict: bool = False, root: str | Path | None = None
    ) -> tuple[MessageStoreConfig, list[str]]:
        """Read the settings of a broker.conf as 4.9.3's broker reads it.

        Parameters
        ----------
        path : the file, in Java's properties syntax
        strict : True turns warnings into an error
        root : directory of the store if it is not the file's `storePathRootDir`; see `at_root`

        Returns
        -------
        (config, warnings) : warnings name the file and the line

        Raises
        ------
        StoreFormatError
            A file that 4.9.3 cannot read either; with `strict`, an unknown key or invalid value.
        StoreIOError
            The file cannot be read, or is not a regular file.

        Source: RocketMQ 4.9.3 BrokerStartup, MixAll#properties2Object.
        Differs: a key that is unknown or has an invalid value is ignored as in 4.9.3, but with a
        warning.
        """
        path = _path_text(path, "path")
        lines = read_properties(Env().read_file(path), path)
        settings: dict[str, Any] = {}
        warnings: list[str] = []
        for key, line in lines.items():
            where = f"{path}:{line.number}: {key}"
            name = _SNAKE_NAMES.get(key)
            if name is None:
                if key not in OTHER_KEYS:
                    warnings.append(f"{where}: unknown key, ignored{_nearest(key, java=True)}")
                continue
            try:
                settings[name] = parse_java_value(_KINDS[name], line.value, name in _LONG_NAMES)
            except ValueError as error:
                warnings.append(f"{where}={line.value!r}: {error}, the default is used")
                continue
            if _KINDS[name] is bool and line.value.lower() not in {"true", "false"}:
                warnings.append(f"{where}={line.value!r}: neither true nor false, read as false")
        _set_ha_port(settings, lines, path, warnings)
        if strict and warnings:
            raise StoreFormatError("; ".join(warnings))
        try:
            config = cls(**settings, given=frozenset(settings), source_path=path)
        except StoreFormatError as error:
            raise StoreFormatError(f"{path}: {error}") from None
        return (config if root is None else config.at_root(root)), warnings


def _set_ha_port(
    settings: dict[str, Any], lines: dict[str, PropertyLine], path: str, warnings: list[str]
) -> None:
    """Set haListenPort to listenPort + 1, as the broker does whatever the file contains."""
    port = settings.get("listen_port", DEFAULT_LISTEN_PORT) + 1
    if settings.get("ha_listen_port", port) != port:
        line = lines["haListenPort"]
        warnings.append(f"{path}:{line.number}: haListenPort: the broker uses {port}")
    settings["ha_listen_port"] = port


def _kinds() -> dict[str, Any]:
    """Return name -> int, bool, str, "str?" and "age?" (may be None) or an enum, from the
    annotations."""
    kinds: dict[str, Any] = {
        "int": int,
        "bool": bool,
        "str": str,
        "str | None": "str?",
        "datetime.timedelta | None": "age?",
        "FlushDiskType": FlushDiskType,
        "BrokerRole": BrokerRole,
    }
    fields = dataclasses.fields(MessageStoreConfig)
    return {f.name: kinds[str(f.type)] for f in fields if f.name not in {"given", "source_path"}}


_KINDS: dict[str, Any] = _kinds()
_DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for field in dataclasses.fields(MessageStoreConfig)
    if field.default is not dataclasses.MISSING
}
_JAVA_NAMES = {
    "check_crc_on_recover": "checkCRCOnRecover",
    "enable_dleger_commit_log": "enableDLegerCommitLog",
    "dleger_group": "dLegerGroup",
    "dleger_peers": "dLegerPeers",
    "dleger_self_id": "dLegerSelfId",
    "broker_ip1": "brokerIP1",
}


def java_name(name: str) -> str:
    """Return the key of a broker.conf for a setting: `max_index_num` -> `maxIndexNum`."""
    if name in _JAVA_NAMES:
        return _JAVA_NAMES[name]
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_SNAKE_NAMES = {java_name(name): name for name in _KINDS}


def parse_java_value(kind: Any, text: str, is_long: bool = False) -> Any:
    """Parse a value as Java does for its setters: parseInt, parseLong, parseBoolean, valueOf.

    Raises
    ------
    ValueError
        Text that Java refuses (blanks, underscores, hexadecimal, out of range).
    """
    if kind is bool:
        return text.lower() == "true"
    if kind is int or kind == "age?":
        if not re.fullmatch(r"[+-]?\d+", text):
            raise ValueError("not a number")
        bits = 63 if is_long else 31
        value = int(text)
        if not -(1 << bits) <= value < 1 << bits:
            raise ValueError(f"out of range of {bits + 1} bits")
        return value
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if text not in kind.__members__:
            raise ValueError(f"not one of {', '.join(kind.__members__)}")
        return kind[text]
    return text


def _checked(name: str, kind: Any, value: Any) -> Any:
    """Return the value of a setting, checked; an enum may be given by name."""
    if kind in {"str?", "age?"} and value is None:
        return None
    if kind == "age?":
        return _age(name, value)
    given = type(value)
    if kind is str or kind == "str?":
        if issubclass(given, Path) or (name in _PATH_NAMES and issubclass(given, _PATH_KINDS)):
            value = os.fsdecode(value)
        if name in _PATH_NAMES and issubclass(type(value), str) and "\0" in value:
            raise StoreFormatError(f"{name}={shown(value)}: a path cannot hold a NUL character")
        wanted: type = str
    elif kind in {int, bool}:
        wanted = kind
    else:
        if issubclass(given, str) and value in kind.__members__:
            return kind[value]
        wanted = kind
    if not issubclass(type(value), wanted) or (kind is int and isinstance(value, bool)):
        raise StoreFormatError(f"{name}={shown(value)}: must be {_describe(kind)}")
    if kind is int and isinstance(value, int):
        bits = 63 if name in _LONG_NAMES else 31
        if not -(1 << bits) <= value < 1 << bits:
            raise StoreFormatError(f"{name}={shown(value)}: out of range of {bits + 1} bits")
    return value


def _age(name: str, value: Any) -> datetime.timedelta:
    """Return an age, which may be given as a number of seconds."""
    given = type(value)
    try:
        if issubclass(given, (int, float)) and given is not bool:
            value = datetime.timedelta(seconds=value)
        if issubclass(type(value), datetime.timedelta):
            age: datetime.timedelta = value
            if age >= datetime.timedelta(milliseconds=1):
                return age
    except (ValueError, OverflowError):
        pass  # a number that is not a duration
    raise StoreFormatError(
        f"{name}={shown(value)}: must be a datetime.timedelta or a number of seconds, of at least "
        "a millisecond, or None"
    )


def _describe(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(kind.__members__)
    return {int: "an integer", bool: "True or False", str: "a str"}.get(kind, "a str or None")


def _nearest(name: str, *, java: bool = False) -> str:
    """Return "; the nearest is X" if a similar name exists, else an empty text."""
    if not java and name in _SNAKE_NAMES:
        return f"; the nearest is {_SNAKE_NAMES[name]}"
    known = sorted({*_SNAKE_NAMES, *OTHER_KEYS} if java else _KINDS)
    near = imported("difflib").get_close_matches(name, known, n=1)
    return f"; the nearest is {near[0]}" if near else ""


def _path_text(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], name: str) -> str:
    """Return a path as text. Raises StoreTypeError, which names the setting `name`."""
    try:
        return str.__str__(os.fsdecode(path))  # the characters of a subclass, as an enum's member
    except TypeError:
        kind = type(path).__name__
        raise StoreTypeError(f"{name} must be a str or another path, not {kind}") from None


def absolute_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], name: str) -> str:
    """Make a path absolute without a change to `..` and symbolic links.

    Raises StoreTypeError for a value that is not a path, and StoreFormatError for a path that is
    empty, contains a NUL or is relative to a deleted working directory. Both name the setting
    `name`.
    """
    text = _path_text(path, name)
    if not text:
        raise StoreFormatError(f"{name}: the path is empty; '.' is the working directory")
    if "\0" in text:
        raise StoreFormatError(f"{name}={shown(text)}: a path cannot hold a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise StoreFormatError(
            f"{name}={shown(text)}: not a path in this locale's encoding"
        ) from None
    try:
        return str(Path(text).absolute())
    except FileNotFoundError:
        raise StoreFormatError(
            f"{name}={shown(text)}: relative to a working directory that was deleted"
        ) from None


def _is_below(path: str, root: str) -> bool:
    """Return True if `path` is `root` or below it, by a comparison of the texts alone."""
    return Path(path).absolute().is_relative_to(Path(root).absolute())


def _split_paths(text: str | None) -> tuple[str, ...]:
    """Return the directories in a setting as written, each once, without empty ones."""
    named: dict[str, str] = {}
    for part in map(str.strip, (text or "").split(MULTI_PATH_SPLITTER)):
        if part:
            named.setdefault(part.rstrip("/"), part)
    return tuple(named.values())


def _moved_paths(text: str | None, old_root: str, root: str | Path) -> str | None:
    """Move the paths below the old root to the same relative path below the new one."""
    if text is None:
        return None
    base = Path(old_root).absolute()
    moved = [
        str(Path(root) / Path(path).absolute().relative_to(base))
        if _is_below(path, old_root)
        else path
        for path in _split_paths(text)
    ]
    return MULTI_PATH_SPLITTER.join(moved)


def _has_light_queues(env: Env, root: str) -> bool:
    """Return True if a light queue has a directory; its queue id is always 0."""
    directory = f"{root}/consumequeue"
    topics = (name for name in env.listdir(directory) if name.startswith(LMQ_PREFIX))
    return any(env.is_dir(f"{directory}/{topic}/0") for topic in topics)


def detect_sizes(
    env: Env,
    root: str,
    config: MessageStoreConfig,
    given: frozenset[str] | None = None,
    *,
    read_only: bool = False,
) -> MessageStoreConfig:
    """Return `config` with the file sizes that were not set derived from the existing files.

    The function reads directory listings and sizes, and the record sizes of a log of one file. If
    the files of the log have the length of a preset, its sizes are those that no other file shows.
    IndexService infers those of the index. If a light queue has a directory and no setting about
    light queues was given, light queues are enabled; otherwise a recovery would omit their units
    that were lost in a kill.

    Parameters
    ----------
    root : directory of the store
    given : names of settings that stay unchanged; None for `config.given`
    read_only : bool, the store is not written to: a log of one truncated file is accepted, and a
        DLedger log

    Raises StoreFormatError: several DLedger logs. StoreCorruptionError if the size of log files is
    not set and no file shows it.
    """
    if given is None:
        given = config.given
    if read_only:
        config = config.with_dledger_log(env, root)
    logs = config.all_commit_log_paths
    log = "mapped_file_size_commit_log"
    queue, ext = "mapped_file_size_consume_queue", "mapped_file_size_consume_queue_ext"
    default = MessageStoreConfig()
    detectors: dict[str, Callable[[], int | None]] = {
        log: lambda: log_file_size(
            env, *logs, assumed=config.mapped_file_size_commit_log if read_only else None
        ),
        queue: lambda: queue_file_size(
            env, f"{root}/consumequeue", logs, CQ_STORE_UNIT_SIZE, getattr(default, queue)
        ),
        ext: lambda: queue_file_size(
            env, f"{root}/consumequeue_ext", logs, 1, getattr(default, ext)
        ),
    }
    found: dict[str, Any] = {}
    for name, detect in detectors.items():
        size = None if name in given else detect()
        if size is not None and size < 1 << 31:
            found[name] = size
    for name, size in sizes_beside(found.get(log)).items():
        if name not in given and name not in INDEX_NAMES:
            found.setdefault(name, size)
    if given.isdisjoint(LIGHT_QUEUE_SETTINGS) and _has_light_queues(env, root):
        found |= dict.fromkeys(LIGHT_QUEUE_SETTINGS, True)
    return dataclasses.replace(config, **found, given=given) if found else config
