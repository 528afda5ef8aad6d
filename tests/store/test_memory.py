"""Goal: memory stays bounded: a large store takes address space, and the memory of puts does not
grow.
Method: each measurement is a process of its own."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from support import oracle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")

GIB = 1 << 30

#: Anonymous memory of this process, bytes: what it allocated, not what it mapped of files.
ANONYMOUS = """
def anonymous():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024

def mapped():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssFile"):
                return int(line.split()[1]) * 1024
"""

LARGE = (
    ANONYMOUS
    + """
import sys, pyrocketstore
def used():
    return anonymous() + mapped()
before = used()
for read_only in (True, False):
    with pyrocketstore.open(sys.argv[1], read_only=read_only) as store:
        assert store.message_store.get_max_phy_offset() > 99 << 30
        assert store.max_offset("t") == 100, store.max_offset("t")
        assert store.get(37 << 30).body == b"37"
        print(used() - before)
"""
)

PUTS = (
    ANONYMOUS
    + """
import sys, pyrocketstore
sizes = dict(mapped_file_size_commit_log=1 << 24, max_hash_slot_num=10000, max_index_num=40000)
with pyrocketstore.open(sys.argv[1], **sizes) as store:
    def work(how):
        for i in range(0, 60_000, 1 if how == "put" else 1000):
            if how == "put":
                store.put("t", b"x" * 1024, queue_id=i % 4, tags="a", keys=f"k{i}")
            elif how == "put_many":
                store.put_many("t", [b"x" * 1024] * 1000, keys=[f"k{i}"] * 1000)
            else:
                for _ in range(10):
                    store.put_batch("t", [{"body": b"x" * 1024, "keys": "a"}] * 100)
        store.wait_dispatched()
    for how in ("put", "put_many", "put_batch"):
        work(how)
        before = anonymous()
        work(how)
        print(anonymous() - before)
"""
)


def numbers_of(code: str, path: Path) -> list[int]:
    """The output of the child."""
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr
    return [int(line) for line in child.stdout.split()]


def test_a_store_of_100_gib_takes_address_space_only(tmp_path: Path) -> None:
    """Method: a hundred sparse files of 1 GiB, each one record and the BLANK behind it."""
    log = tmp_path / "commitlog"
    log.mkdir()
    for number in range(100):
        record = oracle.Record(
            topic=b"t",
            body=str(number).encode(),
            queue_offset=number,
            phy_offset=number * GIB,
            store_timestamp=1_700_000_000_000 + number,
        )
        data = oracle.encode_record(record)
        with (log / f"{number * GIB:020d}").open("wb") as file:
            file.write(data + struct.pack(">ii", GIB - len(data), oracle.BLANK_MAGIC))
            file.truncate(GIB)
    for grown in numbers_of(LARGE, tmp_path):
        assert grown < 64 << 20, grown


def test_a_put_allocates_nothing_that_grows(tmp_path: Path) -> None:
    """Method: what 60,000 messages add after 60,000 others, 16 MiB files rolled meanwhile."""
    for grown in numbers_of(PUTS, tmp_path):
        assert grown < 4 << 20, grown
