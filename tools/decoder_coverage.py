"""Line and branch coverage of the decoders: code without the GIL that reads bytes from disk.

    make coverage

This builds with ROCKETSTORE_BUILD=cov, runs the tests that feed damaged bytes, and prints the
coverage. gcov counts lines of the generated C; Cython's comments there map them to lines of the
source. Only functions that are declared `nogil` in MODULES and do not write, and csrc/bytes.h, are
counted. UNREACHABLE lists branches that no bytes can take. The exit status is 1 if any other line
or branch was not executed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OBJECTS = ROOT / "build" / "temp-cov"
PACKAGE = ROOT / "pyrocketstore"
#: Paths below pyrocketstore/, without suffix.
MODULES = (
    "record/_record", "record/_message", "record/_text", "index/_entries", "commit_log/_scan",
    "commit_log/_chunk_scan", "consume_queue/_units", "dispatch/_dispatcher", "columns/_decode",
    "columns/_builder", "columns/_record_walk", "reading/_by_key", "reading/_file_columns",
    "reading/_messages",
)  # fmt: skip
HEADER = "csrc/bytes.h"
WRITERS = frozenset(
    """
    confirm_chunks _confirm_slots _confirm_put put_hash put_hashes _put_at put_run write_run
    into_index_key put_chunk_keys fill_pre_blank put_position_info publish room last_message encode
    store_unit encode_record patch_record encoded_size _time_diff rs_compare_and_swap rs_fetch_add
    rs_store_release rs_store_release32 rs_store_be32_release rs_prefetch rs_prefetch_read
""".split()
)
#: (pattern of the line, why no bytes take one of its branches)
UNREACHABLE: tuple[tuple[str, str], ...] = (
    (r"== NULL|posix_memalign|no_memory|reserve\(|grow\(\)|more_(records|keys)\(|note_keys\(",
     "only if memory is exhausted"),
    (r"_add_(hits|value|record)\(|is_repeat\(|was_seen\(|1 << 46", "only if memory is exhausted"),
    (r"add_(text|bytes)\(|_index_names\(", "only if memory is exhausted"),
    (r"multi\.append|row, record\.queue_id,|java_text\(text \+", "only if memory is exhausted"),
    (r"more_room\(w\)", "only if memory is exhausted"),
    (r"if result != NOTHING", "a full index file is detected before a record's first key"),
    (r"got < 0", "only if a call of rs_env fails: tests/system/test_env.py"),
    (r"hold_log\(|self\.mapped_at\(|self\.ask_for", "only if a file cannot be mapped"),
    (r"return self\.raise_failed", "it always raises"),
    (r"kept > wanted|kept = wanted", "a window is never requested smaller than it is"),
    (r"state\.position < window\.start", "positions only increase"),
    (r"self\.count == 0 or phy_offset", "a log without files has no physical offset to search"),
    (r"memcmp\(entry\.topic, topic", "only for two topics with equal hashes of 64 bits"),
    (r"got < wanted|stop = at \+ got", "only if a file is truncated between two reads"),
    (r"2 > self\.key_room:|status = self\.add\(|status == -1",
     "only in a chunk with more than a million keys"),
)  # fmt: skip
FUNCTION = re.compile(r"^( *)(?:cdef|cpdef) [^=(]*\(")
MARK = re.compile(r'^ *\/?\* "pyrocketstore/([\w/]+\.p[yx][xd])":(\d+)')


def nogil_functions(path: Path) -> dict[str, range]:
    """Return by name the lines of each function of a Cython source that is declared nogil."""
    lines = path.read_text().splitlines()
    found = {}
    for number, line in enumerate(lines, 1):
        match = FUNCTION.match(line)
        if not match or "(" not in line:
            continue
        signature = line
        end = number
        while not signature.rstrip().endswith(":") and end < len(lines) and end < number + 12:
            signature += lines[end]
            end += 1
        if not re.search(r"\)[^)]*nogil:$", signature.rstrip()):
            continue
        name = re.search(r"(\w+)\(", signature)
        stop = end
        while stop < len(lines) and (
            not lines[stop].strip() or len(lines[stop]) - len(lines[stop].lstrip()) > len(match[1])
        ):
            stop += 1
        if name:
            found[name[1]] = range(number, stop + 1)
    return found


def gcov_files() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (object, gcov's counts for one source in it)."""
    # Skip C files that several modules share: each compilation overwrites their .gcno file.
    for data in sorted(OBJECTS.rglob("_*.gcda")):
        words = ["gcov", "--branch-probabilities", "--json-format", "--stdout", data.name]
        out = subprocess.run(words, cwd=data.parent, capture_output=True, check=True).stdout
        for text in out.splitlines():
            for found in json.loads(text)["files"]:
                yield data, found


def marks(path: Path) -> list[tuple[str, int] | None]:
    """Return for each line of a generated file (source, line number) where it comes from."""
    found: list[tuple[str, int] | None] = [None]
    origin = None
    for line in path.read_text().splitlines():
        match = MARK.match(line)
        if match:
            origin = match[1], int(match[2])
        elif line.startswith("}"):
            found.append(origin)
            origin = None
            continue
        found.append(origin)
    return found


class Source:
    """Counts of one file, summed over all objects that contain its code."""

    def __init__(self, path: Path, functions: dict[str, range] | None) -> None:
        self.path = path
        self.text = path.read_text().splitlines()
        self.functions = functions
        self.lines: dict[int, int] = defaultdict(int)
        self.branches: dict[tuple[int, int], int] = defaultdict(int)

    def function_of(self, number: int) -> str | None:
        for name, lines in (self.functions or {}).items():
            if number in lines:
                return name
        return None

    def add(self, number: int, first: int, line: dict[str, Any]) -> int:
        """Add a line of C whose first branch has the number `first`; return its branch count."""
        self.lines[number] += line["count"]
        for i, branch in enumerate(line["branches"]):
            self.branches[number, first + i] += branch["count"]
        return len(line["branches"])

    def unreachable(self, number: int) -> str:
        """Return why no bytes take a branch of the line; "" if no reason is known."""
        text = self.text[number - 1].strip()
        lines = [text]
        if re.match(r"(return|error|state\.error|out|raise|break|if status != RS_OK)", text):
            lines += [line.strip() for line in self.text[number - 4 : number - 1]]
        for pattern, reason in UNREACHABLE:
            if any(re.search(pattern, line) for line in lines):
                return reason
        return ""

    def missing(self) -> dict[int, int]:
        """Return by line how many of its branches were not taken; 0: the line did not run."""
        found: dict[int, int] = {number: 0 for number, count in self.lines.items() if not count}
        for (number, _), count in self.branches.items():
            if not count:
                found[number] = found.get(number, 0) + 1
        return found


def gather(sources: dict[str, Source]) -> None:
    """Add the counts of all objects to the sources, by path below pyrocketstore/."""
    for data, found in gcov_files():
        seen: dict[tuple[str, int], int] = defaultdict(int)
        is_header = found["file"].endswith(HEADER)
        generated = data.relative_to(OBJECTS).with_suffix(".c")
        origins = marks(ROOT / generated) if found["file"].endswith(str(generated)) else []
        for line in found["lines"]:
            number = line["line_number"]
            origin = (HEADER, number) if is_header else origins[number] if origins else None
            source = sources.get(origin[0]) if origin else None
            if source is None or origin is None:
                continue
            function = line.get("function_name") if is_header else source.function_of(origin[1])
            if function is not None and function not in WRITERS:
                seen[origin] += source.add(origin[1], seen[origin], line)


def main() -> int:
    """Print the coverage; return the exit status."""
    sources = {HEADER: Source(ROOT / HEADER, None)}
    for module in MODULES:
        for path in PACKAGE.glob(f"{module}.p[yx][xd]"):
            name = path.relative_to(PACKAGE).as_posix()
            sources[name] = Source(path, nogil_functions(path))
        if f"{module}.pyx" not in sources:
            sys.exit(f"pyrocketstore/{module}.pyx: no such file; update MODULES")
    gather(sources)
    return report(sources)


def report(sources: dict[str, Source]) -> int:
    """Print counts and missing branches; return 1 if some are neither taken nor unreachable."""
    left, total, taken = 0, 0, 0
    unreachable = []
    for name, source in sources.items():
        if not source.lines:
            continue
        missing = source.missing()
        ran = sum(count > 0 for count in source.lines.values())
        went = sum(count > 0 for count in source.branches.values())
        total += len(source.branches)
        taken += went
        print(
            f"{name}: {ran} of {len(source.lines)} lines, {went} of {len(source.branches)} branches"
        )
        for number, count in sorted(missing.items()):
            reason = source.unreachable(number)
            where = f"{name}:{number}: {source.text[number - 1].strip()[:70]}"
            if reason:
                unreachable.append(f"{where}: {count or 'line'}: {reason}")
            else:
                left += 1
                print(f"  {count or 'line'} not taken: {where}")
    print(f"{taken} of {total} branches taken. Unreachable:", *unreachable, sep="\n  ")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
