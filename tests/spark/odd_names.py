"""A store whose names are not UTF-8: its path, a topic, tags, keys, properties, and odd files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pyrocketstore

SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}
#: Stored name -> the bytes that replace it in the log, equally many.
MALFORMED = {
    b"tXYtopic": b"t\xff\xfetopic",
    b"TaXYZg": b"Ta\xed\xa0\x80g",  # a lone surrogate, encoded as CESU-8 has it
    b"keX": b"ke\xff",
    b"nameX": b"name\xc3",
    b"Xvalue": b"\x80value",
}
#: As Java decodes them.
TOPIC, TAG, PLAIN = "t\ufffd\ufffdtopic", "Ta\ufffdg", "plain"
PROPERTIES = {"name\ufffd": "\ufffdvalue"}
ODD_COUNT, PLAIN_COUNT = 30, 5


def odd_name(name: bytes) -> str:
    """A file's name as Python holds it."""
    return os.fsdecode(name)


def uri_of(path: str | Path) -> str:
    """The file: URI of a path, its bytes percent-escaped."""
    return "file://" + quote(os.fsencode(path))


def make_odd_store(parent: Path) -> str:
    """Make the store in `parent`; its path. A link named `link` leads there."""
    root = str(parent / odd_name(b"st\xffore"))
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(ODD_COUNT + PLAIN_COUNT):
            store.put(
                "tXYtopic" if number < ODD_COUNT else PLAIN,
                b"b%d" % number,
                tags="TaXYZg",
                keys=f"keX{number}",
                properties={"nameX": "Xvalue"},
            )
    for path in Path(root, "commitlog").iterdir():
        data = path.read_bytes()
        for plain, malformed in MALFORMED.items():
            data = data.replace(plain, malformed)
        path.write_bytes(data)
    for name in ("consumequeue", "index"):
        shutil.rmtree(f"{root}/{name}")
    Path(root, "checkpoint").unlink()
    Path(root, "abort").touch()
    pyrocketstore.open(root, **SIZES).close()  # rebuild queues and index from the log
    for name in (b"consumequeue/q\xff/0", b"config/c\xff", b"\xff"):
        Path(root, odd_name(name)).mkdir(parents=True)
    for name in (b"commitlog/\xff", b"index/\xff", b"consumequeue/\xfe"):
        Path(root, odd_name(name)).touch()
    Path(parent, "link").symlink_to(root)
    return root
