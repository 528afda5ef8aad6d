"""Facts about the machine and the versions that a run was measured with."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import re
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from bench.paths import ROOT

PEER_PACKAGES = ("lmdb", "persist-queue", "diskcache")
#: Descriptors that a worker needs for everything but queues.
OWN_FILES = 1000
#: The feature bit of virtio-balloon with which the host takes back pages that the guest has freed.
PAGE_REPORTING = 5
#: More than the files that one unit of work writes, in bytes.
PROVIDED_BYTES = 3 << 30


def facts(home: Path, *, java: bool, rust: bool) -> dict[str, str]:
    """Return machine, kernel, file system, CRC kernel and the versions of all variants."""
    from pyrocketstore.record._message import crc32_kernel

    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    found = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory_bytes() / (1 << 30):.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(home),
        "dirty limit": f"{dirty_limit() / (1 << 30):.1f} GiB",
        "CRC kernel": crc32_kernel(),
        "Python": f"{platform.python_version()} (GIL {'on' if gil else 'off'})",
        "pyrocketstore": _own_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    if reports_free_pages():
        found["free memory"] = (
            "taken back by the host (virtio-balloon), used once before each round of puts"
        )
    for name in PEER_PACKAGES:
        if version := _package(name):
            found[name] = version
    if java:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
        found["Java"] = said.stderr.splitlines()[0]
    if rust:
        lock = (ROOT / "bench" / "workers" / "rust" / "Cargo.lock").read_text()
        match = re.search(r'name = "rocketmq-store"\nversion = "([^"]+)"', lock)
        found["rocketmq-rust"] = match[1] if match else "unknown"
    return found


def memory_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def dirty_limit() -> int:
    """Return the limit of dirty pages, in bytes, above which the kernel blocks writers."""
    if fixed := _number("/proc/sys/vm/dirty_bytes"):
        return fixed
    ratio = _number("/proc/sys/vm/dirty_ratio") or 20
    available = re.search(r"MemAvailable:\s+(\d+)", _text("/proc/meminfo"))
    return (int(available[1]) * 1024 if available else memory_bytes()) * ratio // 100


def reports_free_pages(devices: Path = Path("/sys/bus/virtio/drivers/virtio_balloon")) -> bool:
    """Return whether the host takes back free pages. The next use of such a page is slow."""
    features = [_text(str(path)) for path in devices.glob("virtio*/features")]
    return any(bits[PAGE_REPORTING : PAGE_REPORTING + 1] == "1" for bits in features)


def provide_free_memory(size: int = PROVIDED_BYTES) -> None:
    """Use `size` bytes of free memory once, so that the host provides their pages again."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def open_files_max() -> int:
    """Return how many files a process may open, besides those of its own parts."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] - OWN_FILES


def has(package: str) -> bool:
    """Return whether the distribution is installed."""
    return _package(package) is not None


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_version() -> str:
    version = _package("pyrocketstore") or "unknown"
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return version
    return f"{version} {said.stdout.strip()}".strip()


def _processor() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "CPU implementer")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    best = ("", "unknown")
    for line in _text("/proc/mounts").splitlines():
        _, mount, kind, options, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, f"{kind} ({options})")
    return best[1]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _number(path: str) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0
