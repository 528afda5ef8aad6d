"""Openings after a clean stop, and as after a kill that followed a flush."""

from __future__ import annotations

from collections.abc import Iterator

from bench.model import Group, java, ours

#: Messages, and bytes of a log file of which the store has several.
SIZES = ((100_000, 4 << 20), (1_000_000, 48 << 20), (5_000_000, 256 << 20))
ONE_FILE = 1 << 30
#: A goal of the openings after a clean stop, as a ratio to 4.9.3.
CLEAN_GOAL = 5.0
JAVA_LOAD = "DefaultMessageStore.load(); the file sizes are settings"
OURS_LOAD = "file sizes derived from the files, and DefaultMessageStore.load()"


def _group(count: int, file_size: int, *, keys: bool, clean: bool) -> Group:
    one = file_size == ONE_FILE
    options = {
        "what": "open_killed",
        "body": 64,
        "mappedFileSizeCommitLog": file_size,
        **({} if keys else {"keyless": 1}),
        **({"clean": 1} if clean else {}),
    }
    size = f"{count // 1_000_000}m" if count >= 1_000_000 else f"{count // 1000}k"
    words = ("keyed" if keys else "keyless", "one file" if one else "several files")
    return Group(
        f"open_{'clean' if clean else 'killed'}_{size}_{'one' if one else 'several'}"
        + ("" if keys else "_keyless"),
        f"Open {count:,} × 64 B {'after a clean stop' if clean else 'after a kill'}, "
        + ", ".join(words),
        (
            java(options, "1", JAVA_LOAD),
            ours("load", options, "2", OURS_LOAD, CLEAN_GOAL if clean else 0.0),
            ours("load, read-only", {**options, "read_only": 1}, "2", OURS_LOAD),
        ),
        count=count,
        smoke=2_000,
    )


#: Stores without keys have one file: files do not change what is done for keys.
OPENING_GROUPS = tuple(
    _group(count, size, keys=keys, clean=clean)
    for clean in (True, False)
    for count, several in SIZES
    for size, keys in ((ONE_FILE, True), (ONE_FILE, False), (several, True))
)


def killed_curve(sizes: tuple[int, ...]) -> Iterator[Group]:
    """Yield the points by the number of messages, with and without keys, after a kill."""
    words = "load(); the store was flushed before the kill"
    for count in sizes:
        for keys in (True, False):
            what = {"what": "open_killed", "body": 128, **({} if keys else {"keyless": 1})}
            which = "" if keys else ", no keys"
            yield Group(
                f"grow_open_killed_{'' if keys else 'keyless_'}{count // 1_000_000}m",
                f"Open {count // 1_000_000} M × 128 B after a kill{which}",
                (java(what, "1", words), ours("load", what, "2", words)),
                count=count,
                smoke=2_000,
                axis=f"messages, opening after a kill{which}",
                at=count,
            )
