"""Encoded records of every kind, and the fields that a plain reader decodes, in Spark's names."""

from __future__ import annotations

import datetime
import ipaddress
import random
import tarfile
import zlib
from pathlib import Path
from typing import Any

from support import oracle

GOLDEN = Path(__file__).parent.parent / "golden"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def golden_records(name: str) -> list[bytes]:
    """The records of a golden store, in the order of its log."""
    found = []
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.isfile() and member.name.startswith(f"{name}/commitlog/"):
                stream = archive.extractfile(member)
                assert stream is not None
                data = stream.read()
                records, _, _ = oracle.scan_log(data, int(Path(member.name).name))
                found += [data[at : at + (record.total_size or 0)] for at, record in records]
    return found


def host_text(raw: bytes) -> str:
    """A host as the engine shows it."""
    port = int.from_bytes(raw[-4:], "big", signed=True)
    if raw[:12] == bytes(10) + b"\xff\xff":
        raw = raw[12:]
    if len(raw) == 20:
        return f"[{ipaddress.IPv6Address(raw[:16]).compressed}]:{port}"
    return ".".join(map(str, raw[:4])) + f":{port}"


def plain_body(record: oracle.Record) -> bytes | None:
    """The body as a reader gets it; None where it cannot be inflated."""
    if not record.sys_flag & oracle.COMPRESSED or not record.body:
        return record.body
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(record.body)
    except zlib.error:
        return None
    return body if inflater.eof else None


def microseconds(ms: int) -> int | None:
    """As Spark counts; None where it cannot."""
    return ms * 1000 if abs(ms * 1000) < 2**63 else None


def plain_message(data: bytes) -> dict[str, Any]:
    """Every field of a valid record; times as microseconds."""
    size = int.from_bytes(data[:4], "big")
    record = oracle.decode_record(data[:size])
    properties = record.properties_map()
    store_host = record.store_host
    if store_host[:12] == bytes(10) + b"\xff\xff":
        store_host = store_host[12:]
    return {
        "topic": oracle.java_text(record.topic),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.phy_offset,
        "storeSize": size,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "uniqKey": properties.get("UNIQ_KEY"),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": microseconds(record.born_timestamp),
        "storeTimestamp": microseconds(record.store_timestamp),
        "bornHost": host_text(record.born_host),
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.crc,
        "msgId": oracle.message_id(store_host, record.phy_offset),
        "properties": properties,
        "body": plain_body(record),
    }


def some_records(seed: int, count: int) -> list[bytes]:
    """Random records: both kinds of host, malformed text, compressed bodies, wrong sums."""
    rng = random.Random(seed)
    hosts = [oracle.host("10.0.0.1", 10911), oracle.host("20010db8" + "0" * 23 + "1", 9876),
             oracle.host("0" * 20 + "ffff0a000001", 1)]  # fmt: skip
    texts = [b"TAGS\x01TagA", b"KEYS\x01k1 k2", b"UNIQ_KEY\x01ABC", b"\xff\x01\xed\xa0\x80",
             "名\x01字😀".encode(), b"a\x01b", b"a\x01c", b"cut\xe2\x82", b"\x01x"]  # fmt: skip
    made = []
    for i in range(count):
        body = rng.randbytes(rng.choice((0, 1, 100)))
        flag = rng.choice((0, 0, oracle.COMPRESSED, oracle.COMMIT))
        if flag == oracle.COMPRESSED and rng.random() < 0.8:
            body = zlib.compress(body * 3)
        record = oracle.Record(
            topic=rng.choice((b"T", "Thema-ä".encode(), b"\xf0\x9f")),
            body=body,
            properties=b"\x02".join(rng.choices(texts, k=rng.randrange(6))),
            queue_id=rng.choice((0, 3, 2**31 - 1, -1)),
            flag=rng.choice((0, -(2**31))),
            queue_offset=i,
            phy_offset=rng.choice((i, 1 << 40)),
            sys_flag=flag,
            born_timestamp=rng.choice((0, -1, 1_700_000_000_123, 2**63 - 1, -(2**63))),
            store_timestamp=1_700_000_000_000 + i,
            born_host=rng.choice(hosts),
            store_host=rng.choice(hosts),
            reconsume_times=rng.choice((0, 16)),
            crc=rng.choice((None, None, None, 7)),
        )
        made.append(oracle.encode_record(record))
    return made
