"""Goal: the log in memory is walked and searched as the plain reader reads it, and no
bytes make that slow. Method: random records, cut, mutated and nested in bodies, against the
oracle; every place to begin from; bodies that are full of what looks like records."""

from __future__ import annotations

import mmap
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pyrocketstore.commit_log._scan import find_valid_record, status_name, walk_records
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.system.env import Env
from support import oracle

BASE = 1 << 33
STATUS = ("ok", "blank", "end", "torn", "bad_magic", "bad_crc", "bad_size", "bad_offset")
MAGIC = struct.pack(">i", oracle.MESSAGE_MAGIC)
Find = Callable[..., int]


def log_of(rng: random.Random, count: int, tail: bytes = b"") -> tuple[bytes, list[int]]:
    """Records and where they lie."""
    data, places = b"", []
    for _ in range(count):
        v6 = oracle.host("20010db8" + "0" * 23 + "1", 9)
        record = oracle.Record(
            body=rng.randbytes(rng.choice((0, 1, 40, 300))) + rng.choice((b"", MAGIC, b"\xda" * 9)),
            properties=rng.choice((b"", b"TAGS\x01a", b"k\x01" + b"v" * 50)),
            store_host=rng.choice((v6, oracle.host("10.0.0.1", 10911))),
            phy_offset=BASE + len(data),
        )
        places.append(len(data))
        data += oracle.encode_record(record)
    return data + tail, places


def plain_walk(
    data: bytes, position: int, stop: int, end: int | None, check_crc: bool
) -> tuple[list[tuple[int, int]], int, str]:
    rows = []
    limit = 1 << 62 if end is None else end
    while position < min(stop, len(data), limit):
        verdict, size = oracle.check_record(data[position:], BASE + position, check_crc)
        if verdict in ("ok", "torn") and size > limit - position:
            verdict = "bad_size"
        if verdict != "ok":
            return rows, position, verdict
        rows.append((position, size))
        position += size
    return rows, position, "ok"


def may_follow(data: bytes, at: int, end: int) -> bool:
    if at == end or len(data) - at < 8:
        return True
    size, magic = struct.unpack_from(">ii", data, at)
    return magic in (oracle.MESSAGE_MAGIC, oracle.BLANK_MAGIC) or size == magic == 0


def plain_find(data: bytes, position: int, end: int, check_crc: bool = False) -> int:
    """By the rules of the search, each place in turn."""
    for at in range(position, len(data) - 90):
        size, magic = struct.unpack_from(">ii", data, at)
        (place,) = struct.unpack_from(">q", data, at + 28)
        if magic != oracle.MESSAGE_MAGIC or place != BASE + at or not 91 <= size <= end - at:
            continue
        if oracle.check_record(data[at : at + size], BASE + at, False)[0] != "ok":
            continue
        if may_follow(data, at + size, end) and not check_crc:
            return at
        if oracle.check_record(data[at : at + size], BASE + at, True)[0] == "ok":
            return at
    return -1


@pytest.fixture
def find_record(tmp_path: Path) -> Find:
    """The search of find_valid_record in a file with these bytes."""
    path = tmp_path / "searched"

    def find(
        data: bytes, position: int, base: int = BASE, end: int | None = None, crc: bool = False
    ) -> int:
        path.write_bytes(data)
        stop = len(data) if end is None else end
        return find_valid_record(Env(), str(path), base, position, stop, check_crc=crc)

    return find


def walked(
    data: bytes, position: int, stop: int, end: int | None = None, check_crc: bool = False
) -> tuple[list[tuple[int, int]], int, str]:
    positions, sizes, reached, status = walk_records(
        data, position, stop, BASE, end=end, check_crc=check_crc
    )
    assert (positions.dtype, sizes.dtype) == (np.dtype(np.int64), np.dtype(np.int32))
    return list(zip(positions.tolist(), sizes.tolist(), strict=True)), reached, STATUS[status]


TAILS = {"blank": oracle.blank(60), "end": bytes(60), "bad_magic": b"\x7f" * 60, "torn": b"\0\0\1"}


@pytest.mark.parametrize("verdict", TAILS)
def test_what_ends_a_walk(verdict: str) -> None:
    data, places = log_of(random.Random(1), 3, TAILS[verdict])
    rows, reached, status = walked(data, 0, len(data))
    assert [at for at, _ in rows] == places
    assert (data[reached:], status) == (TAILS[verdict], verdict)


def test_the_last_record_goes_on_behind_the_stop() -> None:
    data, places = log_of(random.Random(2), 4)
    for stop in range(len(data) + 1):
        rows, reached, status = walked(data, 0, stop)
        assert [at for at, _ in rows] == [at for at in places if at < stop]
        assert reached == next((at for at in [*places, len(data)] if at >= stop), len(data))
        assert status == "ok"
    assert walked(data, places[2], len(data) + 99)[0] == walked(data, 0, len(data))[0][2:]


def test_a_record_that_is_cut_says_so_with_its_size() -> None:
    data, places = log_of(random.Random(3), 2)
    for cut in range(places[1] + 1, len(data)):
        rows, reached, status = walked(data[:cut], 0, cut)
        assert (len(rows), reached, status) == (1, places[1], "torn")
        assert walked(data[:cut], 0, cut, end=len(data))[2] == "torn"
        if cut - places[1] >= 8:
            size = int.from_bytes(data[reached : reached + 4], "big")
            assert size == len(data) - reached
            assert walked(data[:cut], 0, cut, end=len(data) - 1)[2] == "bad_size"


def test_a_pinned_end() -> None:
    data, places = log_of(random.Random(4), 5)
    rows, reached, status = walked(data, 0, len(data), end=places[3])
    assert ([at for at, _ in rows], reached, status) == (places[:3], places[3], "ok")
    assert walked(data, 0, len(data), end=places[3] - 1)[1:] == (places[2], "bad_size")


def test_the_crc_is_compared_where_it_is_asked_for() -> None:
    data = oracle.encode_record(oracle.Record(body=b"body", phy_offset=BASE, crc=1))
    assert walked(data, 0, len(data)) == ([(0, len(data))], len(data), "ok")
    assert walked(data, 0, len(data), check_crc=True) == ([], 0, "bad_crc")


def test_another_place_of_the_log(find_record: Find) -> None:
    data, _ = log_of(random.Random(5), 2)
    assert STATUS[walk_records(data, 0, len(data), BASE + 1)[3]] == "bad_offset"
    assert find_record(data, 0, BASE + 1) == -1


def mutants(seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(60):
        tail = rng.choice((b"", bytes(40), oracle.blank(40), rng.randbytes(50), MAGIC * 5))
        data = bytearray(log_of(rng, rng.randrange(1, 5), tail)[0])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data))
            data[at : at + rng.choice((1, 4))] = rng.choice((b"\0", b"\xff", MAGIC, b"\x7f\xff"))
        yield bytes(data[: rng.choice((len(data), len(data), rng.randrange(len(data))))])


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", range(8))
def test_damaged_logs_against_the_plain_reader(find_record: Find, seed: int) -> None:
    rng = random.Random(f"asked {seed}")
    for data in mutants(seed):
        size = len(data)
        for _ in range(10):
            position = rng.choice((0, rng.randrange(size + 1)))
            stop = rng.choice((size, size + 50, rng.randrange(size + 1)))
            end = rng.choice((None, size, size + 300, 1 << 40, rng.randrange(size + 1)))
            asked = f"{data.hex()} {position} {stop} {end}"
            for crc in (False, True):
                ours = walked(data, position, stop, end, crc)
                assert ours == plain_walk(data, position, stop, end, crc), asked
                found = find_record(data, position, BASE, end, crc)
                assert found == plain_find(data, position, size if end is None else end, crc), asked


@pytest.mark.bad_input
def test_every_place_to_search_from_finds_the_next_record(find_record: Find) -> None:
    data, places = log_of(random.Random(6), 6, oracle.blank(30))
    for position in range(len(data) + 1):
        wanted = next((at for at in places if at >= position), -1)
        assert find_record(data, position, BASE) == wanted


def test_a_record_in_a_body_is_found_at_its_own_offset_alone(find_record: Find) -> None:
    inner = oracle.encode_record(oracle.Record(body=b"inner", phy_offset=BASE))
    first = oracle.encode_record(oracle.Record(body=b"x" + inner, phy_offset=BASE))
    second = oracle.encode_record(oracle.Record(phy_offset=BASE + len(first)))
    assert find_record(first + second, 1, BASE) == len(first)


def test_a_record_before_damage_is_found_by_its_crc(find_record: Find) -> None:
    good = oracle.encode_record(oracle.Record(body=b"body", phy_offset=BASE + 5))
    data = b"\x01" * 5 + good + b"\x7f" * 40
    assert find_record(data, 0, BASE) == 5
    damaged = data.replace(b"body", b"bodY")
    assert find_record(damaged, 0, BASE) == -1
    assert find_record(damaged[: 5 + len(good)] + bytes(40), 0, BASE) == 5
    assert find_record(damaged[: 5 + len(good)] + bytes(40), 0, BASE, crc=True) == -1
    empty = oracle.encode_record(oracle.Record(phy_offset=BASE, crc=7))  # no sum of no body
    assert find_record(empty + b"\x7f" * 40, 0, BASE) == 0


def test_a_record_that_goes_on_behind_the_end(find_record: Find) -> None:
    data, places = log_of(random.Random(7), 2)
    for cut in range(places[1], len(data)):
        assert find_record(data[:cut], 1, BASE, end=len(data)) == -1
        assert find_record(data, 1, BASE, end=cut) == -1
    assert find_record(data, 1, BASE) == places[1]


@pytest.mark.parametrize("crc", [False, True])
def test_records_longer_than_a_window_and_across_its_end(find_record: Find, crc: bool) -> None:
    for before in (1, (512 << 10) - 100, (512 << 10) - 40, (512 << 10) - 1):
        record = oracle.Record(body=b"x" * (600 << 10), phy_offset=BASE + before)
        data = b"\x7f" * before + oracle.encode_record(record) + b"\x7f" * 50
        assert find_record(data, 0, BASE, crc=crc) == before
        damaged = data.replace(b"xx", b"xy", 1)
        assert find_record(damaged, 0, BASE, crc=crc) == -1
        assert find_record(damaged[:-50] + bytes(50), 0, BASE, crc=crc) == (-1 if crc else before)


def nested_heads(size: int, right_lengths: bool) -> bytes:
    """One record whose body has a head every 91 bytes, each with its own offset, the right lengths
    up to the end of all, and behind that end bytes that are not a record."""
    first = 91
    body_begin = 88
    heads = bytearray()
    while len(heads) < size:
        at = body_begin + len(heads)
        total = body_begin + size + 3 - at if right_lengths else 1 << 24
        head = oracle.HEAD.pack(total, oracle.MESSAGE_MAGIC, 1, 0, 0, 0, BASE + at, 0, 0)
        tail = bytes(36) + struct.pack(">i", total - first)
        heads += head + tail + bytes(3)
    return oracle.encode_record(oracle.Record(b"", bytes(heads[:size]), phy_offset=BASE))


@pytest.mark.bad_input
@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("kind", ["magics", "heads", "records", "da"])
def test_what_looks_like_records_takes_no_longer_than_its_bytes(
    find_record: Find, kind: str, crc: bool
) -> None:
    def made(size: int) -> bytes:
        body = {"magics": MAGIC * (size // 4), "da": b"\xda" * size}.get(kind)
        if body is None:
            return nested_heads(size, kind == "records")
        return oracle.encode_record(oracle.Record(body=body, phy_offset=BASE))

    data = made(16 << 20) + b"\x7f" * 50
    begin = time.process_time()
    found = find_record(data, 1, BASE, len(data) + (1 << 30) if kind == "magics" else None, crc)
    seconds = time.process_time() - begin
    assert found == -1
    assert seconds < 2, "16 MiB take a tenth; with a CRC for each head it would be half a minute"


@pytest.mark.bad_input
@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("is_right", [True, False])
def test_the_search_passes_over_no_record_behind_such_bytes(
    tmp_path: Path, is_right: bool, crc: bool
) -> None:
    data = nested_heads(16 << 20, is_right)
    behind = [BASE + len(data)]
    records = b""
    for _ in range(3):
        records += oracle.encode_record(oracle.Record(body=b"behind", phy_offset=behind[-1]))
        behind.append(BASE + len(data) + len(records))
    path = tmp_path / "log"
    path.write_bytes(data + records + b"\x7f" * 50)
    size = path.stat().st_size
    begin = time.process_time()
    found = find_valid_record(Env(), str(path), BASE, 1, size, check_crc=crc)
    seconds = time.process_time() - begin
    # Without CRCs the first of them counts: its lengths add up, and a record follows it.
    assert found == (88 if is_right and not crc else len(data))
    assert seconds < 2, "16 MiB take a tenth; with a CRC for each head it would be half a minute"


def test_a_mapping_and_a_slice_are_data(tmp_path: Path) -> None:
    data, places = log_of(random.Random(8), 50)
    path = tmp_path / "log"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert walk_records(view, 0, len(data), BASE)[0].tolist() == places
    begin = places[7]
    part = memoryview(data)[begin:]
    assert (walk_records(part, 0, len(part), BASE + begin)[0] + begin).tolist() == places[7:]


def test_more_records_than_there_is_room_for_at_first() -> None:
    record = oracle.Record(body=b"b")
    size = record.size
    data = bytearray()
    for i in range(5000):
        data += oracle.encode_record(oracle.Record(body=b"b", phy_offset=BASE + i * size))
    rows, reached, status = walked(bytes(data), 0, len(data))
    assert rows == [(i * size, size) for i in range(5000)]
    assert (reached, status) == (len(data), "ok")


@pytest.mark.bad_input
def test_positions_that_cannot_be() -> None:
    for position, phy_offset in [(-1, 0), (4, 0), (0, -1), (0, 2**63 - 3)]:
        with pytest.raises(StoreFormatError):
            walk_records(b"abc", position, 3, phy_offset)
    for stop in (-(2**63), -1, 0):
        assert walk_records(b"abc", 0, stop, 0)[2:] == (0, 0)
    assert walk_records(b"", 0, 5, 0)[2:] == (0, 0)
    assert walk_records(b"abc", 0, 3, 0, end=-(2**63))[2:] == (0, 0)
    assert status_name(3)
