"""Goal: no field of a damaged file decides how much memory a reader takes.
Method: each measurement is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyrocketstore

MIB = 1 << 20
LIMIT = 400 * MIB
FILE_SIZE = (1 << 31) - 4096
RECORD_SIZE = FILE_SIZE - 4096


#: Prints the highest resident set of a command. The process that starts the command must be small:
#: the kernel counts its pages, until the command replaces them, as the command's.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stderr=subprocess.STDOUT)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_of(*arguments: str) -> tuple[int, str]:
    """Bytes that a Python process with these arguments had at most, and what it printed."""
    printed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", MEASURE, sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    *lines, kib = printed.splitlines(keepends=True)
    return int(kib) * 1024, "".join(lines)


@pytest.fixture
def store_of_a_large_record(tmp_path: Path) -> Path:
    """A sparse log whose first record claims 2 GiB, and lengths that agree with it."""
    root = tmp_path / "store"
    with pyrocketstore.open(root, mapped_file_size_commit_log=FILE_SIZE) as store:
        store.put("T", b"x")
    units = root / "consumequeue/T/0" / ("0" * 20)
    with open(root / "commitlog" / ("0" * 20), "r+b") as log:
        log.write(RECORD_SIZE.to_bytes(4, "big"))
        log.seek(84)
        log.write((RECORD_SIZE - 92).to_bytes(4, "big"))
        log.seek(RECORD_SIZE - 4)
        log.write(b"\x01T\0\0")
    with open(units, "r+b") as queue:
        queue.seek(8)
        queue.write(RECORD_SIZE.to_bytes(4, "big"))
    return root


READ_ONLY = """
import sys, pyrocketstore
with pyrocketstore.open(sys.argv[1], read_only=True) as store:
    try:
        {}
    except pyrocketstore.StoreError as error:
        print(error)
"""
WITHOUT_MMAP = READ_ONLY.replace("read_only=True", "write_without_mmap=True")


FILE = """
import sys
import numpy as np
from pyrocketstore import StoreError
from pyrocketstore.reading._file_columns import decode_file_records
from pyrocketstore.files._mapped_file import MappedFile
from pyrocketstore.reading._messages import MessageIterator
from pyrocketstore.commit_log._scan import find_valid_record, scan_file, status_name
from pyrocketstore.system.env import Env
path = sys.argv[1] + "/commitlog/" + "0" * 20
size = FILE_SIZE
file = MappedFile(Env(), path, size, mode="read")
file.set_positions(size)
places = np.zeros(1, np.int64), np.full(1, RECORD_SIZE, np.int32)
try:
    {}
except StoreError as error:
    print(error)
""".replace("FILE_SIZE", str(FILE_SIZE)).replace("RECORD_SIZE", str(RECORD_SIZE))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "pyrocketstore", "info", "ROOT"),
        ("-m", "pyrocketstore", "cat", "ROOT", "T"),
        ("-m", "pyrocketstore", "get", "ROOT", "0"),
        ("-m", "pyrocketstore", "verify", "ROOT"),
        ("-c", READ_ONLY.format("list(store.read('T', 0))"), "ROOT"),
        ("-c", READ_ONLY.format("store.read_batch('T', 0, start=0)"), "ROOT"),
        ("-c", WITHOUT_MMAP.format("list(store.read('T', 0))"), "ROOT"),
        ("-c", READ_ONLY.format("pass").replace(", read_only=True", ""), "ROOT"),
        ("-c", FILE.format("decode_file_records(file, *places, ['body'])"), "ROOT"),
        ("-c", FILE.format("list(MessageIterator([(file, *places)], None, None))"), "ROOT"),
        (
            "-c",
            FILE.format("print(find_valid_record(Env(), path, 0, 0, size, check_crc=True))"),
            "ROOT",
        ),
        (
            "-c",
            FILE.format("print(status_name(scan_file(Env(), path, 0, 0, size, True)[0]))"),
            "ROOT",
        ),
    ],
    ids=[
        "info",
        "cat",
        "get",
        "verify",
        "read",
        "read_batch",
        "read_without_mmap",
        "recover",
        "decode_file",
        "iterate",
        "find",
        "scan",
    ],
)
def test_a_size_field_takes_no_memory(
    store_of_a_large_record: Path, arguments: tuple[str, ...]
) -> None:
    root = str(store_of_a_large_record)
    used, printed = peak_of(*(root if each == "ROOT" else each for each in arguments))
    print(used >> 20, printed[-500:])
    assert used < LIMIT, f"{used >> 20} MiB: {printed}"


LARGE = """
import sys, pyrocketstore
from pyrocketstore.record._record import LARGEST_RECORD, check_message
given = dict(max_message_size=80 << 20, mapped_file_size_commit_log=96 << 20)
head = b"".join(((70 << 20).to_bytes(4, "big"), b"\\xda\\xa3\\x20\\xa7", bytes(92)))
before = check_message(head)[0]
with pyrocketstore.open(sys.argv[1], **given) as store:
    store.put("T", bytes(70 << 20))
with pyrocketstore.open(sys.argv[1], **given) as store:
    read = len(list(store.read("T", 0))[0].body)
print(LARGEST_RECORD >> 20, before, check_message(head)[0], read >> 20)
"""


def test_a_setting_raises_the_bound(tmp_path: Path) -> None:
    used, printed = peak_of("-c", LARGE, str(tmp_path / "store"))
    assert printed.split() == ["64", "bad_size", "torn", "70"], f"{used >> 20} MiB: {printed}"


UNKNOWN = """
import sys
import pyrocketstore
root, size = sys.argv[1], 70 << 20
setting = {"max_message_size": 80 << 20} if sys.argv[2] == "write" else {}
store = pyrocketstore.open(root, mapped_file_size_commit_log=128 << 20, **setting)
if sys.argv[2] == "write":
    store.put("T", b"before")
    store.put("T", bytes(range(256)) * (size // 256))
    store.put("T", b"behind")
    store.wait_dispatched()
    import os
    os._exit(0)
print([len(message.body) for message in store.read("T")])
store.close()
"""


def test_a_written_record_beyond_the_bound_survives_an_opening_without_the_setting(
    tmp_path: Path,
) -> None:
    peak_of("-c", UNKNOWN, str(tmp_path / "store"), "write")
    _, printed = peak_of("-c", UNKNOWN, str(tmp_path / "store"), "read")
    assert printed.splitlines()[-1] == f"[6, {70 << 20}, 6]"


COMPRESSED = """
import sys, zlib
import pyrocketstore
from pyrocketstore import MessageExtBrokerInner
with pyrocketstore.open(sys.argv[1]) as store:
    message = MessageExtBrokerInner("T", zlib.compress(bytes(24 << 20)), 0)
    message.sys_flag = 1
    for _ in range(40):
        store.message_store.put_message(message)
with pyrocketstore.open(sys.argv[1], read_only=True) as store:
    at = 0
    while at < 40:
        batch = store.read_batch("T", start=at)
        assert batch.num_rows == 2
        at = int(batch.schema.metadata[b"next_offset"])
print("read")
"""


@pytest.mark.slow
def test_inflated_bodies_take_no_more_than_was_asked_for(tmp_path: Path) -> None:
    used, printed = peak_of("-c", COMPRESSED, str(tmp_path / "store"))
    assert printed == "read\n"
    assert used < 3 * LIMIT // 2, used >> 20


@pytest.mark.parametrize("name", ["checkpoint", "config/topics.json", "broker.conf"])
@pytest.mark.parametrize("command", ["info", "verify", "open", "write"])
def test_a_small_file_is_not_read_whole(tmp_path: Path, name: str, command: str) -> None:
    """4 GiB of zeros where a few bytes belong."""
    root = tmp_path / "store"
    with pyrocketstore.open(root) as store:
        store.put("T", b"x")
    (root / "broker.conf").write_bytes(b"")
    os.truncate(root / name, 1 << 32)
    if command in ("info", "verify"):
        arguments = ["-m", "pyrocketstore", command, str(root)]
        arguments += ["--config", str(root / "broker.conf")] if name == "broker.conf" else []
    else:
        arguments = ["-c", OPEN, command, str(root), str(root / "broker.conf")]
    used, printed = peak_of(*arguments)
    assert used < LIMIT, f"{used >> 20} MiB: {printed}"
    assert "Traceback" not in printed
    if name == "broker.conf" or (name != "checkpoint" and command == "write"):
        assert f"{root / name}: larger than {64 << 20} bytes" in printed


OPEN = """
import sys, pyrocketstore
command, root, conf = sys.argv[1:]
try:
    with pyrocketstore.open(root, config=conf, read_only=command == "open") as store:
        print(len(list(store.read("T"))))
except pyrocketstore.StoreError as error:
    print(error)
"""
