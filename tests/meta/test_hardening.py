"""Goal: the compiled modules of a release carry the hardening that setup.py asks for.
Method: read the program headers, the dynamic section and the imported names of each ELF file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import pyrocketstore

PACKAGE = Path(pyrocketstore.__file__).parent
MODULES = sorted(PACKAGE.rglob("_*.so"))

PT_DYNAMIC, PT_LOAD, PT_GNU_STACK, PT_GNU_RELRO = 2, 1, 0x6474E551, 0x6474E552
DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_BIND_NOW = 5, 6, 10, 11, 24
DT_FLAGS, DT_FLAGS_1 = 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW = 8, 1
PF_EXECUTE = 1


@dataclass
class Elf:
    """The parts of a 64-bit little-endian shared object that hardening shows in."""

    segments: set[int] = field(default_factory=set)
    stack_is_executable: bool = True
    binds_now: bool = False
    imports: set[str] = field(default_factory=set)


def read_elf(data: bytes) -> Elf:
    """Parse a shared object; ValueError for bytes that are none."""
    if data[:4] != b"\x7fELF":
        raise ValueError("not ELF")
    if data[4:6] != b"\x02\x01":
        raise ValueError("not 64-bit little-endian")
    start, entry_size, count = struct.unpack_from("<Q14xHH", data, 32)
    elf, loads, dynamic = Elf(), [], {}
    for at in range(start, start + entry_size * count, entry_size):
        kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, at)
        elf.segments.add(kind)
        if kind == PT_LOAD:
            loads.append((address, offset, size))
        elif kind == PT_GNU_STACK:
            elf.stack_is_executable = bool(flags & PF_EXECUTE)
        elif kind == PT_DYNAMIC:
            for entry in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<QQ", data, entry)
                dynamic.setdefault(tag, value)
    elf.binds_now = bool(
        DT_BIND_NOW in dynamic
        or dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW
        or dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
    )

    def offset_of(address: int) -> int:
        return next(o + address - a for a, o, size in loads if a <= address < a + size)

    # The names' table follows the symbols' in the files that the usual linkers write.
    names, symbols = offset_of(dynamic[DT_STRTAB]), offset_of(dynamic[DT_SYMTAB])
    for at in range(symbols, names, dynamic[DT_SYMENT]):
        name, _, _, section = struct.unpack_from("<IBBH", data, at)
        if section == 0 and 0 < name < dynamic[DT_STRSZ]:
            end = data.index(b"\0", names + name)
            elf.imports.add(data[names + name : end].decode("ascii"))
    return elf


@pytest.fixture(scope="module")
def modules() -> dict[str, Elf]:
    """The compiled modules by name."""
    if PACKAGE.parent.name in {"debug", "asan", "tsan", "cov"}:
        pytest.skip("only the release build is hardened")
    try:
        return {path.name.partition(".")[0]: read_elf(path.read_bytes()) for path in MODULES}
    except ValueError as error:
        pytest.skip(f"the compiled modules are {error}")


def test_all_addresses_are_resolved_and_then_read_only(modules: dict[str, Elf]) -> None:
    assert len(modules) > 20
    for name, elf in modules.items():
        assert PT_GNU_RELRO in elf.segments, name
        assert elf.binds_now, name


def test_no_stack_is_executable(modules: dict[str, Elf]) -> None:
    assert [name for name, elf in modules.items() if elf.stack_is_executable] == []


def test_stacks_are_protected(modules: dict[str, Elf]) -> None:
    without = [name for name, elf in modules.items() if "__stack_chk_fail" not in elf.imports]
    assert without == []


def test_calls_whose_bounds_are_known_are_checked(modules: dict[str, Elf]) -> None:
    """FORTIFY replaces a call only where the compiler knows the buffer and not the length."""
    checked = {name for name, elf in modules.items() for i in elf.imports if i.endswith("_chk")}
    assert checked


def test_the_reader_recognizes_a_hardened_file() -> None:
    """One symbol, no RELRO, lazy binding: the parts that the tests above look for are absent."""
    names = b"\0strlen\0"
    table = struct.pack("<24x") + struct.pack("<IBBHQQ", 1, 0x12, 0, 0, 0, 0)
    base = 64 + 3 * 56
    dynamic_at = base + len(table) + len(names)
    values = {DT_STRTAB: base + len(table), DT_SYMTAB: base, DT_STRSZ: len(names), DT_SYMENT: 24}
    dynamic = b"".join(struct.pack("<QQ", *pair) for pair in values.items())
    total = dynamic_at + len(dynamic)

    def program(kind: int, flags: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, 8)

    header = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q14xHH", 64, 56, 3)
    programs = (
        program(PT_LOAD, 5, 0, total)
        + program(PT_DYNAMIC, 6, dynamic_at, len(dynamic))
        + program(PT_GNU_STACK, 7, 0, 0)
    )
    elf = read_elf(header.ljust(64, b"\0") + programs + table + names + dynamic)
    assert elf == Elf({PT_LOAD, PT_DYNAMIC, PT_GNU_STACK}, True, False, {"strlen"})
    with pytest.raises(ValueError, match="not ELF"):
        read_elf(b"\xcf\xfa\xed\xfe")
