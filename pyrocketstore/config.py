"""Settings of a store: 4.9.3's MessageStoreConfig with its defaults, and its broker.conf."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyrocketstore.config_keys import OTHER_KEYS
from pyrocketstore.display import shown
from pyrocketstore.env import Env
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.file_sizes import DirectoryReader, log_file_size, queue_file_size
from pyrocketstore.message import LMQ_PREFIX
from pyrocketstore.properties_file import PropertyLine, read_properties

CQ_STORE_UNIT_SIZE = 20
DEFAULT_LISTEN_PORT = 10911
MULTI_PATH_SPLITTER = ","

LIGHT_QUEUE_SETTINGS = ("enable_lmq", "enable_multi_dispatch")


class FlushDiskType(enum.Enum):
    """When a put is forced to the device. Source: RocketMQ 4.9.3 FlushDiskType."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(enum.Enum):
    """What a store is among its replicas. Source: RocketMQ 4.9.3 BrokerRole."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


_PATH_KINDS = (bytes, os.PathLike)

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_LONG_NAMES = frozenset(
    {
        "flush_delay_offset_interval",
        "os_page_cache_busy_time_out_mills",
        "max_outstanding_put_bytes",
        "max_unforced_bytes",
        "max_key_search_bytes",
    }
)
_PATH_NAMES = (
    "store_path_root_dir",
    "store_path_commit_log",
    "read_only_commit_log_store_paths",
)
#: Of an index file, whose first entry 4.9.3 leaves empty.
INDEX_NUM_MIN = 2
_POSITIVE_NAMES = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "mapped_file_size_consume_queue_ext",
    "max_hash_slot_num",
    "max_index_num",
    "max_message_size",
    "max_outstanding_puts",
    "max_outstanding_put_bytes",
)
CLEANING_NAMES = frozenset({"file_reserved_time", "disk_max_used_space_ratio"})
#: Fields that are ours and not keys of MessageStoreConfig.
_OWN_NAMES = frozenset(
    {
        "broker_ip1",
        "listen_port",
        "given",
        "source_path",
        "max_outstanding_puts",
        "max_outstanding_put_bytes",
        "max_unforced_bytes",
        "max_key_search_bytes",
        "stall_warning_mills",
        "write_without_mmap",
        "sync_flush_by_service",
    }
)


def _default_root() -> str:
    return str(Path.home() / "store")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageStoreConfig:
    """Every key of 4.9.3's MessageStoreConfig in snake_case, with its default.

    Parameters
    ----------
    Sizes are bytes, `*_interval`, `*_timeout` and `*_mills` milliseconds, `*_pages` pages of 4 KiB,
    `file_reserved_time` hours, `*_ratio` percent. `disk_max_used_space_ratio` is held within
    10..95 and `mapped_file_size_consume_queue` rounded up to whole units of 20 bytes.
    `store_path_commit_log=None` is `commitlog` below the root; with commas it names several paths,
    and only then `read_only_commit_log_store_paths` is looked at. `broker_ip1` and `listen_port`
    are keys of a broker.conf that make the store host. `given` names what was set by someone and
    `source_path` is the broker.conf it came from; both fill themselves.

    Ours are `max_outstanding_puts` and `max_outstanding_put_bytes`: puts under SYNC_FLUSH whose
    flush is awaited by futures; `max_unforced_bytes`: what may be put and not forced under
    ASYNC_FLUSH (0: any); `stall_warning_mills`: what takes longer is logged (0: nothing is);
    `max_key_search_bytes`: how much of a log that the index does not cover is searched for keys.

    Raises
    ------
    StoreFormatError
        A value of the wrong type, out of Java's range, or a size that is not positive.

    Source: RocketMQ 4.9.3 MessageStoreConfig.
    Differs: 4.9.3 keeps `storePathCommitLog` at ~/store/commitlog wherever the root is.
    """

    # Paths
    store_path_root_dir: str = dataclasses.field(default_factory=_default_root)
    store_path_commit_log: str | None = None
    read_only_commit_log_store_paths: str | None = None

    # Files
    mapped_file_size_commit_log: int = 1 << 30
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
    #: no put forces for itself, so that each gives up in time when the device hangs
    sync_flush_by_service: bool = False
    #: log and queues are written by pwrite, so that a failing device is an error and no signal
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

    # Ours: what may be outstanding, and what is logged
    max_outstanding_puts: int = 10_000
    max_outstanding_put_bytes: int = 64 << 20
    max_unforced_bytes: int = 0
    max_key_search_bytes: int = 1 << 30
    stall_warning_mills: int = 1000

    # Keys of 4.9.3's other classes that the store needs
    broker_ip1: str | None = None
    listen_port: int = DEFAULT_LISTEN_PORT

    given: frozenset[str] = dataclasses.field(default=frozenset(), repr=False, compare=False)
    source_path: str | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen for everyone else
        changed = set()
        for name, kind in _KINDS.items():
            value = _checked(name, kind, getattr(self, name))
            set_field(self, name, value)
            if name in _DEFAULTS and value != _DEFAULTS[name]:
                changed.add(name)
        for name in _POSITIVE_NAMES:
            if getattr(self, name) <= 0:
                raise StoreFormatError(f"{name}={getattr(self, name)}: must be positive")
        if self.max_index_num < INDEX_NUM_MIN:
            raise StoreFormatError(
                f"max_index_num={self.max_index_num}: must be at least {INDEX_NUM_MIN}: the first "
                "entry of an index file holds no key"
            )
        units = -(-self.mapped_file_size_consume_queue // CQ_STORE_UNIT_SIZE)
        set_field(self, "mapped_file_size_consume_queue", units * CQ_STORE_UNIT_SIZE)
        ratio = min(max(self.disk_max_used_space_ratio, 10), 95)
        set_field(self, "disk_max_used_space_ratio", ratio)
        set_field(self, "given", frozenset(self.given | changed))

    @property
    def commit_log_path(self) -> str:
        """Directory of the commit log, the first one of several."""
        return self.commit_log_paths[0]

    @property
    def commit_log_paths(self) -> tuple[str, ...]:
        """Directories that get commit log files: those of `store_path_commit_log`, each once, else
        `commitlog` in the root."""
        given = _split_paths(self.store_path_commit_log)
        return given or (str(Path(self.store_path_root_dir) / "commitlog"),)

    @property
    def read_only_commit_log_paths(self) -> tuple[str, ...]:
        """Directories whose commit log files are read and where none is made.

        Source: RocketMQ 4.9.3 MultiPathMappedFileQueue: without several paths there are none.
        """
        if not self.is_multi_path:
            return ()
        return _split_paths(self.read_only_commit_log_store_paths)

    @property
    def all_commit_log_paths(self) -> tuple[str, ...]:
        """Every directory that holds files of the log, those that get none included."""
        return (*self.commit_log_paths, *self.read_only_commit_log_paths)

    @property
    def named_directories(self) -> tuple[str, ...]:
        """The directories that somebody named, which may therefore be symbolic links."""
        if "store_path_commit_log" not in self.given:
            return (self.store_path_root_dir,)
        return (self.store_path_root_dir, *self.all_commit_log_paths)

    @property
    def is_multi_path(self) -> bool:
        """True when the commit log lies in several directories."""
        return MULTI_PATH_SPLITTER in (self.store_path_commit_log or "")

    @property
    def store_host(self) -> str:
        """`brokerIP1:listenPort`, as it stands in the records that the broker writes."""
        host = self.broker_ip1 or "127.0.0.1"
        return f"[{host}]:{self.listen_port}" if ":" in host else f"{host}:{self.listen_port}"

    @property
    def asks_for_cleaning(self) -> bool:
        """True when someone named how long files are kept or how full a disk may be, or the
        settings are a broker's: only then does the face delete anything."""
        return self.source_path is not None or not self.given.isdisjoint(CLEANING_NAMES)

    @property
    def is_sync_flush(self) -> bool:
        """True when a put waits until it is on the device."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def is_transient_store_pool_enable(self) -> bool:
        """True if the pool is used: asked for, ASYNC_FLUSH, and not on a slave."""
        return (
            self.transient_store_pool_enable
            and not self.is_sync_flush
            and self.broker_role is not BrokerRole.SLAVE
        )

    def replace(self, **settings: Any) -> MessageStoreConfig:
        """A copy with some settings changed; they count as given.

        Raises
        ------
        StoreFormatError
            A name that is no setting (the message has the nearest one), or a bad value.
        """
        for name in settings:
            if name not in _KINDS:
                raise StoreFormatError(f"{name}: no such setting{_nearest(name)}")
        given = self.given | settings.keys()
        return dataclasses.replace(self, **settings, given=given)

    def at_root(self, root: str | Path) -> MessageStoreConfig:
        """A copy for a store in `root`, whatever directory these settings were written for.

        A commit log path below the old root becomes `root/commitlog`; of several, each keeps its
        place below the root. One elsewhere stays.
        """
        log_path, read_only = self.store_path_commit_log, self.read_only_commit_log_store_paths
        if self.is_multi_path:
            log_path = _moved_paths(log_path, self.store_path_root_dir, root)
            read_only = _moved_paths(read_only, self.store_path_root_dir, root)
        elif log_path is not None and _is_below(log_path, self.store_path_root_dir):
            log_path = None
        return dataclasses.replace(
            self,
            store_path_root_dir=str(root),
            store_path_commit_log=log_path,
            read_only_commit_log_store_paths=read_only,
        )

    def absolute(self) -> MessageStoreConfig:
        """A copy whose paths begin at the file system's root: a later chdir changes nothing.

        Raises StoreFormatError for a path that is empty or cannot be made absolute.
        """
        paths: dict[str, Any] = {}
        for name in _PATH_NAMES:
            value = getattr(self, name)
            if name == "store_path_root_dir":
                paths[name] = absolute_path(value, name)
            elif value is not None:
                pieces = [absolute_path(piece, name) for piece in _split_paths(value)]
                if any(MULTI_PATH_SPLITTER in piece for piece in pieces):
                    raise StoreFormatError(
                        f"{name}={shown(value)}: relative to a directory with a comma in its name;"
                        " change to another directory, or give an absolute path"
                    )
                # A splitter at the end makes a list of one path.
                last = MULTI_PATH_SPLITTER if MULTI_PATH_SPLITTER in value else ""
                paths[name] = MULTI_PATH_SPLITTER.join(pieces) + last * (len(pieces) == 1)
        if all(getattr(self, name) == value for name, value in paths.items()):
            return self
        return dataclasses.replace(self, **paths)

    @classmethod
    def from_broker_conf(
        cls, path: str | Path, *, strict: bool = False, root: str | Path | None = None
    ) -> tuple[MessageStoreConfig, list[str]]:
        """Settings of a broker.conf, read as 4.9.3's broker reads it.

        Parameters
        ----------
        path : the file, in Java's properties syntax
        strict : True makes an error of what would be a warning
        root : directory of the store if it is not the file's `storePathRootDir`; see `at_root`

        Returns
        -------
        (config, warnings) : warnings name the file and the line

        Raises
        ------
        StoreFormatError
            A file that 4.9.3 could not read either; with `strict`, an unknown key or a bad value.
        StoreIOError
            The file cannot be read, or is not a regular file.

        Source: RocketMQ 4.9.3 BrokerStartup, MixAll#properties2Object.
        Differs: unknown keys and values that do not parse are dropped as in 4.9.3, with a warning.
        """
        lines = read_properties(Env().read_file(str(path)), str(path))
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
                warnings.append(f"{where}={line.value!r}: {error}, the default stays")
                continue
            if _KINDS[name] is bool and line.value.lower() not in {"true", "false"}:
                warnings.append(f"{where}={line.value!r}: neither true nor false, read as false")
        _force_ha_port(settings, lines, str(path), warnings)
        if strict and warnings:
            raise StoreFormatError("; ".join(warnings))
        try:
            config = cls(**settings, given=frozenset(settings), source_path=str(path))
        except StoreFormatError as error:
            raise StoreFormatError(f"{path}: {error}") from None
        return (config if root is None else config.at_root(root)), warnings


def _force_ha_port(
    settings: dict[str, Any], lines: dict[str, PropertyLine], path: str, warnings: list[str]
) -> None:
    """The broker sets haListenPort to listenPort + 1 whatever the file says."""
    forced = settings.get("listen_port", DEFAULT_LISTEN_PORT) + 1
    if settings.get("ha_listen_port", forced) != forced:
        line = lines["haListenPort"]
        warnings.append(f"{path}:{line.number}: haListenPort: the broker uses {forced}")
    settings["ha_listen_port"] = forced


def _kinds() -> dict[str, Any]:
    """Name -> int, bool, str, "str?" (may be None) or an enum, from the annotations."""
    kinds: dict[str, Any] = {
        "int": int,
        "bool": bool,
        "str": str,
        "str | None": "str?",
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
    """The key of a broker.conf for a setting: `max_index_num` -> `maxIndexNum`."""
    if name in _JAVA_NAMES:
        return _JAVA_NAMES[name]
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_SNAKE_NAMES = {java_name(name): name for name in _KINDS}

#: The keys of a broker.conf that are MessageStoreConfig's.
STORE_KEYS = frozenset(key for key, name in _SNAKE_NAMES.items() if name not in _OWN_NAMES)


def snake_name(key: str) -> str | None:
    """The setting for a key of a broker.conf, None if it is none of ours."""
    return _SNAKE_NAMES.get(key)


def parse_java_value(kind: Any, text: str, is_long: bool = False) -> Any:
    """A value as Java's setters take it: parseInt, parseLong, parseBoolean, valueOf.

    Raises
    ------
    ValueError
        Text that Java does not take either (blanks, underscores, hexadecimal, out of range).
    """
    if kind is bool:
        return text.lower() == "true"
    if kind is int:
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
    """`value` if it is what the field takes, enums by name included."""
    if kind == "str?" and value is None:
        return None
    if kind is str or kind == "str?":
        if isinstance(value, Path) or (name in _PATH_NAMES and isinstance(value, _PATH_KINDS)):
            value = os.fsdecode(value)
        if name in _PATH_NAMES and isinstance(value, str) and "\0" in value:
            raise StoreFormatError(f"{name}={shown(value)}: a path cannot hold a NUL character")
        wanted: type = str
    elif kind in {int, bool}:
        wanted = kind
    else:
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        wanted = kind
    if not isinstance(value, wanted) or (kind is int and isinstance(value, bool)):
        raise StoreFormatError(f"{name}={shown(value)}: must be {_describe(kind)}")
    if kind is int and isinstance(value, int):
        bits = 63 if name in _LONG_NAMES else 31
        if not -(1 << bits) <= value < 1 << bits:
            raise StoreFormatError(f"{name}={shown(value)}: out of range of {bits + 1} bits")
    return value


def _describe(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(kind.__members__)
    return {int: "an integer", bool: "True or False", str: "a str"}.get(kind, "a str or None")


def _nearest(name: str, *, java: bool = False) -> str:
    """ "; the nearest is X" if something is near."""
    if not java and name in _SNAKE_NAMES:
        return f"; the nearest is {_SNAKE_NAMES[name]}"
    known = sorted({*_SNAKE_NAMES, *OTHER_KEYS} if java else _KINDS)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; the nearest is {near[0]}" if near else ""


def absolute_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], name: str) -> str:
    """A path from the file system's root on; `..` and symbolic links stay as they are.

    Raises StoreFormatError, with `name`, for an empty path, for one with a NUL, and for a relative
    one when the working directory is gone.
    """
    text = os.fsdecode(path)
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
    """True if `path` is `root` or inside of it, by the text of the two alone."""
    return Path(path).absolute().is_relative_to(Path(root).absolute())


def _split_paths(text: str | None) -> tuple[str, ...]:
    """The directories in a setting, as they are written, each once; empty pieces are none."""
    named: dict[str, str] = {}
    for piece in map(str.strip, (text or "").split(MULTI_PATH_SPLITTER)):
        if piece:
            named.setdefault(piece.rstrip("/"), piece)
    return tuple(named.values())


def _moved_paths(text: str | None, old_root: str, root: str | Path) -> str | None:
    """A list of paths with those below the old root at the same place below the new one."""
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


def _has_light_queues(env: DirectoryReader, root: str) -> bool:
    """Whether there is a directory of a light queue, whose queue id is always 0."""
    directory = f"{root}/consumequeue"
    topics = (name for name in env.listdir(directory) if name.startswith(LMQ_PREFIX))
    return any(env.is_dir(f"{directory}/{topic}/0") for topic in topics)


def detect_sizes(
    env: DirectoryReader,
    root: str,
    config: MessageStoreConfig,
    given: frozenset[str] | None = None,
    *,
    read_only: bool = False,
) -> MessageStoreConfig:
    """`config` with the file sizes that nobody gave taken from the files that exist.

    Reads directory listings and sizes, and of a log of one file its records' lengths. The index has
    no size to learn from: its header does not hold its geometry. Where a light queue has a
    directory, light queues are on unless a setting about them was given: else a recovery would
    leave out the units that a kill took from them.

    Parameters
    ----------
    root : directory of the store
    given : names that were set and stay as they are; None for `config.given`
    read_only : bool, nothing is written: a log of one file that was cut short is read all the same

    Raises StoreCorruptionError where the size of log files is not given and no file shows it.
    """
    if given is None:
        given = config.given
    logs = config.all_commit_log_paths
    queue, ext = "mapped_file_size_consume_queue", "mapped_file_size_consume_queue_ext"
    default = MessageStoreConfig()
    places: dict[str, Callable[[], int | None]] = {
        "mapped_file_size_commit_log": lambda: log_file_size(
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
    for name, look in places.items():
        size = None if name in given else look()
        if size is not None and size < 1 << 31:
            found[name] = size
    if given.isdisjoint(LIGHT_QUEUE_SETTINGS) and _has_light_queues(env, root):
        found |= dict.fromkeys(LIGHT_QUEUE_SETTINGS, True)
    return dataclasses.replace(config, **found, given=given) if found else config
