"""Goal: each reader of properties skips the items that are no property, as 4.9.3 does, and verify
counts their records and reports no damage.
Method: a table of odd texts, each stored by `put_message` and read by every decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyrocketstore
from pyrocketstore import (
    DefaultMessageStore,
    MessageExtBrokerInner,
    MessageStoreConfig,
    Sql92Filter,
)
from pyrocketstore.record._message import string_to_properties
from pyrocketstore.record._record import find_properties
from pyrocketstore.spark.read import records
from support import oracle
from support.odd_properties import ODD_TEXTS, has_skipped_item
from support.sizes import SIZES

TEXTS = [text for text, _ in ODD_TEXTS]
FOUND = [found for _, found in ODD_TEXTS]


def put_texts(root: Path, texts: list[str]) -> None:
    """Store one message with each text, in order, in a queue of its own."""
    store = DefaultMessageStore(MessageStoreConfig(store_path_root_dir=str(root), **SIZES))
    store.load()
    store.start()
    for number, text in enumerate(texts):
        message = MessageExtBrokerInner("t", b"%d" % number, properties_string=text)
        assert store.put_message(message).status.name == "PUT_OK"
    store.wait_dispatched()
    store.shutdown()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "store"
    put_texts(path, TEXTS)
    return path


@pytest.mark.parametrize(("text", "found"), ODD_TEXTS)
def test_a_text(text: str, found: dict[str, str]) -> None:
    assert oracle.string_to_properties(text) == found
    assert string_to_properties(text) == found
    raw = text.encode()
    stored = {n: raw[a : a + s].decode() for n, (a, s) in find_properties(raw).items() if s > 0}
    names = ("TAGS", "KEYS", "UNIQ_KEY")
    assert {n: v for n, v in stored.items() if n in names} == {
        n: v for n, v in found.items() if n in names
    }


def test_messages(root: Path) -> None:
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        messages = list(store.read("t"))
        assert [dict(m.properties or {}) for m in messages] == FOUND
        assert [m.tags for m in messages] == [found.get("TAGS") for found in FOUND]
        assert [m.uniq_key for m in messages] == [found.get("UNIQ_KEY") for found in FOUND]
        hits = [int(m.body) for m in store.read("t", where="KEYS = 'k1'")]
        assert hits == [n for n, found in enumerate(FOUND) if found.get("KEYS") == "k1"]
        hits = [int(m.body) for m in store.read("t", tags="t")]
        assert hits == [n for n, found in enumerate(FOUND) if found.get("TAGS") == "t"]
        hits = [int(m.body) for m in store.query("t", "k1")]
        assert sorted(hits) == [
            n for n, found in enumerate(FOUND) if "k1" in found.get("KEYS", "").split(" ")
        ]


def test_columns(root: Path) -> None:
    pytest.importorskip("pyarrow")
    names = ("tags", "keys", "uniq_key", "properties_map")
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        batch = store.read_batch("t", 0, start=0, columns=names)
    columns: dict[str, list[Any]] = {n: batch.column(n).to_pylist() for n in names}
    columns["properties_map"] = [dict(row) for row in columns["properties_map"]]
    assert columns["properties_map"] == FOUND
    for name, of in (("tags", "TAGS"), ("keys", "KEYS"), ("uniq_key", "UNIQ_KEY")):
        assert columns[name] == [found.get(of) for found in FOUND]


def test_columns_of_spark() -> None:
    pa = pytest.importorskip("pyarrow")
    from pyrocketstore.spark.udf import encoded

    for kind in (pa.string(), pa.binary()):
        array = pa.array([t.encode() for t in TEXTS], pa.binary()).cast(kind)
        found = encoded.properties_map_array(array).to_pylist()
        assert [dict(row) for row in found] == FOUND


def test_filters(root: Path) -> None:
    where = Sql92Filter("TAGS IS NOT NULL AND KEYS IS NULL")
    assert [where.matches(found) for found in FOUND] == [
        "TAGS" in found and "KEYS" not in found for found in FOUND
    ]


def test_verify_counts_them(root: Path) -> None:
    with pyrocketstore.open(root, read_only=True, **SIZES) as store:
        report = store.verify()
    assert report.ok and report.problems == [] and report.bad_properties == 0
    assert report.skipped_properties == sum(map(has_skipped_item, TEXTS)) > 5


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("INNER_MULTI_DISPATCH\x01%LMQ%a", True),
        ("INNER_MULTI_DISPATCH\x01b\x02\x02INNER_MULTI_DISPATCH\x01%LMQ%a\n", False),
        ("INNER_MULTI_DISPATCH\x01b\x02INNER_MULTI_DISPATCH\x01c,%LMQ%a", True),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_DISPATCH\x01", True),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_DISPATCH\x01b", False),
        ("\x02\x02", False),
    ],
)
def test_further_queues(text: str, is_named: bool) -> None:
    raw = oracle.encode_record(oracle.Record(topic=b"t", body=b"x", properties=text.encode()))
    chunk = records.Chunk(
        data=np.frombuffer(raw, np.uint8),
        positions=np.zeros(1, np.int64),
        sizes=np.array([len(raw)], np.int32),
        phy_offsets=np.zeros(1, np.int64),
        path="file",
        file_from_offset=0,
        topic="%LMQ%a",
    )
    assert records.is_dispatched_to(chunk, 0) == is_named
