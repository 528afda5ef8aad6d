"""Builds what only the benchmarks need, below build/bench: C limits, an empty call, a Rust worker.

Each is left alone while it is newer than its sources.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(__file__).resolve().parent
OUT = ROOT / "build" / "bench"
LIMITS = ("append_sync", "map_store", "crc_scan")
FLAGS = ("-std=gnu11", "-O3", "-DNDEBUG", "-Wall", "-Wextra", "-Wconversion", "-pthread")
RUST_TIMEOUT_S = 1800


class Unavailable(Exception):
    """Something to measure against is not to be had here; the text says why."""


def limit(name: str) -> Path:
    """The program of limits/NAME.c."""
    target = OUT / "limits" / name
    sources = [HOME / "limits" / f"{name}.c", ROOT / "csrc" / "crc32.c"]
    headers = [*(HOME / "limits").glob("*.h"), *(ROOT / "csrc").glob("*.h")]
    if _is_older(target, [*sources, *headers]):
        compiler = os.environ.get("CC") or shutil.which("cc") or ""
        if not compiler:
            raise Unavailable("no C compiler")
        target.parent.mkdir(parents=True, exist_ok=True)
        include = f"-I{ROOT / 'csrc'}"
        command = [*compiler.split(), *FLAGS, include, "-o", str(target), *map(str, sources)]
        _run(command, "the C compiler")
    return target


def empty_call() -> Path:
    """The directory that holds the extension module `empty_call`."""
    target = OUT / "empty_call"
    source = HOME / "empty_call.pyx"
    built = target / f"empty_call{sysconfig.get_config_var('EXT_SUFFIX')}"
    if _is_older(built, [source]):
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext

        (extension,) = cythonize(
            [Extension("empty_call", [str(source)], extra_compile_args=["-O3", "-DNDEBUG"])],
            build_dir=str(target),
            compiler_directives={"language_level": 3, "binding": True},
            quiet=True,
        )
        command = build_ext(Distribution({"name": "empty_call", "ext_modules": [extension]}))
        command.build_lib = str(target)
        command.build_temp = str(target)
        command.ensure_finalized()
        # The compiler's chatter is not part of what run.py prints.
        with contextlib.redirect_stdout(sys.stderr):
            command.run()
    return target


def rust(*, build: bool) -> Path:
    """The worker over the crate rocketmq-store; some minutes the first time."""
    target = OUT / "rust" / "release" / "rocketmq_rust_worker"
    sources = [HOME / "rust" / "Cargo.toml", HOME / "rust" / "Cargo.lock"]
    if _is_older(target, [*sources, HOME / "rust" / "src" / "main.rs"]):
        if not build:
            raise Unavailable("not built in a smoke test")
        if shutil.which("cargo") is None:
            raise Unavailable("cargo is not here")
        command = ["cargo", "build", "--release", "--locked", "--quiet"]
        command += ["--manifest-path", str(HOME / "rust" / "Cargo.toml")]
        _run([*command, "--target-dir", str(OUT / "rust")], "cargo")
    return target


def _is_older(target: Path, sources: Iterable[Path]) -> bool:
    if not target.exists():
        return True
    return target.stat().st_mtime < max(path.stat().st_mtime for path in sources)


def _run(command: list[str], who: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUST_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{who} took longer than {RUST_TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if "error" in line] or lines
        raise Unavailable(f"{who} failed: {errors[0]}")
