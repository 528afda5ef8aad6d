"""Processes that act on stores of our engine and of 4.9.3 by one protocol: JSON lines both ways.

The protocol is that of tests/java, ServeCommand. An actor can be killed at any moment. Every wait
has a time limit, and no process outlives the test that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyrocketstore
from support.java_store import JavaStore

ANSWER_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
OURS, JAVA = "ours", "java"
OUR_ACTOR = Path(__file__).with_name("our_actor.py")
#: Number of stores that one JVM dumps: each leaves threads and 8 MiB buffers behind.
DUMPS_OF_ONE_JVM = 40

Line = dict[str, Any]


class ActorError(AssertionError):
    """Raised for an actor that replied with an error, too late, or not at all."""


class SilentError(ActorError):
    """Raised for a running actor that did not reply in time."""


class Actor:
    """A child process that reads commands and writes replies, one a line."""

    def __init__(self, side: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.side = side
        # Unlinked at once: this process and the child keep it open.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(env),
        )
        self._buffer = b""

    def __enter__(self) -> Actor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def send(self, do: str, **fields: Any) -> None:
        """Send a command without a wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")

    def receive(self, timeout: float = ANSWER_TIMEOUT_S) -> Line:
        """Return the next reply. Raises ActorError for an error."""
        answer = self._hear(timeout)
        if "error" in answer:
            raise ActorError(f"{self.side}: {answer['error']}\n{self.said()}")
        return answer

    def ready(self, timeout: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until it has started: it also replies to an unknown command."""
        self.send("ready")
        self._hear(timeout)

    def _hear(self, timeout: float) -> Line:
        self.flush()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            if not self._read(deadline - time.monotonic()):
                if time.monotonic() >= deadline:
                    raise SilentError(f"{self.side} answers nothing; it said:\n{self.said()}")
                raise ActorError(f"{self.side} has ended; it said:\n{self.said()}")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Line = json.loads(line)
        return answer

    def flush(self) -> None:
        """Flush the commands to the process."""
        assert self._process.stdin is not None
        self._process.stdin.flush()

    def ask(self, do: str, timeout: float = ANSWER_TIMEOUT_S, **fields: Any) -> Line:
        """Send a command and wait for the reply."""
        self.send(do, **fields)
        return self.receive(timeout)

    def kill(self) -> list[Line]:
        """Send SIGKILL; return the unread replies, whole lines only."""
        if self._process.stdout is None or self._process.stdout.closed:
            return []
        self._process.kill()
        while self._read(STOP_TIMEOUT_S):
            pass
        self._process.wait(STOP_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return [json.loads(line) for line in self._buffer.split(b"\n")[:-1]]

    def said(self) -> str:
        """Return the end of its standard error."""
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode("utf-8", "replace")

    def _read(self, timeout: float) -> bool:
        """Read its output; False at the end of it or after the timeout."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, timeout))
        data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
        self._buffer += data
        return bool(data)


class Actors:
    """Starts actors, those of Java ahead of need, and runs 4.9.3 on copies of stores."""

    def __init__(self, java: JavaStore) -> None:
        self.java = java
        self.kills = {OURS: 0, JAVA: 0}
        #: number of kills before the reply, by command and side
        self.inside: Counter[tuple[str, str]] = Counter()
        self._spare: Actor | None = None
        self._dumper: Actor | None = None
        self._dumps = 0

    def start(self, side: str) -> Actor:
        """Start a process of a side; the caller ends it."""
        if side == OURS:
            package = str(Path(pyrocketstore.__file__).parent.parent)
            environment = os.environ | {"PYTHONPATH": package, "PYTHONSAFEPATH": "1"}
            return Actor(OURS, [sys.executable, str(OUR_ACTOR)], environment)
        actor = self._spare or self._java()
        self._spare = self._java()
        return actor

    def _java(self) -> Actor:
        environment = os.environ | {"LC_ALL": "C.UTF-8"}
        return Actor(JAVA, self.java.command("serve"), environment)

    def dump(
        self,
        copy: Path,
        conf: Path,
        queries: Path,
        *,
        timeout: float = ANSWER_TIMEOUT_S,
        read: bool = True,
    ) -> list[str] | None:
        """Return the dump of 4.9.3 after load(), which recovers the copy; None if load() fails.

        An exception or a hang raises ActorError. Without `read`, the lines stay in the file
        COPY.jsonl, and the result is [].
        """
        if self._dumper is not None and self._dumps >= DUMPS_OF_ONE_JVM:
            self._drop_dumper()
        if self._dumper is None:
            self._dumper, self._dumps = self._java(), 0
            self._dumper.ready()  # the time limit begins after the start
        self._dumps += 1
        out = copy.parent / f"{copy.name}.jsonl"
        fields = {"path": str(copy), "conf": str(conf), "queries": str(queries), "out": str(out)}
        try:
            answer = self._dumper.ask("dump", timeout, **fields)
        except ActorError:
            self._drop_dumper()
            raise
        if answer["exit"]:
            return None
        return out.read_text(encoding="ascii").splitlines() if read else []

    def _drop_dumper(self) -> None:
        assert self._dumper is not None
        self._dumper.kill()
        self._dumper = None

    def close(self) -> None:
        """End the remaining processes."""
        for actor in (self._spare, self._dumper):
            if actor is not None:
                actor.kill()


@contextlib.contextmanager
def actors(java: JavaStore) -> Iterator[Actors]:
    """Yield actors, and end them afterwards."""
    pool = Actors(java)
    try:
        yield pool
    finally:
        pool.close()


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Yield a process, and end its process group afterwards."""
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_TIMEOUT_S)


#: Limits so large that neither side refuses or abandons a put on a busy machine.
PATIENCE = {"osPageCacheBusyTimeOutMills": 60_000, "syncFlushTimeout": 60_000}


def write_conf(path: Path, config: Mapping[str, Any]) -> Path:
    """Write a broker.conf with some settings."""
    items = (PATIENCE | dict(config)).items()
    lines = (f"{k}={str(v).lower() if isinstance(v, bool) else v}\n" for k, v in items)
    path.write_text("".join(lines), encoding="ascii")
    return path
