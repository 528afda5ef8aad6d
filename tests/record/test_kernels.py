"""Goal: every CRC-32 kernel and the Java string hash give the right bits for every input.
Method: zlib and plain-Python oracles; every length 0..4096, every alignment 0..63; the C programs
of tests/kernels, which add unreadable pages around the input, sanitizers and an emulated ARM."""

from __future__ import annotations

import codecs
import ctypes
import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrocketstore.record import _message

ROOT = Path(__file__).parent.parent.parent
KERNELS = ["vpclmul_avx512", "vpclmul_avx2", "pclmul", "arm_pmull", "arm_crc", "slice8"]
LENGTH_MAX = 4096
ALIGNMENT_COUNT = 64
SEED = 42

Crc32 = Callable[[int, int, int], int]  # register, address, size


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """csrc's kernels by themselves."""
    target = tmp_path_factory.mktemp("kernels") / "kernels.so"
    sources = [str(ROOT / "csrc" / name) for name in ("crc32.c", "hash.c")]
    command = [compiler(), "-std=c11", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, *sources, "-o", str(target)], check=True)
    loaded = ctypes.CDLL(str(target))
    loaded.rs_crc32_by_name.restype = ctypes.c_void_p
    loaded.rs_crc32_kernels.restype = ctypes.POINTER(ctypes.c_char_p)
    loaded.rs_java_hash_slow.restype = ctypes.c_int32
    loaded.rs_java_hash_slow.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64]
    return loaded


def kernel_of(library: ctypes.CDLL, name: str) -> Crc32:
    address = library.rs_crc32_by_name(name.encode())
    if address is None:
        pytest.skip(f"this processor or build has no {name}")
    signature = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    return signature(address)


@pytest.fixture
def selected() -> Iterator[Callable[[str], None]]:
    """Selects a kernel for the compiled modules; the one before is back afterwards."""
    before = _message.crc32_kernel()

    def select(name: str) -> None:
        if name not in _message.crc32_kernels():
            pytest.skip(f"this processor or build has no {name}")
        _message.select_crc32_kernel(name)
        assert _message.crc32_kernel() == name

    yield select
    _message.select_crc32_kernel(before)


# ---- CRC-32 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_every_length_and_alignment_against_zlib(library: ctypes.CDLL, name: str) -> None:
    run = kernel_of(library, name)
    raw = random.Random(SEED).randbytes(LENGTH_MAX + 2 * ALIGNMENT_COUNT)
    memory = ctypes.create_string_buffer(len(raw) + ALIGNMENT_COUNT)
    base = ctypes.addressof(memory)
    base += -base % ALIGNMENT_COUNT
    ctypes.memmove(base, raw, len(raw))
    for size in range(LENGTH_MAX + 1):
        alignments = range(ALIGNMENT_COUNT) if size < 300 else (size % ALIGNMENT_COUNT,)
        for at in alignments:
            wanted = zlib.crc32(raw[at : at + size], size * 0x9E3779B1 & 0xFFFFFFFF)
            got = run(size * 0x9E3779B1 & 0xFFFFFFFF, base + at, size)
            assert got == wanted, f"length {size}, alignment {at}"


@pytest.mark.parametrize("name", KERNELS)
def test_the_compiled_modules_use_the_selected_kernel(
    selected: Callable[[str], None], name: str
) -> None:
    selected(name)
    assert _message.crc32(b"123456789") == 0xCBF43926
    assert _message.crc32(b"") == 0
    rng = random.Random(SEED)
    raw = rng.randbytes(1 << 20)
    view = memoryview(raw)
    assert _message.crc32(raw) == zlib.crc32(raw)
    for _ in range(300):
        start, stop = sorted(rng.randrange(len(raw)) for _ in range(2))
        middle = rng.randint(start, stop)
        wanted = zlib.crc32(view[start:stop])
        assert _message.crc32(view[start:stop]) == wanted
        head = _message.crc32(view[start:middle])
        assert _message.crc32(view[middle:stop], head) == wanted, (start, middle, stop)


def test_names(library: ctypes.CDLL) -> None:
    names: list[str] = []
    for name in library.rs_crc32_kernels():
        if name is None:
            break
        names.append(name.decode())
    assert names[-1] == "slice8"
    assert set(names) <= set(KERNELS)
    assert [n for n in names if library.rs_crc32_by_name(n.encode())] == _message.crc32_kernels()
    with pytest.raises(ValueError, match="no CRC-32 kernel"):
        _message.select_crc32_kernel("no such kernel")


def test_the_tables_are_what_the_generator_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_crc32_tables.py"), "--check"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


# ---- Java's String.hashCode --------------------------------------------------------------------


def _java_error(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for a maximal subpart, and one for an encoded surrogate, whole or cut."""
    assert isinstance(error, UnicodeDecodeError)
    raw, start = error.object, error.start
    if raw[start] == 0xED and raw[start + 1 : start + 2] >= b"\xa0":
        rest = raw[start + 1 : start + 3]
        if 0xA0 <= rest[0] <= 0xBF:
            return "\ufffd", start + (3 if len(rest) > 1 and 0x80 <= rest[1] <= 0xBF else 2)
    return "\ufffd", error.end


codecs.register_error("rocketstore-test-java", _java_error)


def java_hash(raw: bytes) -> int:
    units = raw.decode("utf-8", "rocketstore-test-java").encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


VECTORS = {
    "": 0,
    "TagA": 2598919,
    "topic#key": 386934027,
    "\U0001f600": 1772899,
    "polygenelubricants": -2147483648,
}


@pytest.mark.parametrize(("text", "wanted"), VECTORS.items())
def test_java_hash_of_known_strings(library: ctypes.CDLL, text: str, wanted: int) -> None:
    raw = text.encode()
    assert library.rs_java_hash_slow(0, raw, len(raw)) == wanted
    assert _message.java_hash(text) == wanted
    assert _message.java_hash(raw) == wanted
    assert java_hash(raw) == wanted


#: Bytes that open, continue and break sequences, so that malformed text is the rule.
EDGES = bytes.fromhex("00417f8090a0bfc0c1c2dfe0e1edeff0f1f4f5ff9f8f")
malformed = st.lists(st.sampled_from(list(EDGES)), max_size=12).map(bytes)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(raw=st.one_of(malformed, st.binary(max_size=40), st.text(max_size=20).map(str.encode)))
@example(raw=b"\xed\xa0\x80")
@example(raw=b"\xed\xa0")
@example(raw=b"\xed\xbf\xbf\xed\xb0\xed")
@example(raw=b"\xf0\x90\x80")
def test_java_hash_of_any_bytes(raw: bytes) -> None:
    assert _message.java_hash(raw) == java_hash(raw)


def test_java_hash_of_every_pair_and_triple_of_edges(library: ctypes.CDLL) -> None:
    for a in EDGES:
        for b in EDGES:
            for c in EDGES:
                raw = bytes((a, b, c))
                assert library.rs_java_hash_slow(7, raw, 3) == java_hash_from(7, raw), raw.hex()


def java_hash_from(start: int, raw: bytes) -> int:
    count = len(raw.decode("utf-8", "rocketstore-test-java").encode("utf-16-be")) // 2
    value = (start * 31**count + java_hash(raw)) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


# ---- the C programs ----------------------------------------------------------------------------


def run_script(name: str) -> str:
    done = subprocess.run(
        [str(ROOT / "tests" / "kernels" / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_c_programs_with_guard_pages_and_sanitizers() -> None:
    compiler()
    output = run_script("run_native.sh")
    assert output.count("slice8: ok") == 3
    assert output.count("hash: ok") == 3


@pytest.mark.slow
def test_arm_kernels_under_an_emulator() -> None:
    output = run_script("run_arm.sh")
    if "SKIPPED, no " in output:
        pytest.skip(output.strip())
    assert "arm_pmull: ok" in output
    assert output.count("arm_crc: ok") == 2
