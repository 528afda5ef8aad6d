"""A store that copies the log of a broker: its settings, and the thread that does it."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrocketstore.arguments.scalars import exact_int64
from pyrocketstore.config.message_store_config import BrokerRole, MessageStoreConfig
from pyrocketstore.display import shown
from pyrocketstore.errors import ReplicationError, StoreFormatError, StoreTypeError
from pyrocketstore.system.signal_shield import imported

if TYPE_CHECKING:
    from pyrocketstore.ha.ha_client import HAClient
    from pyrocketstore.ha.remoting import LogRange
    from pyrocketstore.message_store.copied_log import CopiedLog
    from pyrocketstore.system.env import Env

PORT_MAX = 65535
FIRST, LAST = "first", "last"
#: The longest wait for the answer of a broker.
REQUEST_SECONDS = 5.0


class Master(NamedTuple):
    """The master whose log is copied.

    Attributes
    ----------
    host, port : of its HA service
    begin : "first", "last", or a physical offset: where the copy begins in a store without a log
    acknowledges : reports of the copy count for the puts of a SYNC_MASTER
    """

    host: str
    port: int
    begin: str | int
    acknowledges: bool


def with_master(
    config: MessageStoreConfig, follow: Any, follow_from: Any, *, read_only: bool
) -> tuple[MessageStoreConfig, Master | None]:
    """Return the settings, and the master of the arguments of `open` or of a slave's settings.

    Raises StoreTypeError, StoreFormatError.
    """
    for name in ("ha_send_heartbeat_interval", "ha_housekeeping_interval"):
        if (follow is not None or config.ha_master_address) and getattr(config, name) <= 0:
            raise StoreFormatError(f"{name} {getattr(config, name)}: must be positive (ms)")
    if follow is None:
        if follow_from is not None:
            raise StoreFormatError("follow_from: only with follow")
        address = config.ha_master_address
        if read_only or config.broker_role is not BrokerRole.SLAVE or not address:
            return config, None
        return config, Master(*address_of("ha_master_address", address), FIRST, True)
    if read_only:
        raise StoreFormatError("follow: a store that is open read-only copies nothing")
    begin = FIRST if follow_from is None else follow_from
    if not (isinstance(begin, str) and begin in (FIRST, LAST)):
        if isinstance(begin, str):
            raise StoreFormatError(f"follow_from {shown(begin)}: first, last or a physical offset")
        begin = exact_int64("follow_from", begin)
        if begin < 0:
            raise StoreFormatError(f"follow_from {begin}: must not be negative")
    master = Master(*address_of("follow", follow), begin, False)
    return config.replace(broker_role=BrokerRole.SLAVE), master


def address_of(name: str, value: Any) -> tuple[str, int]:
    """Return host and port of a text "host:port". Raises StoreTypeError, StoreFormatError."""
    if not isinstance(value, str):
        raise StoreTypeError(f'{name} must be a str "host:port", not {type(value).__name__}')
    host, _, port = value.rpartition(":")
    if host and port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) <= PORT_MAX:
        host = host.removeprefix("[").removesuffix("]")
        with contextlib.suppress(UnicodeError):  # no name of a host has such labels
            host.encode("idna")
            return host, int(port)
    raise StoreFormatError(f'{name} {shown(value)}: must be "host:port" of the HA service')


def range_of_master(host: str, port: int) -> LogRange:
    """Return the range of a master's log; `port` is that of its HA service. The port for requests
    is the one before. Raises OSError, ReplicationError."""
    remoting = imported("pyrocketstore.ha.remoting")
    found: LogRange = remoting.log_range_of(host, port - 1, REQUEST_SECONDS)
    return found


def make_client(env: Env, log: CopiedLog, master: Master, config: MessageStoreConfig) -> HAClient:
    """Return the thread that copies the master's log."""
    log_range = partial(range_of_master, master.host, master.port)
    size = config.mapped_file_size_commit_log

    def begin() -> int:
        if master.begin == LAST:
            return -1
        if isinstance(master.begin, int):
            offset = master.begin
            with contextlib.suppress(OSError):  # the other port need not be reachable
                found = log_range()
                if not found.begin <= offset < max(found.end, 1):
                    raise ReplicationError(
                        f"physical offset {offset}: the broker has the bytes from {found.begin} to"
                        f" {found.end}"
                    )
        else:
            offset = log_range().begin
            if offset < 0:
                raise ConnectionError("the log of the master is empty")
        if offset % size:
            raise ReplicationError(
                f"physical offset {offset} is not the first byte of a file of {size} bytes: copy"
                " into a new directory, with the broker's mapped_file_size_commit_log or --config"
            )
        return offset

    module = imported("pyrocketstore.ha.ha_client")
    client: HAClient = module.HAClient(
        env,
        log,
        master.host,
        master.port,
        begin=begin,
        log_range=log_range,
        acknowledges=master.acknowledges,
        heartbeat_ms=config.ha_send_heartbeat_interval,
        housekeeping_ms=config.ha_housekeeping_interval,
    )
    return client
