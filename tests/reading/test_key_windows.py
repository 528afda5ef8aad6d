"""Goal: a query of a window of time looks at few of a key's many entries, and finds exactly the
messages in it, whatever the clock did.
Method: one key in several index files, with clocks that rise, stand, jump and go back; windows of
all kinds are compared with a reading of the whole log, twice each, since the first search learns
the order of a file; the reads of a read-only store are counted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyrocketstore
from pyrocketstore.system.env import Env
from support.broken_env import broken, watched

BEGAN = 1_700_000_000_000
CHUNK = 50
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "max_hash_slot_num": 40,
    "max_index_num": 2500,
}
#: ms between puts of CHUNK messages, repeated
CLOCKS = {
    "rises": [25],
    "stands": [0, 0, 0, 0, 1500],
    "jumps": [1, 1, 1, 60_000],
    "goes back": [30, 30, 30, 30, 30, 30, -150],
    "goes back once": [20] * 70 + [-900] + [20] * 100,
    "goes back at once": [-5000] + [20] * 200,
    "goes far back": [40] * 60 + [-86_400_000] + [40] * 100,
}


def fill(path: Path, steps: list[int], chunks: int = 150) -> None:
    env, now = Env(), [BEGAN]
    with (
        broken(env, "now_ms", lambda original: now[0]),
        pyrocketstore.open(path, env=env, **SETTINGS) as store,
    ):
        for i in range(chunks):
            keys = ["one" if j % 10 else f"other{j}" for j in range(CHUNK)]
            store.put_many("T", [b"%d" % i] * CHUNK, keys=keys)
            now[0] += steps[i % len(steps)]


def everything(store: pyrocketstore.Store, key: str) -> list[tuple[int, int]]:
    """(store time, physical offset) of each message with a key."""
    return [(m.store_timestamp, m.phy_offset) for m in store.read("T") if m.keys == key]


def windows(times: list[int], dice: random.Random) -> Iterator[tuple[int, int]]:
    low, high = min(times), max(times)
    yield from [(0, low - 1), (low - 5000, low), (high, high + 1), (high + 1, 1 << 62)]
    yield from [(BEGAN, BEGAN), (BEGAN + 1, BEGAN + 999), (0, BEGAN), (10**11, 2**63 - 1)]
    for _ in range(12):
        begin = dice.choice([dice.choice(times), dice.randint(low - 1500, high + 1500)])
        yield begin, begin + dice.choice([0, 1, 999, 1000, 1001, 20_000])
    yield high, high


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_window_has_exactly_its_messages(tmp_path: Path, clock: str) -> None:
    fill(tmp_path / "s", CLOCKS[clock])
    for read_only in (True, False):
        dice = random.Random(7)
        with pyrocketstore.open(tmp_path / "s", read_only=read_only, **SETTINGS) as store:
            assert len(store.message_store.index_service.files) == 4
            for key in ("one", "other0", "none"):
                found = everything(store, key)
                chosen = list(windows([time for time, _ in found] or [BEGAN], dice))
                for begin, end in chosen * 2:
                    wanted = [phy for time, phy in found if begin <= time <= end]
                    for max_num in (3, 1 << 30):
                        messages = store.query("T", key, begin=begin, end=end, max_num=max_num)
                        assert [m.phy_offset for m in messages] == wanted[-max_num:]


def test_a_window_in_a_file_that_grows(tmp_path: Path) -> None:
    """The order that a search has learned does not count for later keys."""
    env, now = Env(), [BEGAN]
    settings = {**SETTINGS, "max_index_num": 20_000}
    with (
        broken(env, "now_ms", lambda original: now[0]),
        pyrocketstore.open(tmp_path / "s", env=env, **settings) as store,
    ):
        for step in (50, 50, 50, -400, 50):
            for _ in range(60):
                store.put_many("T", [b"x"] * CHUNK, keys=["one"] * CHUNK)
                now[0] += step
            found = everything(store, "one")
            for begin in (BEGAN - 30_000, BEGAN, BEGAN + 2000, now[0] - 100):
                wanted = [phy for time, phy in found if begin <= time <= begin + 1500]
                messages = store.query("T", "one", begin=begin, end=begin + 1500, max_num=1 << 30)
                assert [m.phy_offset for m in messages] == wanted


@pytest.mark.parametrize("begin", [BEGAN - 10_000, BEGAN + 100], ids=["before", "inside"])
def test_an_old_window_reads_few_entries(tmp_path: Path, begin: int) -> None:
    fill(tmp_path / "s", CLOCKS["jumps"])
    env = Env()
    with pyrocketstore.open(tmp_path / "s", read_only=True, env=env, **SETTINGS) as store:
        # Nothing is stored in the window itself.
        assert store.query("T", "one", begin=begin, end=begin + 500) == []
        with watched(env, "pread") as reads:
            assert store.query("T", "one", begin=begin, end=begin + 500) == []
        assert len(reads) < 400


def test_a_long_chain_is_read_in_blocks(tmp_path: Path) -> None:
    """Each entry was a read of its own."""
    fill(tmp_path / "s", CLOCKS["goes back"])
    env = Env()
    with pyrocketstore.open(tmp_path / "s", read_only=True, env=env, **SETTINGS) as store:
        with watched(env, "pread") as reads:
            assert store.query("T", "one", begin=BEGAN + 10**6, end=BEGAN + 10**7) == []
        assert len(reads) < 400


def test_a_damaged_time_ends_no_search(tmp_path: Path) -> None:
    """An entry whose time falls makes the order unknown; its messages are found."""
    fill(tmp_path / "s", CLOCKS["rises"])
    path = sorted((tmp_path / "s/index").iterdir())[1]
    data = bytearray(path.read_bytes())
    at = 40 + 4 * 40 + 20 * 1200 + 12
    data[at : at + 4] = (100_000).to_bytes(4, "big")
    path.write_bytes(data)
    with pyrocketstore.open(tmp_path / "s", read_only=True, **SETTINGS) as store:
        found = everything(store, "one")
        for _ in range(2):
            for begin in range(BEGAN, BEGAN + 4000, 333):
                wanted = {phy for time, phy in found if begin <= time <= begin + 300}
                messages = store.query("T", "one", begin=begin, end=begin + 300, max_num=1 << 30)
                got = {m.phy_offset for m in messages}
                assert got <= wanted
                assert len(wanted - got) <= 1
