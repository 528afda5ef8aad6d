"""The store of RocketMQ 4.9.3 itself, run as a child process (tests/java) to compare with; and that
of 5.x (tests/java5), which writes stores to read.

Built on first use: Maven resolves the jars into lib of that directory, javac compiles into out;
both are ignored by git. A file lock lets test processes run side by side.

By hand, in tests/:

    python -m support.java_store write DIR --seed 7 --count 300 --kinds batch,tx --ending halt \\
        --list PUT.jsonl --set mappedFileSizeCommitLog=262144
    python -m support.java_store dump DIR --queries F.tsv --set mappedFileSizeCommitLog=262144
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.random_messages import KINDS, random_messages, spec_line

HOME = Path(__file__).parent.parent / "java"
HOME_5X = HOME.parent / "java5"
MAIN, MAIN_5X = "org.pyrocketstore.driver.Driver", "org.pyrocketstore.driver5.Driver5"

EXIT_LOAD_FAILED = 3
EXIT_HALTED = 9
BUILD_TIMEOUT_S = 600
RUN_TIMEOUT_S = 120

#: 4.9.3 unmaps its files through JDK internals, which Java 17 opens only on demand.
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
#: A full disk of the machine that runs the tests must not make the store refuse puts.
PROPERTIES = (
    f"-Dlogback.configurationFile={HOME / 'logback.xml'}",
    "-Drocketmq.client.logUseSlf4j=true",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
    "-Dfile.encoding=UTF-8",
    "-Dsun.jnu.encoding=UTF-8",
)
QUICK_START = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaUnavailable(Exception):
    """There is no java, no mvn, or the jars cannot be had."""


class JavaError(Exception):
    """The driver ended in a way that it should not."""


def require_java(home: Path = HOME, main: str = MAIN) -> JavaStore:
    """The built driver; skips the calling test, aloud, where it cannot be had."""
    try:
        return _built(home, main)
    except JavaUnavailable as problem:
        reason = f"SKIPPED ALOUD: {problem}: the interop tests did not run"
    pytest.skip(reason)


def require_java_5x() -> JavaStore:
    """The built driver of 5.x, as `require_java`."""
    return require_java(HOME_5X, MAIN_5X)


@functools.cache
def _built(home: Path = HOME, main: str = MAIN) -> JavaStore:
    java = JavaStore(home, main)
    java.build()
    return java


class JavaStore:
    """Runs the driver: each call is one process, each store path is opened in place."""

    def __init__(self, home: Path = HOME, main: str = MAIN) -> None:
        self._home, self._main = home, main
        self._lib, self._out = home / "lib", home / "out"

    def build(self) -> None:
        """Fetch jars and compile, unless that was done from these very sources."""
        missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
        if missing:
            raise JavaUnavailable(f"{' and '.join(missing)} are not here")
        sources = sorted((self._home / "src" / "main" / "java").rglob("*.java"))
        digest = hashlib.sha256()
        for path in (self._home / "pom.xml", *sources):
            digest.update(path.read_bytes())
        self._out.mkdir(exist_ok=True)
        stamp = self._out / "STAMP"
        with _locked(self._out / "LOCK"):
            if stamp.exists() and stamp.read_text() == digest.hexdigest():
                return
            self._resolve()
            self._compile(sources)
            stamp.write_text(digest.hexdigest())

    def _resolve(self) -> None:
        pom_digest = hashlib.sha256((self._home / "pom.xml").read_bytes()).hexdigest()
        stamp = self._lib / "STAMP"
        if stamp.exists() and stamp.read_text() == pom_digest:
            return
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={self._lib}")
        done = subprocess.run(
            command, cwd=self._home, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
            raise JavaUnavailable(f"mvn could not resolve the jars ({lines[0]})")
        stamp.write_text(pom_digest)

    def _compile(self, sources: Sequence[Path]) -> None:
        shutil.rmtree(self._out / "org", ignore_errors=True)
        command = ["javac", "-encoding", "UTF-8", "--release", "17", "-cp", f"{self._lib}/*"]
        command += ["-d", str(self._out), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        if done.returncode:
            raise JavaError(f"javac failed:\n{done.stdout}{done.stderr}")

    def command(self, *words: str, jvm: Sequence[str] = QUICK_START) -> list[str]:
        """The command line of the driver."""
        main = ("-cp", f"{self._out}:{self._lib}/*", self._main)
        return ["java", *jvm, *OPENED, *PROPERTIES, *main, *words]

    def run(self, *words: str, expect: int = 0, timeout: float = RUN_TIMEOUT_S) -> str:
        """Run the driver to its end and give its standard output."""
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        if done.returncode != expect:
            problem = done.stderr[-4000:]
            raise JavaError(f"{words}: exit {done.returncode}, expected {expect}\n{problem}")
        return done.stdout

    def dump(
        self,
        store_path: Path,
        config: Mapping[str, Any],
        queries_path: Path | None = None,
        *,
        started: bool = False,
    ) -> list[str]:
        """The golden lines of a store. It is recovered in place: give a copy."""
        words = [f"{name}={_java(value)}" for name, value in config.items()]
        if queries_path is not None:
            words.append(f"queries={queries_path}")
        if started:
            words.append("started")
        return self.run("dump", str(store_path), *words).splitlines()

    def put(
        self,
        store_path: Path,
        specs: Iterable[Mapping[str, Any]],
        config: Mapping[str, Any],
        *,
        ending: str = "clean",
        records: bool = False,
    ) -> list[dict[str, Any]]:
        """Put messages (see random_messages) and give each one's result.

        `ending="halt"` stops the process at once when everything is dispatched, as a crash would.
        With `records` each result has the bytes that are in the log, as hex.
        """
        words = [f"{name}={_java(value)}" for name, value in config.items()]
        words += [f"ending={ending}", *(["records"] if records else [])]
        expect = EXIT_HALTED if ending == "halt" else 0
        lines = (spec_line(spec) for spec in specs)
        return self._answers("put", store_path, lines, words, expect)

    def events(
        self,
        store_path: Path,
        specs: Iterable[Mapping[str, Any]],
        config: Mapping[str, Any],
        *more: str,
    ) -> list[dict[str, Any]]:
        """Put messages; return the calls of a dispatcher and an arriving listener in their order,
        and then the put totals of each topic."""
        words = [*(f"{name}={_java(value)}" for name, value in config.items()), *more]
        return self._answers("events", store_path, map(spec_line, specs), words, 0)

    def index(
        self, path: Path, lines: Iterable[Sequence[object]], **geometry: int
    ) -> list[dict[str, Any]]:
        """Fill an index file: ("put", key, phy_offset, store_timestamp) and
        ("select", key, max_num, begin, end) lines, one answer each."""
        words = [f"{name}={value}" for name, value in geometry.items()]
        rows = ("\t".join(map(str, line)) for line in lines)
        return self._answers("index", path, rows, words, 0)

    def filter(self, requests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Ask the filter jar; a request is {"expression": text, "messages": [properties, ...]}."""
        return self._answers("filter", Path("-"), map(json.dumps, requests), [], 0)

    def config(self, requests: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Ask 4.9.3 what it reads from the text of a file of ROOT/config; a request is
        {"file": name, "text": text}."""
        return self._answers("config", Path("-"), map(json.dumps, requests), [], 0)

    def _answers(
        self, mode: str, path: Path, lines: Iterable[str], words: Sequence[str], expect: int
    ) -> list[dict[str, Any]]:
        """Run a mode that answers each line of its input with one of its own."""
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "lines")
            source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            answers = self.run(mode, str(path), f"from={source}", *words, expect=expect)
        return [json.loads(line) for line in answers.splitlines()]


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """The command line: random stores written by 4.9.3, and its answers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="put random messages")
    write.add_argument("--seed", type=int, default=1)
    write.add_argument("--count", type=int, default=600)
    write.add_argument("--kinds", default="plain", help=f"of {','.join(KINDS)}")
    write.add_argument("--max-body", type=int, default=2000)
    write.add_argument("--ending", choices=("clean", "halt"), default="clean")
    write.add_argument("--list", type=Path, help="write what was put, and the results, there")
    dump = commands.add_parser("dump", help="print the golden lines; recovers DIR in place")
    dump.add_argument("--queries", type=Path)
    for command in (write, dump):
        command.add_argument("store", type=Path, metavar="DIR")
        command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    config = dict(item.split("=", 1) for item in arguments.set)
    java = _built()
    if arguments.command == "dump":
        print("\n".join(java.dump(arguments.store, config, arguments.queries)))
        return
    kinds = arguments.kinds.split(",")
    specs = random_messages(arguments.seed, arguments.count, kinds, max_body=arguments.max_body)
    results = java.put(arguments.store, specs, config, ending=arguments.ending)
    if arguments.list:
        rows = zip(specs, results, strict=True)
        text = "".join(json.dumps(json.loads(spec_line(s)) | r) + "\n" for s, r in rows)
        arguments.list.write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
