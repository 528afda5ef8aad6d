"""A whole RocketMQ 4.9.3: a name server and a broker on free ports of the loopback, and clients."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors import ActorError, ended, write_conf
from support.java_driver import QUICK_START
from support.java_store import HOME, JavaStore

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 120
CLIENT_TIMEOUT_S = 180
BOOTED, TAKEN = "boot success", "Address already in use"
LOGBACK_NAMES = ("logback_broker.xml", "logback_namesrv.xml", "logback_tools.xml")
#: A small sufficient heap, and no files in the user's home directory.
JVM = (*QUICK_START, "-XX:MaxDirectMemorySize=512m")

Line = dict[str, Any]

#: Settings of a broker with small files, and the same for a store of ours.
SMALL_FILES: Line = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
SMALL_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}


def requests_of(bodies: Iterable[bytes]) -> list[Line]:
    """Return the requests for messages with these bodies in the topic t."""
    encoded = (base64.b64encode(body).decode() for body in bodies)
    return [
        {"topic": "t", "tags": "A", "keys": "k", "body": body, "properties": []} for body in encoded
    ]


def free_ports(count: int, gaps: Sequence[int] = (0,)) -> list[int]:
    """Yield ports p for which p + gap is free for each gap, at the moment of the check."""
    found: list[int] = []
    with contextlib.ExitStack() as taken:
        while len(found) < count:
            with contextlib.suppress(OSError, OverflowError):
                first = _bound(taken, 0)
                for gap in gaps:
                    if gap:
                        _bound(taken, first + gap)
                found.append(first)
    return found


def _bound(taken: contextlib.ExitStack, port: int) -> int:
    holder = taken.enter_context(socket.socket())
    holder.bind(("127.0.0.1", port))
    return int(holder.getsockname()[1])


class Cluster:
    """One name server, and a broker that can be started and stopped on a store's directory.

    Parameters
    ----------
    name_port : int, of a running name server; None: one is run by `names`
    """

    def __init__(self, java: JavaStore, home: Path, name_port: int | None = None) -> None:
        self.java = java
        self.home = home
        (home / "conf").mkdir(parents=True)
        for name in LOGBACK_NAMES:
            shutil.copy(HOME / "logback.xml", home / "conf" / name)
        if name_port is None:
            self._choose_name_port()
        else:
            self.name_port = name_port
        self._choose_ports()

    @property
    def name_server(self) -> str:
        """The address of the name server."""
        return f"127.0.0.1:{self.name_port}"

    def _choose_name_port(self) -> None:
        (self.name_port,) = free_ports(1)

    def _choose_ports(self) -> None:
        # 4.9.3 listens at listenPort, and at listenPort - 2 for the fast lane.
        self.port, self.ha_port = free_ports(1, (0, -2))[0], free_ports(1)[0]

    def _command(self, main: str, conf: Path) -> list[str]:
        jvm = [*JVM, f"-Drocketmq.home.dir={self.home}", f"-Duser.home={self.home}"]
        command = self.java.command(jvm=jvm)
        return [*command[:-1], main, "-c", str(conf)]

    @contextlib.contextmanager
    def names(self) -> Iterator[None]:
        """Run the name server."""

        def command() -> list[str]:
            conf = write_conf(self.home / "namesrv.conf", {"listenPort": self.name_port})
            return self._command("org.apache.rocketmq.namesrv.NamesrvStartup", conf)

        with serving(command, self._choose_name_port):
            yield

    @contextlib.contextmanager
    def broker(
        self, store: Path, config: Mapping[str, Any], ending: signal.Signals
    ) -> Iterator[None]:
        """Run the broker on a directory; end it by a signal."""
        settings = {
            "brokerName": "broker-a",
            "brokerClusterName": "c",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": self.name_server,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            **config,
        }

        def command() -> list[str]:
            ports = {"listenPort": self.port, "haListenPort": self.ha_port}
            conf = write_conf(self.home / "broker.conf", settings | ports)
            return self._command("org.apache.rocketmq.broker.BrokerStartup", conf)

        with serving(command, self._choose_ports) as process:
            yield
            process.send_signal(ending)
            process.wait(STOP_TIMEOUT_S)

    def _client(self, *words: str) -> list[Line]:
        command = self.java.command(*words)
        with running(command) as process:
            output, _ = process.communicate(timeout=CLIENT_TIMEOUT_S)
        text = output.decode("utf-8")
        assert process.returncode == 0, text[-4000:]
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def consume(
        self, topics: Iterable[str], count: int, group: str, *, where: str = ""
    ) -> list[Line]:
        """Return the first `count` messages that a consumer of these topics gets; with `where` of
        those that pass this SQL92 filter."""
        words = [f"topics={','.join(topics)}", f"count={count}", f"group={group}"]
        words += [f"where={where}"] if where else []
        return self._client("consume", self.name_server, *words)

    def transact(
        self, requests: Iterable[Line], group: str, *, answer: str = "UNKNOW", checks: int = 0
    ) -> list[Line]:
        """Send messages in transactions, and answer `checks` checks; return results and checks."""
        path = self.home / "transactions"
        path.write_text("".join(json.dumps(request) + "\n" for request in requests))
        words = [f"group={group}", f"from={path}", f"answer={answer}", f"checks={checks}"]
        return self._client("transact", self.name_server, *words, "timeout=60")

    def produce(self, requests: Iterable[Line]) -> list[Line]:
        """Send messages and batches by a producer; return the result of each."""
        path = self.home / "requests"
        path.write_text("".join(json.dumps(request) + "\n" for request in requests))
        return self._client("produce", self.name_server, f"from={path}")


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process in a new process group, and end the group afterwards."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    with process, ended(process):
        yield process


@contextlib.contextmanager
def serving(
    command: Callable[[], Sequence[str]], choose_ports: Callable[[], None]
) -> Iterator[subprocess.Popen[bytes]]:
    """Return a started server; start it again with other ports if one is in use meanwhile."""
    for is_last in (False, True):
        with running(command()) as process:
            try:
                wait_for(process, BOOTED)
            except ActorError as error:
                if is_last or TAKEN not in str(error):
                    raise
                choose_ports()
                continue
            yield process
            return


def wait_for(process: subprocess.Popen[bytes], words: str) -> None:
    """Wait for a line of the process."""
    assert process.stdout is not None
    said = b""
    deadline = time.monotonic() + START_TIMEOUT_S
    while words.encode() not in said:
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([process.stdout], [], [], left)
        data = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
        if not data:
            raise ActorError(f"no {words!r}; it said:\n{said.decode('utf-8', 'replace')}")
        said += data
