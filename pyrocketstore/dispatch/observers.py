"""Observers: the callables of a program that the dispatcher calls for each dispatched record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreTypeError
from pyrocketstore.record.message import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)
from pyrocketstore.record.multi_dispatch import further_queues
from pyrocketstore.results import DispatchRequest

LOG = logger(__name__)

#: Called with (topic, queue id, queue offset + 1, tags code, store time, bit map, properties).
Arriving = Callable[[str, int, int, int, int, bytes | None, Mapping[str, str] | None], object]
#: Called with topic and properties.
BitMap = Callable[[str, Mapping[str, str] | None], bytes | None]
#: A custom dispatcher.
Dispatch = Callable[[DispatchRequest], object]


class MessageArrivingListener(Protocol):
    """An object that is notified of each message. Source: 4.9.3 MessageArrivingListener."""

    def arriving(
        self,
        topic: str,
        queue_id: int,
        logic_offset: int,
        tags_code: int,
        msg_store_time: int,
        filter_bit_map: bytes | None,
        properties: Mapping[str, str] | None,
        /,
    ) -> object:
        """Take one message; `logic_offset` is its queue offset + 1."""


def arriving_of(listener: Arriving | MessageArrivingListener | None) -> Arriving | None:
    """Return what to call for each message: a method `arriving`, or the listener itself.

    Raises StoreTypeError: neither is callable.
    """
    if listener is None:
        return None
    found: Any = getattr(listener, "arriving", listener)
    if not callable(found):
        raise StoreTypeError(
            f"message_arriving_listener: {type(listener).__name__}: must be callable or have a"
            " method arriving"
        )
    return found  # type: ignore[no-any-return]


class Observers:
    """Call the dispatchers and the arriving listener of a program, in this order, for a record.

    Parameters
    ----------
    dispatchers : sequence of callable(DispatchRequest)
    arriving : Arriving or None
    light_queues : bool, names of further queues that begin with %LMQ% have queue id 0
    bit_map : callable(topic, properties), the filter bit map of a message; None: there are none

    An exception is logged, and the other callables are called.

    Source: RocketMQ 4.9.3 DefaultMessageStore#doDispatch, #notifyMessageArrive4MultiQueue.
    Differs: after an exception, 4.9.3 dispatches the record again without an end.
    """

    def __init__(
        self,
        dispatchers: Sequence[Dispatch],
        arriving: Arriving | None,
        *,
        light_queues: bool,
        bit_map: BitMap | None = None,
    ) -> None:
        self._dispatchers = tuple(dispatchers)
        self._arriving = arriving
        self._light_queues = light_queues
        self._bit_map = bit_map

    def __call__(self, request: DispatchRequest) -> None:
        """Call all for one record. Threads: that of the dispatcher."""
        if self._bit_map is not None:
            request.bit_map = self._bit_map(request.topic, request.properties_map)
        for dispatch in self._dispatchers:
            try:
                dispatch(request)
            except BaseException:  # noqa: BLE001  also SystemExit must not end dispatching
                _log("a dispatcher", request)
        if self._arriving is not None:
            self._notify(self._arriving, request, request.topic, request.queue_id,
                         request.consume_queue_offset)  # fmt: skip
            self._notify_further(self._arriving, request)

    def _notify_further(self, arriving: Arriving, request: DispatchRequest) -> None:
        properties = request.properties_map or {}
        names = properties.get(PROPERTY_INNER_MULTI_DISPATCH) or ""
        offsets = properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET) or ""
        if not names.strip() or not offsets.strip():
            return
        further = further_queues(names, offsets, request.queue_id, light_queues=self._light_queues)
        for name, queue_id, queue_offset in further or ():
            if queue_offset is not None:
                self._notify(arriving, request, name, queue_id, queue_offset)

    def _notify(
        self,
        arriving: Arriving,
        request: DispatchRequest,
        topic: str,
        queue_id: int,
        queue_offset: int,
    ) -> None:
        try:
            arriving(
                topic,
                queue_id,
                queue_offset + 1,
                request.tags_code,
                request.store_timestamp,
                request.bit_map,
                request.properties_map,
            )
        except BaseException:  # noqa: BLE001  also SystemExit must not end dispatching
            _log("the arriving listener", request)


def _log(what: str, request: DispatchRequest) -> None:
    LOG.exception(
        "%s has raised for %s-%d, queue offset %d, byte %d of the log; dispatch continues",
        what, request.topic, request.queue_id, request.consume_queue_offset,
        request.commit_log_offset,
    )  # fmt: skip
