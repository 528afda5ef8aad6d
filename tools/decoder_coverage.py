"""Line and branch coverage of the decoders: what runs without the GIL on bytes from disk.

    make coverage

builds with ROCKETSTORE_BUILD=cov, runs the tests that feed damaged bytes, and prints this. What
gcov counts in the generated C is put down to the line of the source that Cython names above it.
Counted are the functions declared `nogil` in the modules below that read (not those that write),
and all of csrc/bytes.h. EXCUSES says which branches no bytes can take. Exits with 1 where another
is left.
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
GENERATED = ROOT / "build" / "cython-cov"
OBJECTS = ROOT / "build" / "temp-cov"
MODULES = ("_record", "_scan", "_index_walk", "_message", "_columns", "_values", "_text",
           "_log_piece", "_key_search", "_consume_queue", "_verify", "_log_walk", "_queue_rows",
           "_dispatch", "_file_columns", "_queue_check")  # fmt: skip
HEADER = "csrc/bytes.h"
WRITERS = frozenset(
    """
    confirm_chunks _confirm_slots _confirm_put put_hash put_hashes _put_at put_run write_run
    into_index_key put_piece_keys fill_pre_blank put_position_info publish room last_message encode
    store_unit encode_record patch_record encoded_size _time_diff rs_compare_and_swap rs_fetch_add
    rs_store_release rs_store_release32 rs_store_be32_release rs_prefetch rs_prefetch_read
""".split()
)
#: (what the line holds, why one of its branches is never taken by bytes)
EXCUSES: tuple[tuple[str, str], ...] = (
    (r"== NULL|posix_memalign|no_memory|reserve\(|grow\(\)|more_(records|keys)\(|note_keys\(",
     "only without memory"),
    (r"_add_(hits|value|record)\(|is_repeat\(|was_seen\(|1 << 46", "only without memory"),
    (r"add_(text|bytes)\(|_index_names\(", "only without memory"),
    (r"multi\.append|row, record\.queue_id,|java_text\(text \+", "only without memory"),
    (r"more_room\(w\)", "only without memory"),
    (r"if result != NOTHING", "a full index file is seen before a record's first key"),
    (r"got < 0", "only where a call of rs_env fails: tests/test_env.py"),
    (r"hold_log\(|self\.mapped_at\(|self\.ask_for", "only where a file cannot be mapped"),
    (r"return self\.raise_failed", "it always raises"),
    (r"kept > wanted|kept = wanted", "a window is only asked for more than it has"),
    (r"state\.position < window\.start", "positions go forward"),
    (r"self\.count == 0 or phy_offset", "a log without files has no place to be looked for"),
    (r"memcmp\(entry\.topic, topic", "only for two topics with one hash of 64 bits"),
    (r"got < wanted|stop = at \+ got", "only where a file is cut between two reads of it"),
    (r"2 > self\.key_room:|status = self\.add\(|status == -1",
     "only in a piece of more than a million keys"),
)  # fmt: skip
FUNCTION = re.compile(r"^( *)(?:cdef|cpdef) [^=(]*\(")
MARK = re.compile(r'^ *\/?\* "pyrocketstore/(\w+\.p[yx][xd])":(\d+)')


def nogil_functions(path: Path) -> dict[str, range]:
    """Name -> lines of each function of a Cython source that is declared nogil."""
    lines = path.read_text().splitlines()
    found = {}
    for number, line in enumerate(lines, 1):
        match = FUNCTION.match(line)
        if not match or "(" not in line:
            continue
        head = line
        end = number
        while not head.rstrip().endswith(":") and end < len(lines) and end < number + 12:
            head += lines[end]
            end += 1
        if not re.search(r"\)[^)]*nogil:$", head.rstrip()):
            continue
        name = re.search(r"(\w+)\(", head)
        stop = end
        while stop < len(lines) and (
            not lines[stop].strip() or len(lines[stop]) - len(lines[stop].lstrip()) > len(match[1])
        ):
            stop += 1
        if name:
            found[name[1]] = range(number, stop + 1)
    return found


def gcov_files() -> Iterator[tuple[Path, dict[str, Any]]]:
    """(object, what gcov knows of one source in it)."""
    # C files that several modules share are compiled again for each, over the same notes.
    for data in sorted(OBJECTS.rglob("_*.gcda")):
        words = ["gcov", "--branch-probabilities", "--json-format", "--stdout", data.name]
        out = subprocess.run(words, cwd=data.parent, capture_output=True, check=True).stdout
        for text in out.splitlines():
            for found in json.loads(text)["files"]:
                yield data, found


def marks(path: Path) -> list[tuple[str, int] | None]:
    """For each line of a generated file the place in the source that it comes from."""
    found: list[tuple[str, int] | None] = [None]
    place = None
    for line in path.read_text().splitlines():
        match = MARK.match(line)
        if match:
            place = match[1], int(match[2])
        elif line.startswith("}"):
            found.append(place)
            place = None
            continue
        found.append(place)
    return found


class Source:
    """One file's counts, summed over all objects that hold its code."""

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
        """Take in a line of C; gives how many branches it has. `first` is the next one's number."""
        self.lines[number] += line["count"]
        for i, branch in enumerate(line["branches"]):
            self.branches[number, first + i] += branch["count"]
        return len(line["branches"])

    def excused(self, number: int) -> str:
        """Why a branch of that line is never taken; "" where nobody knows."""
        text = self.text[number - 1].strip()
        lines = [text]
        if re.match(r"(return|error|state\.error|out|raise|break|if status != RS_OK)", text):
            lines += [line.strip() for line in self.text[number - 4 : number - 1]]
        for pattern, reason in EXCUSES:
            if any(re.search(pattern, line) for line in lines):
                return reason
        return ""

    def missing(self) -> dict[int, int]:
        """Line -> how many of its branches were never taken; 0: it never ran."""
        found: dict[int, int] = {number: 0 for number, count in self.lines.items() if not count}
        for (number, _), count in self.branches.items():
            if not count:
                found[number] = found.get(number, 0) + 1
        return found


def gather(sources: dict[str, Source]) -> None:
    for data, found in gcov_files():
        name = Path(found["file"]).name
        seen: dict[tuple[str, int], int] = defaultdict(int)
        is_header = found["file"].endswith(HEADER)
        generated = GENERATED / "pyrocketstore" / f"{data.stem}.c"
        places = marks(generated) if name == generated.name else []
        for line in found["lines"]:
            number = line["line_number"]
            place = (name, number) if is_header else places[number] if places else None
            source = sources.get(place[0]) if place else None
            if source is None or place is None:
                continue
            function = line.get("function_name") if is_header else source.function_of(place[1])
            if function is not None and function not in WRITERS:
                seen[place] += source.add(place[1], seen[place], line)


def main() -> int:
    sources = {Path(HEADER).name: Source(ROOT / HEADER, None)}
    for module in MODULES:
        for suffix in (".pyx", ".pxd"):
            path = ROOT / "pyrocketstore" / (module + suffix)
            if path.exists():
                sources[path.name] = Source(path, nogil_functions(path))
    gather(sources)
    return told(sources)


def told(sources: dict[str, Source]) -> int:
    left, total, taken = 0, 0, 0
    excuses = []
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
            reason = source.excused(number)
            where = f"{name}:{number}: {source.text[number - 1].strip()[:70]}"
            if reason:
                excuses.append(f"{where}: {count or 'line'}: {reason}")
            else:
                left += 1
                print(f"  {count or 'line'} never taken: {where}")
    print(f"{taken} of {total} branches were taken. No bytes take these:", *excuses, sep="\n  ")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
