"""Build what only the benchmarks use, in build/bench: C limits, empty call, Rust worker.

A program that is newer than its sources is not built again.
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

from bench.paths import BUILD, ROOT

HOME = Path(__file__).resolve().parent
LIMITS = ROOT / "bench" / "limits"
FLAGS = ("-std=gnu11", "-O3", "-DNDEBUG", "-Wall", "-Wextra", "-Wconversion", "-pthread")
RUST_TIMEOUT_S = 1800


class Unavailable(Exception):
    """A program to compare with is not available; the text says why."""


def limit(name: str) -> Path:
    """Return the program of limits/NAME.c."""
    target = BUILD / "limits" / name
    sources = [LIMITS / f"{name}.c", ROOT / "csrc" / "crc32.c"]
    headers = [*LIMITS.glob("*.h"), *(ROOT / "csrc").glob("*.h")]
    if _is_older(target, [*sources, *headers]):
        compiler = os.environ.get("CC") or shutil.which("cc") or ""
        if not compiler:
            raise Unavailable("no C compiler found")
        target.parent.mkdir(parents=True, exist_ok=True)
        include = f"-I{ROOT / 'csrc'}"
        command = [*compiler.split(), *FLAGS, include, "-o", str(target), *map(str, sources)]
        _run(command, "the C compiler")
    return target


def empty_call() -> Path:
    """Return the extension module `empty_call`."""
    target = BUILD / "empty_call"
    sources = [HOME / "empty_call.pyx", ROOT / "csrc" / "crc32.c"]
    built = target / f"empty_call{sysconfig.get_config_var('EXT_SUFFIX')}"
    if _is_older(built, sources):
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext

        (extension,) = cythonize(
            [
                Extension(
                    "empty_call",
                    [str(source) for source in sources],
                    include_dirs=[str(ROOT / "csrc")],
                    extra_compile_args=["-O3", "-DNDEBUG"],
                )
            ],
            build_dir=str(target),
            compiler_directives={"language_level": 3, "binding": True},
            quiet=True,
        )
        command = build_ext(Distribution({"name": "empty_call", "ext_modules": [extension]}))
        command.build_lib = str(target)
        command.build_temp = str(target)
        command.ensure_finalized()
        # Keep the compiler's output out of the output of the command.
        with contextlib.redirect_stdout(sys.stderr):
            command.run()
    return built


def rust(*, build: bool) -> Path:
    """Return the worker for the crate rocketmq-store; the first build takes about five minutes."""
    target = BUILD / "rust" / "release" / "rocketmq_rust_worker"
    sources = [HOME / "rust" / "Cargo.toml", HOME / "rust" / "Cargo.lock"]
    if _is_older(target, [*sources, HOME / "rust" / "src" / "main.rs"]):
        if not build:
            raise Unavailable("not built in a smoke test")
        if shutil.which("cargo") is None:
            raise Unavailable("cargo is not installed")
        command = ["cargo", "build", "--release", "--locked", "--quiet"]
        command += ["--manifest-path", str(HOME / "rust" / "Cargo.toml")]
        _run([*command, "--target-dir", str(BUILD / "rust")], "cargo")
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
        lines = done.stderr.strip().splitlines() or ["no error output"]
        errors = [line for line in lines if "error" in line] or lines
        raise Unavailable(f"{who} failed: {errors[0]}")
