"""Calls that no signal handler interrupts.

A signal handler runs in the main thread, between any two steps of Python code, and may raise there
or call the store again. So the main thread takes no step that would leave a lock held or a change
half made: where that cannot be compiled code, the call is made in a thread of its own, and the main
thread waits for it. The wait can be interrupted; the call goes on to its end, and what it holds is
held by a thread that gets its turn, so that a handler may wait for it too.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from pyrocketstore._env import Event
from pyrocketstore.display import logger

__all__ = [
    "Abandoned",
    "Shield",
    "abandonment",
    "check_abandoned",
    "forget_thread",
    "imported",
    "is_interruptible",
    "shielded",
]

LOG = logger(__name__)

Result = TypeVar("Result")


class HasLifeLock(Protocol):
    """Something that is begun and ended."""

    life_lock: threading.RLock


Locked = TypeVar("Locked", bound=HasLifeLock)

#: How long an interrupted `open`, and the one behind it, waits until its directory is free (s).
GIVE_UP_SECONDS = 5.0

#: By thread: the call that it makes.
_running: dict[int, Shield[Any]] = {}


class Abandoned(BaseException):
    """Ends a call whose caller was interrupted, from `check_abandoned`."""


def forget_thread(thread: threading.Thread) -> None:
    """Take a thread that is about to end out of CPython's weak set of threads; call it there.

    Else that set's callback runs where the last reference to the thread goes. In the main thread a
    signal handler may run in the callback, and what the handler raises would be lost.
    """
    dangling = getattr(threading, "_dangling", None)
    if dangling is not None:
        dangling.discard(thread)


class Shield(Generic[Result]):
    """One call in a thread of its own.

    Parameters
    ----------
    call : made once, by `start`
    dispose : called with the result, in that thread, where nobody receives it any more

    Threads: `start` from any, wherever that stands: it takes no lock. `wait` from the main thread.
    """

    def __init__(
        self, call: Callable[[], Result], dispose: Callable[[Result], object] | None = None
    ) -> None:
        self._call: Callable[[], Result] | None = call
        self._dispose = dispose
        self.has_dispose = dispose is not None
        self._end = Event()
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self.abandoned = False
        self._started = self._done = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin the call. Raises RuntimeError where no thread can be had."""
        # Not by Thread.start, which leaves the thread's name behind where it is interrupted.
        self._started = True  # no signal is handled from here to the call below
        try:
            _thread.start_new_thread(self._begin, ())
        except RuntimeError:
            self._started = False
            raise

    def _begin(self) -> None:
        # Now by Thread.start, so that the thread is known by its name.
        name = f"shielded {getattr(self._call, '__name__', 'call')}"
        try:
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        except (RuntimeError, MemoryError):
            self._thread = None
            self._run()

    def _run(self) -> None:
        thread = threading.get_ident()
        call, self._call = self._call, None
        assert call is not None
        _running[thread] = self
        try:
            self._result.append(call())
        except BaseException as error:  # noqa: BLE001  it is raised where the result is wanted
            self._error = error
            if self.abandoned and not isinstance(error, Abandoned):
                LOG.error("a call that was interrupted has failed: %s", error)
        finally:
            del call, _running[thread]
            self._done = True
            if self.abandoned:
                self._dispose_of_result()
            if self._thread is not None:
                forget_thread(self._thread)
            self._end.signal()

    def _dispose_of_result(self) -> None:
        with contextlib.suppress(IndexError):  # one of two gets it
            result = self._result.pop()
            try:
                if self._dispose is not None:
                    self._dispose(result)
            except Exception as error:  # noqa: BLE001  nobody else is told
                LOG.error("after a call that was interrupted: %s", error)

    def wait(self) -> Result:
        """Return the call's result, or raise what it raised. A signal handler that raises gets
        through."""
        self._end.wait(0)
        if self._thread is not None:
            self._thread.join()
        error, self._error = self._error, None  # which would refer to this frame, that to it
        if error is not None:
            try:
                raise error
            finally:
                del error  # it has this frame
        return self._result[0]

    def forget(self) -> None:
        """Keep what the caller has no longer alive: the last reference may be the caller's, and the
        thread that began the call may have this object for a while."""
        self._result.clear()
        self._dispose = None

    def abandon(self) -> None:
        """Nobody receives the result: with `dispose` the call ends soon, or its result goes there.

        Waits for that, not for long.
        """
        self.abandoned = True
        if self._dispose is None or not self._started:
            return
        if self._done and not self._result:
            self._dispose = None  # as `forget`
            return
        if self._done:  # and may not have seen that
            shielded(self._dispose_of_result)
        elif not self._end.wait(0, GIVE_UP_SECONDS):
            LOG.warning("an interrupted call goes on for a while")


def is_interruptible() -> bool:
    """True in the thread that signal handlers run in."""
    return threading.get_ident() == threading.main_thread().ident


def shielded(
    call: Callable[[], Result], dispose: Callable[[Result], object] | None = None
) -> Result:
    """Make a call that no signal handler interrupts; its result, or what it raises.

    In the main thread the wait for it can be interrupted. The call then goes on; with `dispose` it
    ends at its next `check_abandoned`, or `dispose` gets its result.
    """
    if not is_interruptible() or sys.is_finalizing():  # then no other thread gets its turn
        return call()
    shield = Shield(call, dispose)
    try:
        try:
            shield.start()
        except RuntimeError:
            return call()  # no thread is left, as at the end of the interpreter
        result = shield.wait()
        shield.forget()
        return result
    except BaseException:
        shield.abandoned = True  # at once: `abandon` may be interrupted before its first step
        shield.abandon()
        raise


def imported(name: str) -> Any:
    """A module, imported where no signal handler can raise: CPython would keep the import's lock,
    and other threads would wait for it for ever."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        return module
    return shielded(functools.partial(importlib.import_module, name))


def one_at_a_time(method: Callable[[Locked], None]) -> Callable[[Locked], None]:
    """A method that runs with its object's `life_lock`; call it by `shielded`."""

    @functools.wraps(method)
    def locked(self: Locked) -> None:
        with self.life_lock:
            method(self)

    return locked


def check_abandoned() -> None:
    """End a call whose caller was interrupted: raises Abandoned. Does nothing elsewhere."""
    shield = _running.get(threading.get_ident())
    if shield is not None and shield.abandoned and shield.has_dispose:
        raise Abandoned


def abandonment() -> Callable[[], bool]:
    """A function that says whether the caller of the call that this thread makes was interrupted:
    the call will end soon, or `dispose` get its result. Threads: the function from any."""
    shield = _running.get(threading.get_ident())
    known = None if shield is None else weakref.ref(shield)

    def is_abandoned() -> bool:
        shield = None if known is None else known()
        return shield is not None and shield.abandoned and shield.has_dispose

    return is_abandoned
