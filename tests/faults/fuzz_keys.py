"""Kernel: key searches in a small log and its index, which are damaged together."""

from __future__ import annotations

import os
import random
import struct
from types import SimpleNamespace
from typing import Any

from fuzz_bytes import Field, changes, record_fields, repair_record, set_number
from fuzz_records import Bytes, Kernel, same
from fuzz_tables import FOREVER, KEYS, damage_index, wanted_hits
from pyrocketstore.commit_log._append import CommitLogCore
from pyrocketstore.errors import StoreCorruptionError, StoreIOError
from pyrocketstore.files._mapped_file import FileSequence, MappedFile
from pyrocketstore.index._entries import key_hash_of
from pyrocketstore.index._file import IndexFile
from pyrocketstore.reading._by_key import KeySearch
from pyrocketstore.system._env import Event
from support import oracle
from support.oracle_index import OracleIndexFile

BAD_KEY = "a\ufffdb"
LONE = "\ud800"
BAD_KEYS = ([], [b"a\xffb"], [b""], [b"a\xff", b"a\xffb"], [b"a\xffbc", b"a\xffb"])
FAULTS = ("log cut", "index cut", "index gone", "index taken away", "log taken away")


class KeyKernel(Kernel):
    """Two files of the log, with a gap between them, and one index file."""

    name = "keys"
    SLOTS, ENTRIES = 4, 40
    FILE_SIZE = 1024
    BASES = (4096, 6144)
    IN_FIRST, RECORDS = 5, 14

    def prepare(self) -> None:
        self.log_paths = [str(self.scratch / f"{base:020d}") for base in self.BASES]
        self.index_path = str(self.scratch / "20260101000000000")
        self.core = CommitLogCore(self.env, 1 << 20, Event())
        self.seeds = [self.seed() for _ in range(12)]

    def seed(self) -> tuple[bytes, bytes, list[int], list[Field]]:
        """Return the log without its gap, the index, the records' positions, the log's fields."""
        rng, log = self.rng, b""
        positions: list[int] = []
        fields: list[Field] = []
        index = OracleIndexFile(self.SLOTS, self.ENTRIES)
        often = rng.choice(KEYS)
        for i in range(self.RECORDS):
            if i == self.IN_FIRST:
                log = log.ljust(self.FILE_SIZE, b"\0")
            keys = [*rng.sample(KEYS, rng.choice((0, 1, 2))), *rng.choice(((), (often,)))]
            raw = [key.encode() for key in keys] + rng.choice(BAD_KEYS)
            text = b"KEYS\1" + b" ".join(raw) if raw or rng.random() < 0.5 else b"TAGS\1t"
            if rng.random() < 0.3:
                text += b"\2UNIQ_KEY\1" + rng.choice(KEYS).encode()
            at = len(log)
            record = oracle.Record(
                topic=rng.choice((b"T", b"T", b"T", b"U", b"\xff")),
                body=b"x" * i,
                properties=text,
                phy_offset=self.offset_of(at),
                store_timestamp=1000 + 900 * i,
            )
            data = oracle.encode_record(record)
            for topic, key in oracle.index_keys(record):
                index.put(key_hash_of(topic, key), self.offset_of(at), record.store_timestamp)
            positions.append(at)
            fields += record_fields(data, at)
            log += data
        return log, bytes(index.data), positions, fields

    def offset_of(self, at: int) -> int:
        """Return the physical offset of byte `at` of the log."""
        first, second = self.BASES
        return first + at if at < self.FILE_SIZE else second + at - self.FILE_SIZE

    def make(self, rng: random.Random) -> Bytes:
        log, index, positions, fields = rng.choice(self.seeds)
        data, changed = bytearray(log), bytearray(index)
        texts = changes(rng, (0, 1, 1, 2), data, fields)
        at = rng.choice(positions)
        texts.append(repair_record(rng, data, at, self.offset_of(at)))
        texts += ["index: " + damage_index(rng, changed, self.SLOTS, self.ENTRIES)
                  for _ in range(rng.choice((0, 1, 1, 2)))]  # fmt: skip
        if rng.random() < 0.4:  # an entry with another physical offset
            entry = 40 + 4 * self.SLOTS + 20 * rng.randrange(1, 20)
            end = self.offset_of(len(data))
            own = self.offset_of(at)
            other = rng.choice((own, own + 1, end - 3, end, -1, 0, 5500,
                                self.BASES[0] + self.FILE_SIZE - 2))  # fmt: skip
            set_number(changed, Field("phyOffset", entry + 4, 8), other)
        begin, end = rng.choice(((0, FOREVER), (0, FOREVER), (-(2**63), FOREVER), (1900, 4600),
                                 (5000, 0)))  # fmt: skip
        topic = rng.choice(("T", "T", "T", "U", "\ufffd", LONE))
        key = rng.choice((*KEYS, BAD_KEY, BAD_KEY, LONE, "", "a\ufffd"))
        if rng.random() < 0.15:  # repeated offsets, not in ascending order
            field = Field("phyOffset", 0, 8)
            for number in range(1, 20):
                entry = 40 + 4 * self.SLOTS + 20 * number + 4
                set_number(changed, field._replace(at=entry), self.offset_of(rng.choice(positions)))
            texts.append("entries name any records")
        fault = rng.choice(FAULTS) if rng.random() < 0.1 else ""
        arguments = (bytes(changed), topic, key, begin, end, rng.choice((1, 2, 32, 100)),
                 rng.choice(("", "", "log", "both")), rng.random() < 0.7, fault)  # fmt: skip
        del data[2 * self.FILE_SIZE :]
        text = "; ".join(filter(None, [*texts, fault]))
        return Bytes(text, bytes(data).ljust(self.FILE_SIZE + 1, b"\0"), arguments)

    def open(self, mutant: Bytes) -> tuple[KeySearch, list[Any]]:
        """Return a search over the mutant, and the files to shut down afterwards."""
        log, (index, _, _, _, _, _, mapped, _, _) = mutant.data, mutant.arguments
        parts = log[: self.FILE_SIZE], log[self.FILE_SIZE :]
        files = []
        for path, base, part in zip(self.log_paths, self.BASES, parts, strict=True):
            with open(path, "wb") as out:
                out.write(part.ljust(self.FILE_SIZE, b"\0"))
            files.append(MappedFile(self.env, path, self.FILE_SIZE, mode="read",
                                    file_from_offset=base))  # fmt: skip
            files[-1].set_positions(len(part))
            if mapped:
                files[-1].to_memory()
        with open(self.index_path, "wb") as out:
            out.write(index)
        file = IndexFile(self.env, self.index_path, self.SLOTS, self.ENTRIES, mode="read")
        if mapped == "both":
            file.open_for_writing()
        self.core.set_end_offset(self.offset_of(len(log)))
        log_files = SimpleNamespace(
            mapped_files=FileSequence(files), mapped_file_size=self.FILE_SIZE
        )
        service = SimpleNamespace(_files=(file,), geometry_error=None)
        search = KeySearch(self.core, log_files, service, None, lambda: None)
        return search, [*files, file]

    def change_files(self, fault: str, opened: list[Any]) -> None:
        """Cut, delete or shut down a file while it is open."""
        if fault == "log cut":
            os.truncate(self.log_paths[0], 300)
        elif fault == "index cut":
            os.truncate(self.index_path, 60)
        elif fault == "index gone":
            os.unlink(self.index_path)
        elif fault:
            opened[-1 if fault == "index taken away" else 0].shutdown()

    def check(self, mutant: Bytes) -> None:
        _, topic, key, begin, end, max_num, _, exact, fault = mutant.arguments
        search, opened = self.open(mutant)
        self.change_files(fault, opened)
        wanted = self.plain_query(mutant, key, exact)
        names = [key, "none", "é", *({2: KEYS, 100: KEYS * 12}.get(max_num, ()))]
        rows = [(i, phy) for i, one in enumerate(names)
                for phy in self.plain_query(mutant, one, True)]  # fmt: skip
        try:
            many = search.query_many(topic, names, begin, end, max_num)
            if not fault.endswith("taken away") and not self.may_be_expired(mutant):
                found_rows = list(zip(many[0].tolist(), many[1].tolist(), strict=True))
                same(found_rows, rows, "query_many")
        except (StoreCorruptionError, StoreIOError) as error:
            self.check_error(fault, error)
        try:
            found = search.query(topic, key, begin, end, max_num, exact)
        except (StoreCorruptionError, StoreIOError) as error:
            self.check_error(fault, error)
        else:
            offsets = [m.phy_offset for m in found]
            if fault.endswith("taken away") or self.may_be_expired(mutant):
                assert set(offsets) <= set(wanted), offsets
            else:
                same(offsets, wanted, "query")
            for message in found:
                raw = self.bytes_at(mutant.data, message.phy_offset)
                same(message.record, raw[: message.size], "record")
        for file in opened:
            file.shutdown()

    def check_error(self, fault: str, error: StoreCorruptionError | StoreIOError) -> None:
        assert fault and error.path in (*self.log_paths, self.index_path), error

    def may_be_expired(self, mutant: Bytes) -> bool:
        """Whether the header of a deleted index file names only records before the log."""
        begin, end = struct.unpack_from(">qq", mutant.arguments[0], 16)
        return mutant.arguments[-1] == "index gone" and begin <= end < self.BASES[0]

    def bytes_at(self, log: bytes, phy_offset: int) -> bytes:
        """Return the bytes of a log file from an offset on; none in a gap."""
        for i, base in enumerate(self.BASES):
            if 0 <= phy_offset - base < self.FILE_SIZE:
                return log[self.FILE_SIZE * i : self.FILE_SIZE * (i + 1)][phy_offset - base :]
        return b""

    def plain_query(self, mutant: Bytes, key: str, exact: bool) -> list[int]:
        """Return the offsets of the newest records with a key, ascending."""
        index, topic, _, begin, end, max_num, mapped, _, _ = mutant.arguments
        found: list[int] = []
        if exact and LONE in topic + key:
            return found
        hashed = oracle.java_hash(f"{topic}#{key}".encode("utf-8", "surrogatepass"))
        hashed = 0 if hashed == -(2**31) else abs(hashed)
        hits = wanted_hits(index, self.SLOTS, self.ENTRIES, hashed, begin, end, mapped != "both")
        for phy, _ in hits:
            if len(found) == max_num:
                break
            data = self.bytes_at(mutant.data, phy)
            if phy in found or len(data) < 4:
                continue
            size = struct.unpack_from(">i", data)[0]
            if not 0 < size <= len(data):
                continue
            if oracle.check_record(data[:size], phy, False)[0] != "ok":
                continue
            record = oracle.decode_record(data[:size])
            if begin <= record.store_timestamp <= end and (
                not exact or self.is_wanted(record, topic, key)
            ):
                found.append(phy)
        return sorted(found)

    def is_wanted(self, record: oracle.Record, topic: str, key: str) -> bool:
        properties = record.properties_map()
        keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
        return oracle.java_text(record.topic) == topic and key in keys


KERNELS: tuple[type[Kernel], ...] = (KeyKernel,)
