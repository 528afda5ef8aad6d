"""Calls that no signal handler interrupts.

A signal handler runs in the main thread between any two steps of Python code. It may raise there or
call the store again. The main thread must therefore execute no Python step that an exception could
leave with a lock held or a change half made. Such a call runs as compiled code or in a thread of
its own, and the main thread waits for that thread. A signal can interrupt the wait; the call then
continues to its end. Its thread keeps running and releases its locks, so a handler may wait for
them.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from pyrocketstore.display import logger
from pyrocketstore.errors import StoreIOError
from pyrocketstore.system._env import Event
from pyrocketstore.system.threads import begin_thread, thread_arguments

__all__ = [
    "Abandoned",
    "Shield",
    "abandonment",
    "check_abandoned",
    "imported",
    "is_interruptible",
    "shielded",
]

LOG = logger(__name__)

Result = TypeVar("Result")


class HasLifeLock(Protocol):
    """An object with a life cycle that `one_at_a_time` protects."""

    life_lock: threading.RLock


Locked = TypeVar("Locked", bound=HasLifeLock)

#: Longest wait of an interrupted `open`, and of the next one, for a free directory (s).
GIVE_UP_SECONDS = 5.0

#: The call that each thread makes, by thread id.
_running: dict[int, Shield[Any]] = {}


class Abandoned(BaseException):
    """Raised by `check_abandoned` to end a call whose caller was interrupted."""


class Shield(Generic[Result]):
    """One call in a thread of its own.

    Parameters
    ----------
    call : called once, after `start`
    dispose : called in the call's thread with a result that no caller receives

    Threads: `start` from any, at any point of the program, since it takes no lock; `wait` from the
    main thread.
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

    def start(self) -> None:
        """Begin the call. Raises RuntimeError or MemoryError if no thread can be started."""
        name = f"shielded {getattr(self._call, '__name__', 'call')}"
        # Popped, so that the traceback of an interrupt does not keep `_end` from being signalled.
        arguments = [thread_arguments(self._run, name, self._end)]
        self._started = True
        try:
            _thread.start_new_thread(begin_thread, arguments.pop())
        except (RuntimeError, MemoryError):
            self._started = False
            raise

    def _run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            _running[threading.get_ident()] = self
            self._result.append(call())
        except BaseException as error:  # noqa: BLE001  `wait` raises it
            self._error = error
            if self.abandoned and not isinstance(error, Abandoned):
                LOG.error("an interrupted call has failed: %s", error)
        finally:
            del call
            _running.pop(threading.get_ident(), None)
            self._done = True
            if self.abandoned:
                self._dispose_of_result()

    def _dispose_of_result(self) -> None:
        with contextlib.suppress(IndexError):  # `abandon` may have disposed of it already
            result = self._result.pop()
            try:
                if self._dispose is not None:
                    self._dispose(result)
            except Exception as error:  # noqa: BLE001  there is no caller to raise it to
                LOG.error("the result of an interrupted call could not be released: %s", error)

    def wait(self) -> Result:
        """Return the call's result or raise its exception.

        An exception of a signal handler ends the wait.
        """
        self._end.wait(0)
        if not self._done:  # the thread had no memory for its first step
            self._run()
        # The exception will refer to this frame and the frame to `self`: break the cycle.
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return self._result[0]

    def forget(self) -> None:
        """Drop the references to the result and to `dispose`.

        The thread of the call may keep this object for a while; the result must not live that long.
        """
        self._result.clear()
        self._dispose = None

    def abandon(self) -> None:
        """Give the call up: its result is passed to `dispose` instead of the caller.

        With `dispose`, the call also ends at its next `check_abandoned`. Waits up to
        GIVE_UP_SECONDS for the end of the call.
        """
        self.abandoned = True
        if self._dispose is None or not self._started:
            return
        if self._done and not self._result:
            self._dispose = None  # as `forget`
            return
        if self._done:  # the call may have ended before `abandoned` was set
            shielded(self._dispose_of_result)
        elif not self._end.wait(0, GIVE_UP_SECONDS):
            LOG.warning("an interrupted call still runs after %.0f s", GIVE_UP_SECONDS)


def is_interruptible() -> bool:
    """Return True in the main thread, where signal handlers run."""
    return threading.get_ident() == threading.main_thread().ident


def shielded(
    call: Callable[[], Result], dispose: Callable[[Result], object] | None = None
) -> Result:
    """Make a call that no signal handler interrupts, and return its result or raise its exception.

    In the main thread a signal can interrupt the wait for the call. The call then continues; with
    `dispose` it ends at its next `check_abandoned`, or `dispose` receives its result.
    """
    if not is_interruptible() or sys.is_finalizing():  # no other thread runs while finalizing
        return call()
    shield = Shield(call, dispose)
    try:
        try:
            shield.start()
        except (RuntimeError, MemoryError):
            return call()  # no thread can be started, e.g. at the end of the interpreter
        result = shield.wait()
        shield.forget()
        return result
    except BaseException:
        shield.abandoned = True  # a signal may interrupt `abandon` before its first step
        shield.abandon()
        raise


def imported(name: str) -> Any:
    """Import a module where no signal handler can raise.

    After an exception in the middle of an import, CPython may keep the import lock of the module,
    and other threads would wait for that lock forever.

    Raises StoreIOError if a file of the module cannot be read.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        return module
    return shielded(functools.partial(_import, name))


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except OSError as error:  # as without a free descriptor
        path = error.filename if isinstance(error.filename, str) else name
        raise StoreIOError(error.errno or errno.EIO, "import", path) from None


def one_at_a_time(method: Callable[[Locked], None]) -> Callable[[Locked], None]:
    """Make a method hold its object's `life_lock`. Callers use `shielded` for such a method."""

    @functools.wraps(method)
    def locked(self: Locked) -> None:
        with self.life_lock:
            method(self)

    return locked


def check_abandoned() -> None:
    """Raise Abandoned if the caller of this thread's shielded call was interrupted."""
    shield = _running.get(threading.get_ident())
    if shield is not None and shield.abandoned and shield.has_dispose:
        raise Abandoned


def abandonment() -> Callable[[], bool]:
    """Return a function that is True once the caller of this thread's call was interrupted.

    The call then ends soon, or `dispose` receives its result. Threads: any may call the function.
    """
    shield = _running.get(threading.get_ident())
    known = None if shield is None else weakref.ref(shield)

    def is_abandoned() -> bool:
        shield = None if known is None else known()
        return shield is not None and shield.abandoned and shield.has_dispose

    return is_abandoned
