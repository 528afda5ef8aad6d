"""Goal: no byte is stored without room on the device, nothing counts as flushed without an fsync,
and no mapping is dropped while it is visible.
Method: a bytearray as oracle, faults in every system call, real files, and a full device."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrocketstore.errors import StoreCorruptionError, StoreIOError, StoreStateError
from pyrocketstore.files._mapped_file import OS_PAGE_SIZE, MappedFile, SelectMappedBufferResult
from pyrocketstore.system.env import Env
from support.broken_env import broken, failing, watched

SIZE = 1 << 20
NAME = "00000000000001048576"


@pytest.fixture
def env() -> Env:
    return Env()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / NAME)


def mapped_count(path: str) -> int:
    with open("/proc/self/maps") as maps:
        return sum(path in line for line in maps)


def open_count(path: str) -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}") == path
        except OSError:
            continue
    return count


# ---- making and opening -------------------------------------------------------------------------
def test_a_created_file_has_its_full_length_and_a_forced_name(env, path):
    with watched(env, "fsync_directory") as forced, watched(env, "mmap") as mapped:
        file = MappedFile(env, path, SIZE, create=True)
    assert [args[0] for args in forced] == [os.fsencode(os.path.dirname(path))]
    assert mapped == []
    assert file.created
    assert os.stat(path).st_size == SIZE
    assert os.stat(path).st_blocks == 0, "sparse"
    assert file.file_from_offset == 1048576
    assert (file.wrote, file.committed, file.flushed, file.confirmed) == (0, 0, 0, 0)
    assert file.append_message(b"abc")
    assert mapped_count(path) == 1
    assert open_count(path) == 0, "no descriptor is kept"
    again = MappedFile(env, path, SIZE, create=True)
    assert not again.created
    assert again.read(0, 4) == b"abc\0"


@pytest.mark.parametrize(
    "call", ["open", "open_unnamed", "ftruncate", "link_unnamed", "fdatasync", "fsync_directory"]
)
def test_a_file_that_cannot_be_made_is_not_left(env, path, call):
    with failing(env, call, errno.ENOSPC), pytest.raises(StoreIOError) as caught:
        MappedFile(env, path, SIZE, create=True)
    assert caught.value.operation == call.removesuffix("_unnamed")
    assert not os.path.exists(path)
    assert MappedFile(env, path, SIZE, create=True).created


def test_a_file_of_another_length_is_refused(env, path):
    with pytest.raises(StoreIOError) as missing:
        MappedFile(env, path, SIZE)
    assert missing.value.errno == errno.ENOENT
    Path(path).write_bytes(b"x" * 10)
    for mode in ("shared", "read"):
        with pytest.raises(StoreCorruptionError, match="has 10 bytes"):
            MappedFile(env, path, SIZE, mode=mode, create=mode == "shared")
    assert os.stat(path).st_size == 10


def test_wrong_arguments(env, path):
    with pytest.raises(ValueError, match="mode"):
        MappedFile(env, path, SIZE, mode="private")
    with pytest.raises(ValueError, match="positive"):
        MappedFile(env, path, 0)
    with pytest.raises(ValueError, match="path must not be None"):
        MappedFile(env, None, SIZE)
    with pytest.raises(ValueError, match="not an offset"):
        MappedFile(env, path + "x", SIZE, create=True)
    with pytest.raises(TypeError):
        SelectMappedBufferResult()
    file = MappedFile(env, path, SIZE, create=True)
    for position in (-1, SIZE + 1):
        with pytest.raises(ValueError, match="must be 0 to"):
            file.wrote = position
        with pytest.raises(ValueError, match="must be 0 to"):
            file.zero_tail(position)
    with pytest.raises(ValueError, match="must be in"):
        file.append_message(b"abc", 2, 2)
    with pytest.raises(TypeError):
        pickle.dumps(file)
    assert NAME in repr(file)


# ---- appends and allocation ---------------------------------------------------------------------
def test_stores_only_follow_allocation(env, path):
    file = MappedFile(env, path, SIZE, create=True, confirm_step=100_000)
    with watched(env, "fallocate") as calls:
        assert file.append_message(b"x" * 10)
        assert file.append_message(b"y" * 10)
    assert [args[1:] for args in calls] == [(0, 102_400)]
    assert file.confirmed == 102_400
    with watched(env, "fallocate") as calls:
        assert file.append_message(b"z" * 200_000)
    assert [args[1:] for args in calls] == [(102_400, 303_104 - 102_400)]
    assert os.stat(path).st_blocks * 512 >= 200_020
    file.append_message(b"w" * (SIZE - 200_020))
    assert file.confirmed == SIZE
    assert file.is_full()
    assert file.append_message(b"") is True
    assert file.append_message(b"x") is False


def test_no_room_is_an_error_and_moves_nothing(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    with failing(env, "fallocate", errno.ENOSPC), pytest.raises(StoreIOError) as caught:
        file.append_message(b"x")
    assert (caught.value.errno, caught.value.operation) == (errno.ENOSPC, "fallocate")
    assert (file.wrote, file.confirmed) == (0, 0)
    with failing(env, "open", errno.EMFILE), pytest.raises(StoreIOError):
        file.append_message(b"x")
    with failing(env, "mmap", errno.ENOMEM), pytest.raises(StoreIOError) as caught:
        MappedFile(env, path, SIZE).append_message(b"x")
    assert caught.value.operation == "mmap"
    assert file.append_message(b"x")


def test_the_last_pages_of_a_device_are_used(env, path):
    """Where a whole step does not fit, what is needed may."""
    file = MappedFile(env, path, SIZE, create=True)

    def little_room(fallocate, fd, position, size):
        return fallocate(fd, position, size) if position + size <= 8192 else -errno.ENOSPC

    with broken(env, "fallocate", little_room):
        assert file.append_message(b"x" * 5000)
        assert file.confirmed == 8192
        assert file.append_message(b"x" * 3192)
        with pytest.raises(StoreIOError):
            file.append_message(b"x")


FULL = """
import sys
from pyrocketstore.system.env import Env
from pyrocketstore.errors import StoreIOError
from pyrocketstore.files._mapped_file import MappedFile
file = MappedFile(Env(), sys.argv[1] + "/0", 4 << 20, create=True)
try:
    for _ in range(4 << 10):
        file.append_message(b"x" * 1024)
except StoreIOError as error:
    sys.exit(0 if error.errno == 28 and file.wrote >= 512 << 10 else 3)
sys.exit(4)
"""


def test_a_full_device_does_not_kill(tmp_path):
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL]
    try:
        mount = 'mount -t tmpfs -o size=1m none "$1"'
        probe = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path)]
        able = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("needs the right to mount a small tmpfs")
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", [0, 1, 4095, 5000])
def test_a_file_system_without_fallocate(env, path, start):
    """Existing bytes stay, and every page is written before it is stored to."""
    content = random.Random(start).randbytes(start)
    with open(path, "wb") as raw:
        raw.write(content)
        raw.truncate(SIZE)
    file = MappedFile(env, path, SIZE)
    file.set_positions(start)
    with failing(env, "fallocate", errno.EOPNOTSUPP), watched(env, "pwrite") as writes:
        assert file.append_message(b"hello")
        assert file.append_message(b"x" * 300_000)
    assert writes[0][3] == start // OS_PAGE_SIZE * OS_PAGE_SIZE
    assert file.confirmed >= file.wrote
    covered = sorted((args[3], args[3] + args[2]) for args in writes)
    assert covered[0][0] <= start
    assert all(after[0] <= before[1] for before, after in itertools.pairwise(covered))
    assert covered[-1][1] >= file.confirmed
    want = content + b"hello" + b"x" * 300_000
    assert Path(path).read_bytes() == want.ljust(SIZE, b"\0")
    short = MappedFile(env, path, SIZE)
    short.set_positions(start)
    with (
        failing(env, "fallocate", errno.EOPNOTSUPP),
        broken(env, "pwrite", lambda pwrite, fd, p, n, at: pwrite(fd, p, (n + 1) // 2, at)),
    ):
        assert short.append_message(b"HELLO")
    assert Path(path).read_bytes()[: start + 5] == content + b"HELLO"
    full = MappedFile(env, path, SIZE)
    full.set_positions(start)
    with (
        failing(env, "fallocate", errno.EOPNOTSUPP),
        failing(env, "pwrite", errno.ENOSPC),
        pytest.raises(StoreIOError) as caught,
    ):
        full.append_message(b"x")
    assert caught.value.errno == errno.ENOSPC
    assert full.wrote == start


def test_allocating_without_fallocate_never_undoes_a_store(env, path):
    """Bytes are written back over themselves ahead of a writer that continues meanwhile."""
    file = MappedFile(env, path, SIZE, create=True, confirm_step=4096)
    want = b"first"

    def store_meanwhile(pread, *args):
        nonlocal want
        got = pread(*args)
        room = min(100, file.confirmed - file.wrote)
        assert file.append_message(b"m" * room)
        want += b"m" * room
        return got

    with failing(env, "fallocate", errno.EOPNOTSUPP):
        assert file.append_message(want)
        for _ in range(10):
            with broken(env, "pread", store_meanwhile) as calls:
                file.keep_ahead(20_000)
            assert file.append_message(b"." * 10_000)
            want += b"." * 10_000
            assert calls
    assert len(want) > 100_100
    assert file.read(0, len(want) + 1) == want + b"\0"


def test_a_writer_and_an_allocator_without_fallocate(env, path):
    file = MappedFile(env, path, SIZE, create=True, confirm_step=4096)
    stop = threading.Event()

    def ahead() -> None:
        while not stop.is_set():
            file.keep_ahead(20_000)

    with failing(env, "fallocate", errno.EOPNOTSUPP):
        thread = threading.Thread(target=ahead)
        thread.start()
        want = bytearray()
        rng = random.Random(1)
        for _ in range(1500):
            piece = rng.randbytes(rng.randrange(1, 600))
            assert file.append_message(piece)
            want += piece
        stop.set()
        thread.join()
    assert file.read(0, len(want)) == want


def test_zeroed_files_are_written_ahead_and_never_over_a_store(env, path):
    """Goal: what is allocated is written as zeros, behind the last store only."""
    file = MappedFile(env, path, SIZE, create=True, confirm_step=8192, zero_fill="pages")
    with watched(env, "pwrite") as written:
        assert file.append_message(b"x" * 5000)
    at = [position for _, _, _, position in written]
    assert at == list(range(0, file.confirmed, OS_PAGE_SIZE))
    assert {size for _, _, size, _ in written} == {OS_PAGE_SIZE}
    want = Path(path).read_bytes()
    assert want == (b"x" * 5000).ljust(SIZE, b"\0")
    again = MappedFile(env, path, SIZE, confirm_step=8192, zero_fill="pages")
    again.set_positions(5000)
    with watched(env, "pwrite") as written, watched(env, "fdatasync") as forced:
        again.keep_ahead(8192)
    assert min(position for _, _, _, position in written) == 8192
    assert len(forced) == 1
    assert Path(path).read_bytes() == want
    with failing(env, "pwrite", errno.EIO):  # it is allocated all the same
        assert again.append_message(b"y" * 100_000)
    assert Path(path).read_bytes() == (b"x" * 5000 + b"y" * 100_000).ljust(SIZE, b"\0")
    with failing(env, "fallocate", errno.ENOSPC), pytest.raises(StoreIOError):
        again.confirm_to(SIZE)
    with failing(env, "fdatasync", errno.EIO), pytest.raises(StoreIOError):
        again.keep_ahead(SIZE // 2)


@pytest.mark.parametrize("zero_fill", ["pages", "folios"])
def test_a_writer_and_one_who_writes_zeros_ahead_of_it(env, path, zero_fill):
    """Goal: no store is lost to a zero. Method: both go at once, through the same places."""
    file = MappedFile(env, path, 1 << 22, create=True, confirm_step=4096, zero_fill=zero_fill)
    stop = threading.Event()

    def keep_ahead():
        while not stop.is_set():
            if zero_fill == "pages":
                file.keep_ahead(8192, 4096)
            else:
                file.fill_ahead(8192)

    helper = threading.Thread(target=keep_ahead)
    helper.start()
    want = b""
    for i in range(3000):
        piece = b"%d" % (i % 9 + 1) * (1 + i % 1300)
        assert file.append_message(piece)
        want += piece
    stop.set()
    helper.join()
    assert file.read(0, len(want) + 1) == want + b"\0"


def test_keep_ahead_allocates_and_touches(env, path):
    file = MappedFile(env, path, SIZE, create=True, confirm_step=0)
    file.append_message(b"x" * 5000)
    with watched(env, "madvise") as calls:
        file.keep_ahead(200_000, populate=100_000)
        file.keep_ahead(200_000, populate=100_000)
    assert 205_000 <= file.confirmed < 210_000
    assert 100_000 <= sum(args[1] for args in calls) < 110_000
    assert {args[2] for args in calls} == {23}
    with failing(env, "madvise", errno.EINVAL):  # an old kernel
        file.keep_ahead(300_000, populate=300_000)
    file.keep_ahead(SIZE, populate=SIZE)
    assert file.confirmed == SIZE
    file.set_positions(0)
    with failing(env, "fallocate", errno.ENOSPC), pytest.raises(StoreIOError):
        file.keep_ahead(SIZE)
    file.destroy()
    file.keep_ahead(SIZE)
    file.confirm_to(0)


def test_going_back_gives_up_what_was_confirmed(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.set_positions(SIZE)
    file.confirm_to(SIZE)
    assert file.confirmed == SIZE
    file.set_positions(10_000)
    assert file.confirmed == 10_000
    with watched(env, "fallocate") as calls:
        file.append_message(b"x")
    assert calls[0][1] <= 10_000


# ---- flushing -----------------------------------------------------------------------------------
def test_flush_forces_the_dirty_pages_and_no_more(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    with watched(env, "msync") as calls:
        assert file.flush(0) == 0
        file.append_message(b"x" * 5000)
        assert file.flush(2) == 0, "one page boundary was passed"
        assert file.flush(1) == 5000
        file.append_message(b"x" * 10)
        assert file.flush(0) == 5010
        assert file.flush(0) == 5010
        file.append_message(b"x" * (SIZE - 5010))
        assert file.flush(10_000) == SIZE, "a full file is always able"
    assert [args[1] for args in calls] == [5000, 5010 - 4096, SIZE - 4096]


def test_a_failed_msync_moves_nothing(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.append_message(b"x" * 100)
    with failing(env, "msync", errno.EIO), pytest.raises(StoreIOError) as caught:
        file.flush(0)
    assert (caught.value.errno, caught.value.path) == (errno.EIO, path)
    assert file.flushed == 0
    assert file.flush(0) == 100


def test_flush_of_an_unmapped_file_syncs_it(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.append_message(b"x" * 100)
    assert file.unmap_idle()
    assert not file.is_mapped
    with failing(env, "fdatasync", errno.EIO), pytest.raises(StoreIOError):
        file.flush(0)
    assert file.flushed == 0
    with watched(env, "fdatasync") as synced, watched(env, "msync") as forced:
        assert file.flush(0) == 100
    assert (len(synced), len(forced)) == (1, 0)
    assert open_count(path) == 0
    file.append_message(b"y")
    file.shutdown()
    assert file.flush(0) == 100, "an unavailable file does not claim to be flushed"


@given(st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 5)), max_size=40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_able_to_flush_is_javas_rule(steps):
    file = MappedFile(Env(), None, SIZE, mode="memory", file_from_offset=0)
    wrote = flushed = 0
    for size, pages in steps:
        if file.append_message(b"x" * size):
            wrote += size
        full = wrote == SIZE
        able = wrote // 4096 - flushed // 4096 >= pages if pages else wrote > flushed
        if full or able:
            flushed = wrote
        assert file.flush(pages) == flushed
        assert file.flushed == flushed
        assert file.wrote == file.get_read_position() == wrote


# ---- reading ------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["shared", "memory", "read"])
def test_select_mapped_buffer_bounds(env, path, mode):
    Path(path).write_bytes(bytes(range(256)) * (SIZE // 256))
    file = MappedFile(env, path, SIZE, mode=mode)
    file.set_positions(1000)
    for position, size in ((0, 0), (0, 1000), (1000, 0), (7, 900), (999, 1), (5, None)):
        result = file.select_mapped_buffer(position, size)
        assert result is not None
        want = 1000 - position if size is None else size
        assert (result.start_offset, result.size, len(result)) == (SIZE + position, want, want)
        assert result.mapped_file is file
        with result:
            assert bytes(result.byte_buffer) == file.read(position, want)
    for position, size in (
        (-1, 1), (0, -1), (0, 1001), (1001, 0), (1000, None), (-1, None), (1, 1000),
        (0, 1 << 80), (1, (1 << 63) - 1), ((1 << 63) - 1, 1), ((1 << 63) - 1, None),
    ):  # fmt: skip
        assert file.select_mapped_buffer(position, size) is None
    file.shutdown()
    assert file.select_mapped_buffer(0, 1) is None
    assert file.is_cleanup_over()


def test_a_view_is_read_only_and_outlives_release_and_file(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.append_message(b"0123456789")
    result = file.select_mapped_buffer(2, 5)
    buffer = result.byte_buffer
    assert buffer.readonly
    with pytest.raises(TypeError):
        buffer[0] = 1
    part = buffer[1:3]
    result.release()
    result.release()
    with pytest.raises(StoreStateError, match="released"):
        memoryview(result)
    assert file.destroy(0)
    assert not os.path.exists(path)
    assert file.is_mapped
    del file, result, buffer
    gc.collect()
    assert mapped_count(path) == 1
    assert bytes(part) == b"34"
    del part
    gc.collect()
    assert mapped_count(path) == 0


def test_a_forgotten_view_gives_its_hold_back(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.append_message(b"0123456789")
    for _ in range(10):
        file.select_mapped_buffer(0)
    with file.select_mapped_buffer(0):
        assert not file.unmap_idle()
    assert file.unmap_idle()
    with pytest.raises(StoreStateError, match="more often"):
        file.release()


def test_hold_counts(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    assert not file.is_mapped
    assert file.hold()
    assert file.hold()
    assert file.is_mapped
    assert file.is_available()
    assert file.destroy(0)
    assert not file.is_available()
    assert not os.path.exists(path)
    assert file.hold() is False
    file.release()
    assert file.is_mapped
    assert not file.is_cleanup_over()
    file.release()
    assert not file.is_mapped
    assert file.is_cleanup_over()
    assert file.destroy(0)
    with pytest.raises(StoreStateError, match="not available"):
        file.append_message(b"x")


def test_a_hold_that_cannot_map_leaves_no_hold(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    with failing(env, "mmap", errno.ENOMEM), pytest.raises(StoreIOError):
        file.hold()
    with pytest.raises(StoreStateError, match="more often"):
        file.release()
    assert file.hold()


def test_destroy_that_fails_can_be_tried_again(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    with failing(env, "unlink", errno.EIO), pytest.raises(StoreIOError):
        file.destroy(0)
    assert not file.is_available()
    assert os.path.exists(path)
    assert file.destroy(0)
    assert not os.path.exists(path)
    gone = MappedFile(env, path, SIZE, create=True)
    os.unlink(path)
    assert gone.destroy(0)


def test_threads_mapping_and_unmapping_see_one_file(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.append_message(b"abc" * 1000)
    failures: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(400):
            position = rng.randrange(0, 1000) * 3
            with file.select_mapped_buffer(position, 3) as view:
                if bytes(view.byte_buffer) != b"abc":
                    failures.append(position)
            file.unmap_idle()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    file.unmap_idle()
    assert mapped_count(path) == 0


def test_read_says_what_is_missing(env, path):
    Path(path).write_bytes(b"x" * SIZE)
    file = MappedFile(env, path, SIZE, mode="read")
    assert file.read(SIZE - 1, 1) == b"x"
    for position, size in ((0, SIZE + 1), (-1, 1), (SIZE, 1), (5, -1)):
        with pytest.raises(StoreCorruptionError):
            file.read(position, size)
    os.truncate(path, 1000)
    file.set_positions(SIZE)
    with pytest.raises(StoreCorruptionError, match="ends after 990 of 2000") as caught:
        file.read(10, 2000)
    assert (caught.value.path, caught.value.position) == (path, 10)
    with pytest.raises(StoreCorruptionError):
        file.select_mapped_buffer(500, 1000)
    with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError) as failed:
        file.read(10, 20)
    assert (failed.value.errno, failed.value.position) == (errno.EIO, 10)
    assert not file.is_mapped
    file.shutdown()
    assert file.is_cleanup_over(), "a view that failed holds nothing"


# ---- modes that leave the disk alone ------------------------------------------------------------
@pytest.mark.parametrize("mode", ["read", "memory"])
def test_reading_modes_write_create_and_delete_nothing(env, path, mode):
    Path(path).write_bytes(b"a" * SIZE)
    os.chmod(path, 0o444)
    before = os.stat(path)
    flags: list[int] = []
    with broken(env, "open", lambda original, p, f, m: (flags.append(f), original(p, f, m))[1]):
        file = MappedFile(env, path, SIZE, mode=mode)
        file.set_positions(3000)
        if mode == "read":
            for call in (
                lambda: file.append_message(b"b"),
                lambda: file.zero_tail(1),
                lambda: file.confirm_to(1),
            ):
                with pytest.raises(StoreStateError, match="reading only"):
                    call()
            file.to_memory()
            with pytest.raises(StoreStateError, match="only a read file"):
                file.to_memory()
        assert file.mode == "memory"
        file.append_message(b"b" * 3000)
        assert file.flush(0) == 6000
        assert file.read(2999, 3002) == b"a" + b"b" * 3000 + b"\0"
        file.zero_tail(3500)
        assert file.read(3499, 3) == b"b\0\0"
        assert not file.unmap_idle(), "memory has no other copy"
        assert abs(file.last_modified_ms() - before.st_mtime * 1000) < 2
        file.destroy(0)
    assert all(flag & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0 for flag in flags)
    after = os.stat(path)
    assert (after.st_mtime_ns, after.st_blocks) == (before.st_mtime_ns, before.st_blocks)
    assert Path(path).read_bytes() == b"a" * SIZE


def test_memory_mode_starts_as_the_written_part_of_the_file(env, path):
    Path(path).write_bytes(b"abcdef".ljust(SIZE, b"!"))
    file = MappedFile(env, path, SIZE, mode="memory")
    file.set_positions(4)
    assert file.read(0, 8) == b"abcd\0\0\0\0"
    file = MappedFile(env, path, SIZE, mode="memory")
    file.set_positions(SIZE)
    file.zero_tail(2)
    assert file.read(0, 4) == b"ab\0\0"
    held = MappedFile(env, path, SIZE, mode="read")
    held.set_positions(3)
    assert held.hold()
    view = held.select_mapped_buffer(0)
    assert not held.is_mapped
    held.to_memory()
    assert held.is_mapped
    assert bytes(view.byte_buffer) == b"abc"
    view.release()
    held.release()
    fresh = MappedFile(env, path + "9", SIZE, mode="memory", create=True)
    assert fresh.append_message(b"x" * 10)
    assert fresh.last_modified_ms() > 0
    assert not os.path.exists(path + "9")


def test_memory_mode_when_the_file_was_cut_meanwhile(env, path):
    Path(path).write_bytes(b"a" * SIZE)
    file = MappedFile(env, path, SIZE, mode="memory")
    file.set_positions(SIZE)
    os.truncate(path, 100)
    with pytest.raises(StoreCorruptionError, match="ends before"):
        file.read(0, 1)
    with failing(env, "pread", errno.EIO), pytest.raises(StoreIOError):
        file.read(0, 1)


# ---- the tail -----------------------------------------------------------------------------------
@pytest.mark.parametrize("position", [0, 1, 4096, 5000, SIZE - 1, SIZE])
@pytest.mark.parametrize("punch", ["punched", "written", "short"])
@pytest.mark.parametrize("filled", [SIZE, 6000])
def test_zero_tail(env, path, position, punch, filled):
    content = bytes(i % 255 + 1 for i in range(filled)).ljust(SIZE, b"\0")
    Path(path).write_bytes(content)
    os.truncate(path, filled)
    os.truncate(path, SIZE)
    file = MappedFile(env, path, SIZE)
    file.set_positions(SIZE)
    file.hold()
    file.confirm_to(SIZE)

    def tail() -> None:
        if punch == "punched":
            file.zero_tail(position)
            return
        short = (
            (lambda pwrite, fd, p, n, at: pwrite(fd, p, (n + 2) // 3, at))
            if (punch == "short")
            else (lambda pwrite, *args: pwrite(*args))
        )
        with failing(env, "punch", errno.EOPNOTSUPP), broken(env, "pwrite", short):
            file.zero_tail(position)

    with watched(env, "fdatasync") as forced:
        tail()
    want = content[:position].ljust(SIZE, b"\0")
    assert Path(path).read_bytes() == want
    assert file.read(0, SIZE) == want, "the mapping sees it too"
    assert file.confirmed <= position or position == SIZE
    assert len(forced) == (1 if position < SIZE else 0), "what a killed process zeroed, too"
    with watched(env, "punch") as again:
        tail()
    assert (len(again) == 0) or filled == SIZE
    file.set_positions(position)
    if position < SIZE:
        assert file.append_message(b"n")
        assert file.read(position, 2 if position + 2 <= SIZE else 1)[:1] == b"n"
    file.release()


def test_zero_tail_that_fails_raises(env, path):
    Path(path).write_bytes(b"x" * SIZE)
    file = MappedFile(env, path, SIZE)
    for call in ("punch", "fdatasync", "open"):
        with failing(env, call, errno.EIO), pytest.raises(StoreIOError):
            file.zero_tail(10)
        Path(path).write_bytes(b"x" * SIZE)


# ---- the model ----------------------------------------------------------------------------------
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 9000)),
    st.tuples(st.just("cut"), st.integers(0, 40_000)),
    st.tuples(st.just("flush"), st.integers(0, 3)),
    st.tuples(st.just("unmap"), st.just(0)),
    st.tuples(st.just("ahead"), st.integers(0, 30_000)),
    st.tuples(st.just("reopen"), st.just(0)),
)


@pytest.mark.parametrize("fallocate", [0, errno.EOPNOTSUPP])
def test_a_file_is_a_bytearray(tmp_path_factory, fallocate):
    size = 40_000
    rng = random.Random(5)

    @given(st.lists(STEP, max_size=25))
    @settings(max_examples=40, deadline=None, derandomize=True)
    def run(steps):
        env = Env()
        path = str(tmp_path_factory.mktemp("model") / "0")
        file = MappedFile(env, path, size, create=True, confirm_step=4096, populate=4096)
        want = bytearray()
        fault = failing if fallocate else lambda env, name, code: watched(env, name)
        with fault(env, "fallocate", fallocate):
            for name, n in steps:
                if name == "append":
                    data = rng.randbytes(n)
                    assert file.append_message(data) is (len(want) + n <= size)
                    if len(want) + n <= size:
                        want += data
                elif name == "cut" and n <= len(want):
                    file.set_positions(n)
                    file.zero_tail(n)
                    del want[n:]
                elif name == "flush":
                    assert file.flush(n) <= len(want)
                elif name == "unmap":
                    file.unmap_idle()
                elif name == "ahead":
                    file.keep_ahead(n, n)
                elif name == "reopen":
                    file = MappedFile(env, path, size)
                    file.set_positions(len(want))
                assert file.wrote == len(want)
                assert file.flushed <= file.wrote
        assert file.read(0, size) == bytes(want).ljust(size, b"\0")
        assert Path(path).read_bytes() == bytes(want).ljust(size, b"\0")

    run()


# ---- forks, and many files ----------------------------------------------------------------------
def test_a_forked_child_touches_nothing(env, path):
    file = MappedFile(env, path, SIZE, create=True)
    file.append_message(b"parent")
    view = file.select_mapped_buffer(0)
    child = os.fork()
    if child == 0:
        status = 9
        try:
            del file, view
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(view.byte_buffer) == b"parent"
    assert os.path.exists(path)
    assert file.append_message(b"!")
    assert file.flush(0) == 7


def test_files_that_are_not_used_cost_no_mapping_and_no_descriptor(env, tmp_path):
    descriptors = len(os.listdir("/proc/self/fd"))
    files = [
        MappedFile(env, str(tmp_path / f"{i * SIZE:020d}"), SIZE, create=True) for i in range(50)
    ]
    assert mapped_count(str(tmp_path)) == 0
    for file in files:
        file.append_message(b"x")
    assert mapped_count(str(tmp_path)) == 50
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert sum(file.unmap_idle() for file in files) == 50
    assert mapped_count(str(tmp_path)) == 0
    assert all(file.read(0, 1) == b"x" for file in files)
    assert mapped_count(str(tmp_path)) == 0


def test_only_what_is_in_memory_is_overwritten(tmp_path):
    path = tmp_path / ("0" * 20)
    path.write_bytes(b"x" * SIZE)
    file = MappedFile(Env(), path, SIZE, mode="read")
    file.wrote = 100
    with pytest.raises(StoreStateError):
        file.overwrite(0, b"ab")
    file.to_memory()
    file.overwrite(40, b"ab")
    file.overwrite(98, b"cd")
    file.overwrite(0, b"")
    for position, data in ((-1, b"a"), (99, b"ab"), (1 << 62, b"a")):
        with pytest.raises(ValueError, match="must be before"):
            file.overwrite(position, data)
    assert file.wrote == 100
    assert file.read(39, 4) == b"xabx" and file.read(97, 3) == b"xcd"
    assert path.read_bytes() == b"x" * SIZE
    file.shutdown()
    with pytest.raises(StoreStateError):
        file.overwrite(0, b"ab")


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_new_file_of_the_path_is_not_read(env, path, is_closed):
    """While a reader opens the path, its file is deleted and a new one is made."""
    file = MappedFile(env, path, SIZE, create=True)
    if is_closed:
        file.shutdown()

    def is_replaced(original, *args):
        file.destroy()
        Path(path).write_bytes(bytes(SIZE))
        return original(*args)

    with broken(env, "open", is_replaced), pytest.raises(StoreIOError) as caught:
        file.read(0, 20)
    assert caught.value.errno == errno.ENOENT
