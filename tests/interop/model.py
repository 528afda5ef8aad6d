"""A plain-Python model of a store. From all puts it predicts each record's offset and every line of
a dump. It shares no code with the engine or with 4.9.3."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from face import UNKNOWN
from support import oracle
from support.golden_lines import Line, index_hash, java_hash
from support.random_messages import SCHEDULE_TOPIC, is_queued, stored_form

QUERY_COUNT_MAX = 64
BLANK_HEAD_SIZE = 8
Spec = dict[str, Any]
Query = tuple[str, str, int, int, int]


def java_host(text: str) -> str:
    """Return a host in the text form of Java's InetSocketAddress."""
    address, _, port = text.rpartition(":")
    if not address.startswith("["):
        return f"/{text}"
    groups = ipaddress.ip_address(address[1:-1]).exploded.split(":")
    return f"/[{':'.join(f'{int(group, 16):x}' for group in groups)}]:{port}"


def host_bytes(text: str) -> bytes:
    """Return a host in the form of the log: 4 or 16 bytes, then the port."""
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")).packed + struct.pack(">i", int(port))


@dataclasses.dataclass
class Stored:
    """A record of the log. `born_timestamp` and `store_timestamp` are -1 until they are known."""

    spec: Spec  # as stored: with the topic and the properties that a delay adds
    item: Spec  # `spec`, or one message of a batch
    queue_offset: int
    phy_offset: int
    store_timestamp: int = -1
    born_timestamp: int = -1

    def __post_init__(self) -> None:
        self.properties = dict(self.item["properties"])
        if self.item is not self.spec:  # the properties of the batch follow, and override
            self.properties |= dict(self.spec["properties"])
        self.born_timestamp = self.spec["born_timestamp"]

    @property
    def queue(self) -> tuple[str, int]:
        return self.spec["topic"], self.spec["queue_id"]

    @property
    def queued(self) -> bool:
        return is_queued(self.spec)

    @property
    def sys_flag(self) -> int:
        v6 = [self.spec[name].startswith("[") for name in ("born_host", "store_host")]
        return self.spec["sys_flag"] | v6[0] * oracle.BORN_V6 | v6[1] * oracle.STORE_V6

    @property
    def size(self) -> int:
        hosts = len(host_bytes(self.spec["born_host"])) + len(host_bytes(self.spec["store_host"]))
        texts = len(self.item["body"]) + len(self.spec["topic"].encode())
        return 75 + hosts + texts + self._properties_size()

    def _properties_size(self) -> int:
        """Text as UTF-8; that of a batch follows that of the message, repeated names included."""
        parts = [self.item["properties"]]
        parts += [] if self.item is self.spec else [self.spec["properties"]]
        pairs = [pair for part in parts for pair in part]
        return len("\x02".join(f"{name}\x01{value}" for name, value in pairs).encode())

    @property
    def text(self) -> bytes:
        """The properties as stored."""
        texts = [oracle.properties_to_string(dict(self.item["properties"]))]
        if self.item is not self.spec:
            texts.append(oracle.properties_to_string(dict(self.spec["properties"])))
        return "\x02".join(text for text in texts if text).encode()

    def learn(self, have: oracle.Record) -> None:
        """Take times and the unique key from the log if the store made them."""
        self.store_timestamp = have.store_timestamp
        if self.spec["born_timestamp"] < 0:
            self.born_timestamp = have.born_timestamp
            assert self.born_timestamp <= self.store_timestamp
        unknown = self.properties.get("UNIQ_KEY", "")
        made = have.properties_map().get("UNIQ_KEY", "")
        if unknown.strip(UNKNOWN) == "" and len(made) == len(unknown) > 0:
            assert not made.strip("0123456789ABCDEF"), made
            self.properties["UNIQ_KEY"] = made
            pairs = self.item["properties"]  # queries read keys from here too
            pairs[:] = [(name, made if name == "UNIQ_KEY" else value) for name, value in pairs]

    def take_torn(self, text: bytes) -> None:
        """Accept properties that a kill has cut: the last part of a record, which no CRC covers.

        Both sides read the properties as they are, with zeros behind them.
        """
        written = text.rstrip(b"\0")
        assert len(text) == len(self.text) and self.text.startswith(written), (text, self.text)
        self.properties = oracle.string_to_properties(oracle.java_text(text))

    @property
    def msg_id(self) -> str:
        host = host_bytes(self.spec["store_host"])
        return (host + struct.pack(">q", self.phy_offset)).hex().upper()

    @property
    def body_crc(self) -> int:
        return zlib.crc32(self.item["body"]) & 0x7FFFFFFF

    def key_hashes(self) -> list[int]:
        """Return the hashes of its index entries, in the order of the index."""
        if self.spec["sys_flag"] & oracle.TRANSACTION_MASK == oracle.ROLLBACK:
            return []
        names = [self.properties.get("UNIQ_KEY"), *self.properties.get("KEYS", "").split(" ")]
        return [index_hash(self.spec["topic"], name) for name in names if name]

    def fields(self, delay_ms: int) -> Line:
        """Return its line of a dump, without the position of its unit."""
        code = java_hash(self.properties.get("TAGS", ""))
        if self.spec["topic"] == SCHEDULE_TOPIC:
            code = self.store_timestamp + delay_ms
        body = self.item["body"]
        return {
            "topic": self.spec["topic"],
            "queue_id": self.spec["queue_id"],
            "queue_offset": self.queue_offset,
            "phy_offset": self.phy_offset,
            "size": self.size,
            "tags_code": code,
            "decoded_commitlog_offset": self.phy_offset,
            "store_size": self.size,
            "flag": self.item["flag"],
            "sys_flag": self.sys_flag,
            "body_crc": self.body_crc,
            "born_timestamp": self.born_timestamp,
            "store_timestamp": self.store_timestamp,
            "born_host": java_host(self.spec["born_host"]),
            "store_host": java_host(self.spec["store_host"]),
            "reconsume_times": self.spec["reconsume_times"],
            "prepared_transaction_offset": self.spec.get("prepared_transaction_offset", 0),
            "msg_id": self.msg_id,
            "body_len": len(body),
            "body_sha256_8": hashlib.sha256(body).hexdigest()[:16] if body else "",
            "properties": self.properties,
        }


class Model:
    """The expected content of an undamaged store of small files: records in the order of puts."""

    def __init__(self, file_size: int, delay_ms: int) -> None:
        self.file_size = file_size
        self.delay_ms = delay_ms
        self.end = 0
        self.indexed_from = 0  # 4.9.3 has lost keys of messages before it
        self.rolling = False  # the process was killed where the next put rolls
        self.has_file = False  # a file of the log, of which no record is in any
        self.records: list[Stored] = []

    # ---- puts ---------------------------------------------------------------------------------

    def put(self, spec: Spec, answer: Line, root: Path | None = None) -> None:
        """Add an acknowledged put, whose reply must equal the prediction.

        Values that `Store` makes itself are read from the log below `root`.
        """
        records = self.predict(spec)
        first, last = records[0], records[-1]
        want = {
            "status": "PUT_OK",
            "wrote_offset": first.phy_offset,
            "wrote_bytes": last.phy_offset + last.size - first.phy_offset,
            "logics_offset": first.queue_offset,
            "msg_num": len(records),
            "msg_id": ",".join(record.msg_id for record in records),
        }
        have = {name: answer[name] for name in want}
        assert have == want, f"put {_short(spec)}: wanted {want}, found {have}"
        if root is not None and "way" in spec:
            self._learn(root, records)
        self.take(records, answer["store_timestamp"])

    def put_columns(self, specs: Sequence[Spec], answer: Line, root: Path) -> None:
        """Add a put_many, with the times in the log."""
        records = []
        for spec in specs:
            records += self.predict(spec)
            self.take(records[-1:], -1)
        assert answer["phy_offsets"] == [record.phy_offset for record in records]
        assert answer["queue_offsets"] == [record.queue_offset for record in records]
        self._learn(root, records)

    def _learn(self, root: Path, records: Sequence[Stored]) -> None:
        """Take values that the replies of these puts lack from the log."""
        found = self.scan(root, records[0].phy_offset)
        assert len(found) >= len(records), f"lost: {records[len(found)].phy_offset}"
        for record, (phy_offset, have) in zip(records, found, strict=False):
            assert phy_offset == record.phy_offset, (phy_offset, record.phy_offset)
            record.learn(have)

    def predict(self, spec: Spec) -> list[Stored]:
        """Return the records of the next put; a batch is in one file as a whole."""
        stored = spec if "batch" in spec else stored_form(spec)
        items = spec.get("batch", [stored])
        records = [Stored(stored, item, 0, 0) for item in items]
        total = sum(record.size for record in records)
        at = self.end
        if at % self.file_size + total + BLANK_HEAD_SIZE > self.file_size:
            at += self.file_size - at % self.file_size
        queue_offset = self.next_offset(records[0].queue) if records[0].queued else 0
        for i, record in enumerate(records):
            record.phy_offset = at
            record.queue_offset = queue_offset + i if record.queued else 0
            at += record.size
        return records

    def take(self, records: Iterable[Stored], store_timestamp: int) -> None:
        """Add records to the log."""
        for record in records:
            record.store_timestamp = store_timestamp
            self.rolling = False
            self.records.append(record)
            self.end = record.phy_offset + record.size

    def next_offset(self, queue: tuple[str, int]) -> int:
        return sum(record.queued and record.queue == queue for record in self.records)

    # ---- a kill -------------------------------------------------------------------------------

    def scan(self, root: Path, phy_offset: int) -> list[tuple[int, oracle.Record]]:
        """Return the records of the log from an offset on, by the plain-Python oracle."""
        found = []
        at = phy_offset
        while (path := root / "commitlog" / f"{at - at % self.file_size:020d}").exists():
            data = path.read_bytes()
            verdict, size = oracle.check_record(data[at % self.file_size :], at)
            if verdict == "blank":
                at += self.file_size - at % self.file_size
                continue
            if verdict != "ok":
                break
            start = at % self.file_size
            found.append((at, oracle.decode_record(data[start : start + size])))
            at += size
        return found

    def survive(self, root: Path, pending: Iterable[Spec]) -> int:
        """Add the prefix of unacknowledged puts that exists; return its number of messages."""
        records = self.scan(root, self.end)
        found = iter(records)
        count = 0
        for spec in pending:
            for record in self.predict(spec):
                phy_offset, have = next(found, (-1, None))
                if have is None:
                    self.rolling = record.phy_offset % self.file_size == 0
                    return count
                assert phy_offset == record.phy_offset, (phy_offset, record.phy_offset)
                body, topic = have.body, oracle.java_text(have.topic)
                assert (body, (topic, have.queue_id)) == (record.item["body"], record.queue)
                assert have.queue_offset == record.queue_offset
                record.learn(have)
                if have.properties != record.text:
                    assert have is records[-1][1], f"not the last, and torn: {phy_offset}"
                    record.take_torn(have.properties)
                self.take([record], have.store_timestamp)
                count += 1
        assert next(found, None) is None, "a record that was never put"
        return count

    def may_end(self, end: int) -> bool:
        """Return True if the log may end at an offset.

        A kill during a roll leaves the end at the start of the next, empty file; the model then
        adopts that end.
        """
        if self.rolling and end == self.end + self.file_size - self.end % self.file_size:
            self.end = end
        return end == self.end

    # ---- a dump -------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """Return the lines of a dump, except for offsets by time and queries."""
        least = 0 if self.records or self.has_file else -1
        found: list[Line] = [{"store": {"min_phy_offset": least, "max_phy_offset": self.end}}]
        for topic, queue_id in sorted({record.queue for record in self.records if record.queued}):
            records = [r for r in self.records if r.queued and r.queue == (topic, queue_id)]
            last = records[-1]
            queue = {"topic": topic, "queue_id": queue_id, "min_offset": 0}
            queue |= {"max_offset": len(records), "max_physic_offset": last.phy_offset + last.size}
            found.append({"queue": queue})
            for i, record in enumerate(records):
                where = {"cq_topic": topic, "cq_queue_id": queue_id, "cq_offset": i}
                found.append({"message": where | record.fields(self.delay_ms)})
        return found

    def hits(self, topic: str, key: str) -> list[int]:
        """Return the offsets of a key's entries in the order of the index, collisions included."""
        asked = index_hash(topic, key)
        return [r.phy_offset for r in self.records for code in r.key_hashes() if code == asked]

    def check(self, dump: Iterable[str]) -> None:
        """Require that a dump equals the model, and that every key is found.

        Only queries without a time window are compared. Duplicate entries, which 4.9.3 makes when
        it recovers a killed store, may displace older hits.
        """
        parsed = [json.loads(line) for line in dump]
        have = [line for line in parsed if not {"query", "offset_by_time"} & line.keys()]
        assert self.may_end(have[0]["store"]["max_phy_offset"]), f"{have[0]}, put up to {self.end}"
        if self.rolling and not self.records:  # a kill: the first file may exist or not
            self.has_file = have[0]["store"]["min_phy_offset"] == 0
        for want, line in zip(self.lines(), have, strict=False):
            assert want == line, f"the model has {want}\nthe dump has  {line}"
        assert len(have) == len(self.lines()), f"{len(have)} lines, the model {len(self.lines())}"
        for line in parsed:
            if "query" in line and (line["query"]["begin"], line["query"]["end"]) == ALL_TIME:
                self._check_query(line["query"])

    def _check_query(self, query: Line) -> None:
        offsets = query["phy_offsets"]
        hits = self.hits(query["topic"], query["key"])
        assert offsets == sorted(offsets), query
        assert set(offsets) <= set(hits), f"no hits: {set(offsets) - set(hits)}: {query}"
        limit = min(query["max_num"], QUERY_COUNT_MAX)
        assert len(offsets) <= limit, query
        missing = {hit for hit in hits if hit >= self.indexed_from} - set(offsets)
        pushed_out = len(offsets) == limit and max(missing, default=0) < min(offsets, default=0)
        assert not missing or pushed_out, f"{query} lacks {sorted(missing)}"


ALL_TIME = (0, (1 << 63) - 1)


def _short(spec: Spec) -> str:
    """Return a short text for a message."""
    return ", ".join(f"{name}={str(value)[:60]}" for name, value in spec.items())
