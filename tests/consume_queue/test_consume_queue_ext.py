"""Goal: an ext address returns its unit or None, for any content of the files.
Method: compare files with plain Python, intact and damaged at every byte."""

from __future__ import annotations

import ctypes
import errno
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyrocketstore
from pyrocketstore.consume_queue import retries
from pyrocketstore.consume_queue._units import MAX_ADDR as COMPILED_MAX_ADDR
from pyrocketstore.consume_queue._units import scan_ext_units
from pyrocketstore.consume_queue.ext import (
    MAX_ADDR,
    MAX_REAL_OFFSET,
    NO_ADDRESS,
    ConsumeQueueExt,
    CqExtUnit,
    decorate,
    is_ext_addr,
    un_decorate,
)
from pyrocketstore.consume_queue.queue import ConsumeQueue
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files.running_flags import RunningFlags
from pyrocketstore.record._text import java_hash
from pyrocketstore.system.env import Env
from support.queues import SIZE, failing, open_queue, poke, request_of, rows_of

HEADER = struct.Struct(">hqqh")
FIRST = -(2**63)


def encode(unit: CqExtUnit) -> bytes:
    bit_map = unit.bit_map or b""
    header = HEADER.pack(20 + len(bit_map), unit.tags_code, unit.msg_store_time, len(bit_map))
    return header + bit_map


def lay_out(units, file_size: int) -> tuple[list[bytes], list[int]]:
    """Whole files and the address of each unit, in plain Python."""
    files, addresses = [b""], []
    for unit in units:
        data = encode(unit)
        if len(data) > file_size - len(files[-1]) - 4:
            files[-1] = (files[-1] + b"\xff\xff").ljust(file_size, b"\0")
            files.append(b"")
        addresses.append(FIRST + (len(files) - 1) * file_size + len(files[-1]))
        files[-1] += data
    return [data.ljust(file_size, b"\0") for data in files], addresses


def open_ext(path: Path, file_size: int = 100, **settings) -> ConsumeQueueExt:
    env = settings.pop("env", None) or Env()
    ext = ConsumeQueueExt("T", 0, str(path), file_size, env, **settings)
    ext.load()
    return ext


def files_of(path: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted((path / "T/0").glob("*"))]


def unit_of(n: int, size: int = 0) -> CqExtUnit:
    return CqExtUnit(n, 1000 + n, bytes([n % 250 + 1] * size) or None)


units = st.lists(
    st.builds(
        CqExtUnit,
        st.integers(-(2**31), 2**62),
        st.integers(0, 2**62),
        st.one_of(st.none(), st.binary(min_size=1, max_size=60)),
    ),
    max_size=12,
)


def test_addresses():
    assert COMPILED_MAX_ADDR == MAX_ADDR == -2147483649
    assert MAX_REAL_OFFSET == 9223372034707292159
    assert decorate(0) == -9223372036854775808
    assert decorate(20) == -9223372036854775788
    assert decorate(decorate(20)) == decorate(20)
    assert un_decorate(decorate(20)) == 20 and un_decorate(7) == 7
    assert is_ext_addr(MAX_ADDR) and not is_ext_addr(MAX_ADDR + 1)
    assert un_decorate(MAX_ADDR) == MAX_REAL_OFFSET


def test_the_vector_of_the_specification(tmp_path):
    # Tag "A", no bit map, files of 100 bytes: four units, then the end mark.
    ext = open_ext(tmp_path)
    addresses = [ext.put(CqExtUnit(0x41, 0x0102030405060708)) for _ in range(5)]
    one = bytes.fromhex("0014 0000000000000041 0102030405060708 0000")
    assert files_of(tmp_path) == [
        (one * 4 + b"\xff\xff").ljust(100, b"\0"),
        one.ljust(100, b"\0"),
    ]
    assert addresses == [FIRST, FIRST + 20, FIRST + 40, FIRST + 60, FIRST + 100]
    assert ext.get_min_address() == FIRST and ext.get_max_address() == FIRST + 120


@settings(max_examples=30, derandomize=True, deadline=None)
@given(units, st.integers(84, 140))
def test_units_come_back_over_many_files(tmp_path_factory, rows, file_size):
    path = tmp_path_factory.mktemp("ext")
    ext = open_ext(path, file_size)
    files, addresses = lay_out(rows, file_size)
    assert [ext.put(row) for row in rows] == addresses
    assert files_of(path) == (files if rows else [])
    for read_only in (False, True):
        again = open_ext(path, file_size, read_only=read_only)
        again.recover()
        assert [again.get(address) for address in addresses] == rows
        assert again.get_max_address() == (addresses[-1] + rows[-1].size if rows else FIRST)


def test_what_is_no_address_gives_nothing(tmp_path):
    ext = open_ext(tmp_path)
    assert ext.get(FIRST) is None
    assert ext.get_max_address() == ext.get_min_address() == FIRST
    ext.put(unit_of(1, 5))
    for address in (0, 1, 5, MAX_ADDR + 1, FIRST + 25, FIRST + 90, FIRST + 100, MAX_ADDR):
        assert ext.get(address) is None


@pytest.mark.parametrize(
    ("size", "bit_map_size"),
    [(30_000, 29_980), (30_000, 5), (61, 41), (25, 6), (25, 32_767), (19, 0), (-1, 0)],
)
def test_a_unit_with_impossible_lengths_gives_nothing(tmp_path, size, bit_map_size):
    ext = open_ext(tmp_path)
    addresses = [ext.put(unit_of(n, 5)) for n in range(3)]
    path = tmp_path / "T/0/00000000000000000000"
    data = path.read_bytes()
    bad = HEADER.pack(size, 1, 1001, bit_map_size)
    path.write_bytes(data[:50] + bad + data[70:])
    assert ext.get(addresses[2]) is None
    assert ext.get(addresses[1]) == unit_of(1, 5)
    ext.truncate_by_max_address(addresses[2])
    assert ext.get_max_address() == addresses[2] + 25, "nothing is cut by a unit that is damaged"


def test_what_has_no_room_has_no_address(tmp_path):
    ext = open_ext(tmp_path)
    assert ext.put(CqExtUnit(1, 2, bytes(77))) == NO_ADDRESS
    assert ext.put(CqExtUnit(1, 2, bytes(76))) == FIRST
    large = open_ext(tmp_path / "large", 100_000)
    assert large.put(CqExtUnit(1, 2, bytes(32748))) == NO_ADDRESS
    assert large.put(CqExtUnit(1, 2, bytes(32747))) == FIRST
    assert large.get(FIRST).bit_map == bytes(32747)


def test_a_failing_device_gives_no_address_and_no_exception(tmp_path):
    env = Env()
    ext = open_ext(tmp_path, env=env)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    full = kind(lambda *_: -errno.ENOSPC)
    env.replace("fallocate", ctypes.cast(full, ctypes.c_void_p).value)
    assert ext.put(unit_of(1)) == NO_ADDRESS
    env.reset()
    assert ext.put(unit_of(2)) == FIRST
    assert ext.get(FIRST) == unit_of(2)


def test_recovery_goes_on_behind_the_last_unit(tmp_path):
    ext = open_ext(tmp_path)
    addresses = [ext.put(unit_of(n, n)) for n in range(11)]
    again = open_ext(tmp_path)
    again.recover()
    assert again.get_max_address() == addresses[-1] + unit_of(10, 10).size
    assert again.put(unit_of(11)) > addresses[-1]
    assert [again.get(address) for address in addresses] == [unit_of(n, n) for n in range(11)]


def test_an_end_mark_without_a_next_file_is_taken_back(tmp_path):
    ext = open_ext(tmp_path)
    for n in range(4):
        ext.put(unit_of(n))
    path = tmp_path / "T/0/00000000000000000000"
    path.write_bytes(path.read_bytes()[:80] + b"\xff\xff" + bytes(18))
    again = open_ext(tmp_path)
    again.recover()
    assert again.get_max_address() == FIRST + 80
    assert again.put(unit_of(9)) == FIRST + 100


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.integers(0, 99), st.integers(0, 255))
def test_a_damaged_byte_hides_units_and_nothing_else(tmp_path_factory, at, value):
    path = tmp_path_factory.mktemp("ext")
    ext = open_ext(path)
    addresses = [ext.put(unit_of(n, n)) for n in range(3)]
    file = path / "T/0/00000000000000000000"
    data = bytearray(file.read_bytes())
    data[at] = value
    file.write_bytes(data)
    again = open_ext(path)
    again.recover()
    assert again.get_max_address() == FIRST + scan_ext_units(bytes(data))
    for n, address in enumerate(addresses):
        start = address - FIRST
        if not start <= at < start + 20 + n and start + 20 + n <= scan_ext_units(bytes(data)):
            assert again.get(address) == unit_of(n, n)
        else:
            again.get(address)
    new = again.put(unit_of(7))
    assert again.get(new) == unit_of(7)
    third = open_ext(path)
    third.recover()
    assert third.get(new) == unit_of(7)


@pytest.mark.parametrize("size", [-1, 0, 1, 2, 19])
def test_a_size_below_the_header_ends_the_walk(size):
    good = encode(unit_of(1, 3))
    bad = struct.pack(">h", size) + bytes(30)
    assert scan_ext_units(good + bad) == len(good)
    assert scan_ext_units(bad) == 0
    for cut in range(len(good)):
        assert scan_ext_units(good + good[:cut]) == len(good)


def test_a_walk_over_more_than_one_piece(tmp_path):
    file_size = (1 << 20) + 50_000
    ext = open_ext(tmp_path, file_size)
    rows = [unit_of(n, 30_000 + n) for n in range(35)]
    addresses = [ext.put(row) for row in rows]
    assert addresses[-1] < FIRST + file_size
    again = open_ext(tmp_path, file_size)
    again.recover()
    assert again.get_max_address() == addresses[-1] + rows[-1].size
    assert again.get(addresses[-1]) == rows[-1]


def test_cutting_by_address(tmp_path):
    ext = open_ext(tmp_path)
    addresses = [ext.put(unit_of(n)) for n in range(12)]
    ext.truncate_by_max_address(NO_ADDRESS)
    ext.truncate_by_max_address(addresses[-1] + 20)
    ext.truncate_by_min_address(NO_ADDRESS)
    assert ext.get(addresses[0]) and ext.get(addresses[-1])
    ext.truncate_by_min_address(addresses[4])
    assert ext.get(addresses[3]) is not None, "a file that ends where the address is stays"
    ext.truncate_by_min_address(addresses[5])
    assert ext.get(addresses[3]) is None and ext.get(addresses[0]) is None
    assert ext.get_min_address() == addresses[4]
    ext.truncate_by_max_address(addresses[5])
    assert ext.get(addresses[5]) == unit_of(5) and ext.get(addresses[6]) is None
    assert ext.get_max_address() == addresses[6]
    assert ext.put(unit_of(20)) == addresses[6]
    assert ext.get(addresses[6]) == unit_of(20)
    ext.truncate_all()
    assert ext.get(addresses[4]) is None
    ext.destroy()
    assert not (tmp_path / "T/0").exists()


def test_cutting_within_the_last_unit_zeroes_the_rest(tmp_path):
    ext = open_ext(tmp_path)
    addresses = [ext.put(unit_of(n)) for n in range(4)]
    ext.truncate_by_max_address(addresses[1])
    assert files_of(tmp_path)[0][40:] == bytes(60)


def test_a_read_only_stream_leaves_the_directory_alone(tmp_path):
    ext = open_ext(tmp_path)
    addresses = [ext.put(unit_of(n)) for n in range(6)]
    ext.flush(0)
    ext.flush(0)
    before = [(p, p.stat().st_mtime_ns) for p in sorted(tmp_path.rglob("*"))], files_of(tmp_path)
    view = open_ext(tmp_path, read_only=True)
    view.recover()
    view.truncate_by_max_address(addresses[4])
    more = [view.put(unit_of(n)) for n in range(5, 12)]
    assert more[0] == addresses[5]
    assert [view.get(address) for address in more] == [unit_of(n) for n in range(5, 12)]
    view.truncate_by_min_address(addresses[5])
    view.destroy()
    after = [(p, p.stat().st_mtime_ns) for p in sorted(tmp_path.rglob("*"))], files_of(tmp_path)
    assert after == before


def test_flush_makes_every_file_durable(tmp_path):
    ext = open_ext(tmp_path)
    for n in range(10):
        ext.put(unit_of(n))
    while not ext.flush(0):
        pass
    assert ext.mapped_file_queue.flushed_where == 240
    assert ext.flush(0)
    ext.check_self()


# ---- with the queue that names the units ---------------------------------------------------------


def with_ext(path: Path, ext_size: int = 100, **settings) -> ConsumeQueue:
    read_only = settings.get("read_only", False)
    ext = ConsumeQueueExt(
        "T", 0, str(path / "consumequeue_ext"), ext_size, Env(), read_only=read_only
    )
    return open_queue(path, ext=ext, **settings)


def test_units_name_their_ext_units(tmp_path):
    queue = with_ext(tmp_path)
    assert queue.core.needs_python
    for n in range(12):
        bit_map = bytes([n] * n) or None
        assert queue.put_message_position_info_wrapper(request_of(n, bit_map=bit_map))
    for checked in (queue, with_ext(tmp_path), with_ext(tmp_path, read_only=True)):
        for n, (phy_offset, _, tags_code) in enumerate(rows_of(checked)):
            assert phy_offset == n * SIZE and checked.is_ext_addr(tags_code)
            unit, code = checked.resolve_tags(tags_code)
            assert (code, unit.msg_store_time, unit.bit_map or b"") == (n, 1000 + n, bytes([n] * n))
    assert queue.resolve_tags(77) == (None, 77)
    assert queue.resolve_tags(MAX_ADDR) == (None, None)


def test_an_ext_unit_that_cannot_be_read_decides_nothing(tmp_path, monkeypatch):
    queue = with_ext(tmp_path)
    assert queue.put_message_position_info_wrapper(request_of(0))

    def fails(address):
        raise StoreIOError(errno.EIO, "pread", "path")

    monkeypatch.setattr(queue.ext, "get", fails)
    assert queue.resolve_tags(rows_of(queue)[0][2]) == (None, None)


def test_a_repeat_makes_no_ext_unit(tmp_path):
    queue = with_ext(tmp_path)
    for n in (0, 1, 1, 0, 2):
        assert queue.put_message_position_info_wrapper(request_of(n))
    assert queue.ext.mapped_file_queue.get_max_offset() == 3 * 20


def test_a_retry_makes_no_second_ext_unit(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "RETRY_INTERVAL_S", 0.0)
    env = Env()
    queue = with_ext(tmp_path, env=env, flags=RunningFlags())
    failing(env, "fallocate", errno.ENOSPC, 3)
    assert queue.put_message_position_info_wrapper(request_of(0))
    assert queue.ext.mapped_file_queue.get_max_offset() == 20


@pytest.mark.parametrize("cut", range(13))
def test_the_ext_is_cut_with_its_queue(tmp_path, cut):
    queue = with_ext(tmp_path)
    for n in range(12):
        assert queue.put_message_position_info_wrapper(request_of(n))
    queue.truncate_dirty_logic_files(cut * SIZE)
    end = (cut - 1) // 4 * 100 + ((cut - 1) % 4 + 1) * 20 if cut else 0
    assert queue.ext.mapped_file_queue.get_max_offset() == end
    for n in range(cut, 14):
        assert queue.put_message_position_info_wrapper(request_of(n))
    again = with_ext(tmp_path)
    assert [again.resolve_tags(row[2])[1] for row in rows_of(again)] == list(range(14))


def test_the_ext_loses_its_head_with_the_queue(tmp_path):
    queue = with_ext(tmp_path)
    for n in range(25):
        assert queue.put_message_position_info_wrapper(request_of(n))
    assert queue.delete_expired_file(1300) == 1
    assert queue.ext.get_min_address() == FIRST + 300
    assert [queue.resolve_tags(row[2])[1] for row in rows_of(queue, 13)] == list(range(13, 25))


def test_recovery_cuts_ext_units_that_nothing_names(tmp_path):
    queue = with_ext(tmp_path)
    for n in range(6):
        assert queue.put_message_position_info_wrapper(request_of(n))
    poke(tmp_path, 4, bytes(20))
    again = with_ext(tmp_path)
    assert again.get_max_offset_in_queue() == 4
    assert again.ext.mapped_file_queue.get_max_offset() == 80


def test_ext_units_follow_those_that_have_no_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill may leave a new queue's ext file without its queue."""
    with pyrocketstore.open(tmp_path, enable_consume_queue_ext=True) as store:
        for i in range(3):
            store.put("t", b"%d" % i, tags="A")
    shutil.rmtree(tmp_path / "consumequeue" / "t")
    with pyrocketstore.open(tmp_path, enable_consume_queue_ext=True) as store:
        store.put("t", b"3", tags="A")
        store.wait_dispatched()
        queue = store.message_store.find_consume_queue("t", 0)
        assert queue.ext is not None
        units = [queue.ext.get(int(code)) for code in queue.read_units(0, 4).tags_code]
        assert [unit is not None and unit.tags_code for unit in units] == [java_hash("A")] * 4
        assert store.verify().ok
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
