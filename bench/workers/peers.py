"""The workers for other stores that a Python program could use (README.md, "Protocol").

    python -m bench.workers.peers PATH what=put|get|scan|query|follow \\
        peer=lmdb|sqlite|persist_queue|diskcache count=N [per_commit=N] [sync=1] [plain=1] \\
        [NAME=VALUE ...]

Every peer stores queue, queue offset, tag, key, body and the body's CRC, and finds a message by
queue offset and by key. With `plain=1` it stores neither key nor CRC, for rows that say so. Reading
checks the CRC.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.workers.workload import KEY_BASE, NEW_COUNT, QUEUES, Clock, Result, Workload, serve

TAG = "TagA"
#: Interval of FlushRealTimeService.
FLUSH_INTERVAL_S = 0.5
LMDB_MAP_SIZE = 16 << 30
#: Pages of SQLite's log (128 MiB) per checkpoint: about two checkpoints a second at full speed.
WAL_PAGES = 32_768
#: Messages per transaction when filling a store to read.
FILL_PER_COMMIT = 10_000


class Item(NamedTuple):
    """A message that a peer returns."""

    tag: str
    key: str
    body: bytes


class BodyDamaged(Exception):
    """A body does not match its CRC."""


def checked(body: Any, crc: int) -> None:
    """Compare a body with its CRC."""
    if zlib.crc32(body) != crc:
        raise BodyDamaged


class Peer:
    """A store of messages: with `sync`, every commit is durable; with `plain`, no key and no CRC.

    `keyed`: the peer can find a message by key.
    """

    keyed = True

    def __init__(self, path: Path, sync: bool, plain: bool) -> None:
        self.path = path
        self.sync = sync
        self.plain = plain
        path.mkdir(parents=True)

    def put_all(self, body: bytes, first: int, count: int, per_commit: int) -> None:
        """Put messages k{first}... into the queues in turn, `per_commit` per transaction."""
        raise NotImplementedError

    def by_queue(self, queue_id: int, queue_offset: int) -> Item | None:
        """Return the message at this queue offset."""
        raise NotImplementedError

    def by_key(self, key: str) -> Item | None:
        """Return the message with this key."""
        raise NotImplementedError

    def holds(self, queue_id: int, queue_offset: int) -> bool:
        """Return whether there is a message at this queue offset."""
        return self.by_queue(queue_id, queue_offset) is not None

    def read(self, queue_id: int) -> Iterator[Item]:
        """Yield all messages of a queue in order."""
        raise NotImplementedError

    def scan(self) -> tuple[int, int]:
        """Check all bodies; return (messages, bytes)."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the files."""


class Lmdb(Peer):
    """LMDB: messages by (queue, offset); a second database maps the key to (queue, offset).

    Without sync, a thread syncs twice a second, like our flush service.
    """

    OFFSET = struct.Struct(">iq")  # queue, queue offset
    HEADER = struct.Struct("<IHH")  # CRC, length of the tag, length of the key

    def __init__(self, path: Path, sync: bool, plain: bool) -> None:
        super().__init__(path, sync, plain)
        import lmdb

        fast: dict[str, Any] = {} if sync else {"sync": False, "writemap": True, "map_async": True}
        self._env = lmdb.open(str(path), map_size=LMDB_MAP_SIZE, max_dbs=2, **fast)
        self._messages = self._env.open_db(b"messages")
        self._keys = self._env.open_db(b"keys", dupsort=True)
        self._stopped = threading.Event()
        self._flusher = threading.Thread(target=self._flush, daemon=True)
        if not sync:
            self._flusher.start()

    def _flush(self) -> None:
        while not self._stopped.wait(FLUSH_INTERVAL_S):
            self._env.sync(True)

    def put_all(
        self, body: bytes, first: int, count: int, per_commit: int, before: int = 0
    ) -> None:
        """Put messages as the others do, behind `before` ones."""
        offset, header, tag, crc32 = self.OFFSET.pack, self.HEADER.pack, TAG.encode(), zlib.crc32
        messages, keys, plain = self._messages, self._keys, self.plain
        stop = before + count
        for start in range(before, stop, per_commit):
            with self._env.begin(write=True) as transaction:
                put = transaction.put
                for i in range(start, min(start + per_commit, stop)):
                    where = offset(i % QUEUES, i // QUEUES)
                    if plain:
                        put(where, body, db=messages)
                        continue
                    key = f"k{first + i}".encode()
                    record = header(crc32(body), len(tag), len(key)) + tag + key + body
                    put(where, record, db=messages)
                    put(key, where, db=keys)

    def by_queue(self, queue_id: int, queue_offset: int) -> Item | None:
        with self._env.begin() as transaction:
            found = transaction.get(self.OFFSET.pack(queue_id, queue_offset), db=self._messages)
            return None if found is None else self._item(found)

    def by_key(self, key: str) -> Item | None:
        with self._env.begin() as transaction:
            where = transaction.get(key.encode(), db=self._keys)
            if where is None:
                return None
            return self._item(transaction.get(where, db=self._messages))

    def _item(self, record: bytes) -> Item:
        if self.plain:
            return Item("", "", record)
        crc, tag_size, key_size = self.HEADER.unpack_from(record)
        key_at = self.HEADER.size + tag_size
        body = record[key_at + key_size :]
        checked(body, crc)
        tag = record[self.HEADER.size : key_at].decode()
        return Item(tag, record[key_at : key_at + key_size].decode(), body)

    def read(self, queue_id: int, start: int = 0) -> Iterator[Item]:
        """Yield the messages of a queue from an offset on."""
        prefix = struct.pack(">i", queue_id)
        with self._env.begin() as transaction, transaction.cursor(self._messages) as cursor:
            if not cursor.set_range(self.OFFSET.pack(queue_id, start)):
                return
            for where, record in cursor:
                if not where.startswith(prefix):
                    return
                yield self._item(record)

    def scan(self) -> tuple[int, int]:
        count = size = 0
        unpack, header_size, crc32 = self.HEADER.unpack_from, self.HEADER.size, zlib.crc32
        with (
            self._env.begin(buffers=True) as transaction,
            transaction.cursor(self._messages) as cursor,
        ):
            for record in cursor.iternext(keys=False, values=True):
                crc, tag_size, key_size = unpack(record)
                if crc32(record[header_size + tag_size + key_size :]) != crc:
                    raise BodyDamaged
                count += 1
                size += len(record)
        return count, size

    def close(self) -> None:
        self._stopped.set()
        if not self.sync:
            self._flusher.join()
        self._env.close()


class LmdbNamed(Lmdb):
    """LMDB with the properties of a client's message: their text in the value, and the unique id
    as a second key."""

    def put_all(self, body: bytes, first: int, count: int, per_commit: int) -> None:
        offset, header, tag, crc32 = self.OFFSET.pack, self.HEADER.pack, TAG.encode(), zlib.crc32
        messages, keys, now_ns = self._messages, self._keys, time.time_ns
        prefix = f"7F000001{os.getpid() & 0xFFFF:04X}{id(self) & 0xFFFFFFFF:08X}"
        for start in range(0, count, per_commit):
            with self._env.begin(write=True) as transaction:
                put = transaction.put
                for i in range(start, min(start + per_commit, count)):
                    where = offset(i % QUEUES, i // QUEUES)
                    key = f"k{first + i}"
                    unique = f"{prefix}{now_ns() // 1_000_000 & 0xFFFFFFFF:08X}{i & 0xFFFF:04X}"
                    named = {
                        "UNIQ_KEY": unique,
                        "WAIT": "true",
                        "CLUSTER": "DefaultCluster",
                        "orderId": key,
                        "source": "checkout",
                    }
                    text = "\x02".join([f"{name}\x01{value}" for name, value in named.items()])
                    encoded, key_bytes = text.encode(), key.encode()
                    record = header(crc32(body), len(tag), len(key_bytes)) + tag + key_bytes
                    put(where, record + encoded + b"\0" + body, db=messages)
                    put(key_bytes, where, db=keys)
                    put(unique.encode(), where, db=keys)

    def _item(self, record: bytes) -> Item:
        crc, tag_size, key_size = self.HEADER.unpack_from(record)
        key_at = self.HEADER.size + tag_size
        text_at = key_at + key_size
        body = record[record.index(b"\0", text_at) + 1 :]
        checked(body, crc)
        tag = record[self.HEADER.size : key_at].decode()
        return Item(tag, record[key_at:text_at].decode(), body)


class Sqlite(Peer):
    """SQLite in WAL mode: one table, unique index on (queue, offset), index on the key.

    Without sync: synchronous=NORMAL, fsync at checkpoints. With sync: FULL, fsync at every commit.
    A checkpoint runs every WAL_PAGES pages of the log; SQLite's default is 1000.
    """

    def __init__(self, path: Path, sync: bool, plain: bool) -> None:
        super().__init__(path, sync, plain)
        self._db = sqlite3.connect(path / "messages.db", isolation_level=None)
        self._run("PRAGMA journal_mode=WAL")
        self._run(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
        self._run(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
        self._run("PRAGMA cache_size=-65536")
        self._run(
            "CREATE TABLE messages (queue_id INTEGER, queue_offset INTEGER, tag TEXT, key TEXT,"
            " crc INTEGER, body BLOB)"
        )
        self._run("CREATE UNIQUE INDEX offsets ON messages (queue_id, queue_offset)")
        if not plain:
            self._run("CREATE INDEX keys ON messages (key)")

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    def put_all(self, body: bytes, first: int, count: int, per_commit: int) -> None:
        insert = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)"
        row = self._plain_row if self.plain else self._row
        if per_commit == 1:
            for i in range(count):
                self._db.execute(insert, row(first, i, body))
            return
        for start in range(0, count, per_commit):
            self._run("BEGIN")
            stop = min(start + per_commit, count)
            self._db.executemany(insert, (row(first, i, body) for i in range(start, stop)))
            self._run("COMMIT")

    @staticmethod
    def _row(first: int, i: int, body: bytes) -> tuple[object, ...]:
        return i % QUEUES, i // QUEUES, TAG, f"k{first + i}", zlib.crc32(body), body

    @staticmethod
    def _plain_row(first: int, i: int, body: bytes) -> tuple[object, ...]:
        return i % QUEUES, i // QUEUES, None, None, None, body

    def by_queue(self, queue_id: int, queue_offset: int) -> Item | None:
        found = self._run(
            "SELECT tag, key, crc, body FROM messages WHERE queue_id=? AND queue_offset=?",
            queue_id,
            queue_offset,
        ).fetchone()
        return self._item(found)

    def by_key(self, key: str) -> Item | None:
        found = self._run("SELECT tag, key, crc, body FROM messages WHERE key=? LIMIT 32", key)
        return self._item(found.fetchone())

    def _item(self, row: tuple[str, str, int, bytes] | None) -> Item | None:
        if row is None:
            return None
        tag, key, crc, body = row
        if not self.plain:
            checked(body, crc)
        return Item(tag, key, body)

    def read(self, queue_id: int) -> Iterator[Item]:
        rows = self._run(
            "SELECT tag, key, crc, body FROM messages WHERE queue_id=? ORDER BY queue_offset",
            queue_id,
        )
        for tag, key, crc, body in rows:
            checked(body, crc)
            yield Item(tag, key, body)

    def scan(self) -> tuple[int, int]:
        count = size = 0
        for crc, body in self._run("SELECT crc, body FROM messages"):
            checked(body, crc)
            count += 1
            size += len(body)
        return count, size

    def close(self) -> None:
        self._db.close()


class PersistQueue(Peer):
    """persist-queue's SQLiteQueue: one database per queue, one transaction per put, no key."""

    keyed = False

    def __init__(self, path: Path, sync: bool, plain: bool) -> None:
        super().__init__(path, sync, plain)
        import persistqueue

        self._open = persistqueue.SQLiteQueue
        self._queues = [self._open(str(path / str(i))) for i in range(QUEUES)]

    def put_all(self, body: bytes, first: int, count: int, per_commit: int) -> None:
        for i in range(count):
            self._queues[i % QUEUES].put((TAG, f"k{first + i}", zlib.crc32(body), body))

    def holds(self, queue_id: int, queue_offset: int) -> bool:
        return bool(self._queues[queue_id].size > queue_offset)

    def read(self, queue_id: int) -> Iterator[Item]:
        # Not committed: the messages stay, and the next reader starts from the beginning.
        queue = self._open(str(self.path / str(queue_id)), auto_commit=False)
        try:
            for _ in range(queue.size):
                tag, key, crc, body = queue.get()
                checked(body, crc)
                yield Item(tag, key, body)
        finally:
            queue.close()

    def close(self) -> None:
        for queue in self._queues:
            queue.close()


class DiskCache(Peer):
    """diskcache's Cache: push() to a deque per queue, and an entry that maps the key to it."""

    def __init__(self, path: Path, sync: bool, plain: bool) -> None:
        super().__init__(path, sync, plain)
        import diskcache

        self._cache = diskcache.Cache(str(path), eviction_policy="none", size_limit=1 << 40)

    def put_all(self, body: bytes, first: int, count: int, per_commit: int) -> None:
        for start in range(0, count, per_commit):
            stop = min(start + per_commit, count)
            if per_commit == 1:
                self._put(body, first, start)
                continue
            with self._cache.transact():
                for i in range(start, stop):
                    self._put(body, first, i)

    def _put(self, body: bytes, first: int, i: int) -> None:
        key = f"k{first + i}"
        record = (TAG, key, zlib.crc32(body), body)
        self._cache.set(key, self._cache.push(record, prefix=f"q{i % QUEUES}"))

    def by_queue(self, queue_id: int, queue_offset: int) -> Item | None:
        # push() starts numbering in the middle of its range.
        return self._at(f"q{queue_id}-{500_000_000_000_000 + queue_offset:015d}")

    def by_key(self, key: str) -> Item | None:
        return self._at(self._cache.get(key))

    def _at(self, entry: object) -> Item | None:
        found = self._cache.get(entry)
        if found is None:
            return None
        tag, key, crc, body = found
        checked(body, crc)
        return Item(tag, key, body)

    def read(self, queue_id: int) -> Iterator[Item]:
        at = 0
        while (item := self.by_queue(queue_id, at)) is not None:
            yield item
            at += 1

    def close(self) -> None:
        self._cache.close()


PEERS: dict[str, type[Peer]] = {
    "lmdb": Lmdb,
    "lmdb_named": LmdbNamed,
    "sqlite": Sqlite,
    "persist_queue": PersistQueue,
    "diskcache": DiskCache,
}


class PeerWork(Workload):
    """Put, get, scan or query with one of PEERS; fill a store to read before the first round."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        super().__init__(path, options)
        self._per_commit = int(options.get("per_commit", "1"))
        self._base = KEY_BASE
        work: dict[str, Callable[[], Result]] = {
            "put": self._put,
            "get": self._get,
            "scan": self._scan,
            "query": self._query,
            "follow": self._follow,
            "small": self._small,
        }
        self.unit = work[options["what"]]  # type: ignore[method-assign]
        if options["what"] != "put":
            self._stored = int(options["stored"])
            self._peer = self._open()
            self._peer.put_all(self.body, 0, self._stored, FILL_PER_COMMIT)

    def _open(self) -> Peer:
        shutil.rmtree(self.path, ignore_errors=True)
        kind = PEERS[self.options["peer"]]
        return kind(self.path, "sync" in self.options, "plain" in self.options)

    def _put(self) -> Result:
        peer = self._open()
        base, self._base = self._base, self._base + self.count
        last = self.count - 1
        clock = Clock()
        peer.put_all(self.body, base, self.count, self._per_commit)
        found = peer.holds(last % QUEUES, last // QUEUES)
        if peer.keyed and not peer.plain:
            found = found and peer.by_key(f"k{base + last}") is not None
        seconds, cpu = clock.stop()
        peer.close()
        shutil.rmtree(self.path)
        return Result(self.count, self.count * len(self.body), seconds, self.count * found, cpu)

    def _get(self) -> Result:
        count = size = answer = 0
        clock = Clock()
        for queue_id in range(QUEUES):
            for item in self._peer.read(queue_id):
                count += 1
                size += len(item.body)
                # Count the tag twice, as the others read it as a property as well.
                answer += len(item.tag) + len(item.key) + len(item.tag)
        seconds, cpu = clock.stop()
        return Result(count, size, seconds, answer, cpu)

    def _scan(self) -> Result:
        clock = Clock()
        count, size = self._peer.scan()
        seconds, cpu = clock.stop()
        return Result(count, size, seconds, count, cpu)

    def _query(self) -> Result:
        answer = size = 0
        numbers = self.draw(self._stored)
        clock = Clock()
        for number in numbers:
            key = f"k{number}"
            found = self._peer.by_key(key)
            if found is not None:
                size += len(found.body)
                # Count the tag twice, as the others read it as a property as well.
                answer += len(found.tag) + len(found.tag) + (found.key == key)
        seconds, cpu = clock.stop()
        return Result(self.count, size, seconds, answer, cpu)

    def _follow(self) -> Result:
        """As Follow of ours/follow.py; a new read transaction finds what was committed."""
        peer = self._peer
        if not isinstance(peer, Lmdb):
            raise SystemExit("follow: only with peer=lmdb")
        found = size = 0
        seconds = cpu = 0.0
        for _ in range(self.count):
            first, self._stored = self._stored, self._stored + NEW_COUNT
            peer.put_all(self.body, 0, NEW_COUNT, NEW_COUNT, before=first)
            clock = Clock()
            for queue_id in range(QUEUES):
                for item in peer.read(queue_id, first // QUEUES):
                    found += 1
                    size += len(item.body)
            took, used = clock.stop()
            seconds, cpu = seconds + took, cpu + used
        answer = self.count * (found == self.count * NEW_COUNT)
        return Result(self.count, size, seconds, answer, cpu)

    def _small(self) -> Result:
        answer = size = 0
        numbers = self.draw(self._stored)
        by_queue = self._peer.by_queue
        clock = Clock()
        for number in numbers:
            found = by_queue(number % QUEUES, number // QUEUES)
            if found is not None:
                size += len(found.body)
                answer += 1
        seconds, cpu = clock.stop()
        return Result(self.count, size, seconds, answer, cpu)

    def close(self) -> None:
        if self.options["what"] != "put":
            self._peer.close()


if __name__ == "__main__":
    kinds = ("put", "get", "scan", "query", "small", "follow")
    serve(dict.fromkeys(kinds, PeerWork), *sys.argv[1:])
