"""The store of RocketMQ 4.9.3 itself, run as a child process (tests/java) to compare with; and that
of 5.x (tests/java5), which writes stores to read. `java_driver` builds both on first use.

By hand, in tests/:

    python -m support.java_store write DIR --seed 7 --count 300 --kinds batch,tx --ending halt \\
        --list PUT.jsonl --set mappedFileSizeCommitLog=262144
    python -m support.java_store dump DIR --queries F.tsv --set mappedFileSizeCommitLog=262144
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.java_driver import HOME, MAIN, JavaDriver, JavaError, JavaUnavailable
from support.random_messages import KINDS, random_messages, spec_line

HOME_5X = HOME.parent / "java5"
MAIN_5X = "org.pyrocketstore.driver5.Driver5"

EXIT_LOAD_FAILED = 3
EXIT_HALTED = 9
RUN_TIMEOUT_S = 120


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


class JavaStore(JavaDriver):
    """Runs the driver: each call is one process, each store path is opened in place."""

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
