"""Goal: every topic and label has file names in a lake that the file system accepts, and from which
Spark reads the topic back.
Method: names unescaped by Spark's rules, which are implemented here; real exports of odd topics."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pyrocketstore
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.lake.manifest import NO_DATE, Split, escaped, topic_name

LONGEST = "%" * 90
TOPICS = ["t", LONGEST, "%RETRY%" * 18, NO_DATE, f"{NO_DATE}2", "123", "%41", "a|b", "%7Ex"]
NAMES = st.text(st.sampled_from('ab%4179E~/"\\_-|= é\ufffd\udc80\ud800'), min_size=1, max_size=260)


def unescaped(name: str) -> str | None:
    """The value that Spark reads from a directory's name."""
    if name == "__HIVE_DEFAULT_PARTITION__":
        return None
    return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), name)


@given(NAMES)
@example(NO_DATE)
@example("~" + "0" * 64)
@example(LONGEST)
def test_a_topic_s_name_fits_and_reads_back(topic: str) -> None:
    name = topic_name(topic)
    assert "/" not in name and len(os.fsencode(f"topic={name}")) <= 255
    if not name.startswith("~"):
        assert unescaped(name) == topic
    else:
        if "\ud800" not in topic:  # such a name has no bytes
            assert len(os.fsencode(escaped(topic))) > 255 - len("topic=")
        assert re.fullmatch("~[0-9a-f]{64}", name)


@given(NAMES, NAMES)
def test_two_topics_have_two_names(one: str, other: str) -> None:
    assert (topic_name(one) == topic_name(other)) == (one == other)


@given(NAMES)
def test_the_name_of_a_file_fits(label: str) -> None:
    name = Split(0, label, "t", 2**31 - 1, 0, 2**63 - 1, 0).file_name
    temporary = f".tmp-01234567-{name}.9999.parquet"
    assert "/" not in name and not name.startswith(("_", "."))
    assert len(os.fsencode(temporary)) <= 255


def test_such_topics_are_exported(tmp_path: Path, spark) -> None:
    from pyrocketstore.spark.pipeline import export, read_lake

    with pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 16) as store:
        for topic in TOPICS:
            store.put(topic, topic.encode())
    label = "long" * 60
    options = {"includeSystemTopics": True}
    report = export(spark, {label: tmp_path / "s"}, tmp_path / "lake", **options)
    assert (report.rows, report.skipped) == (len(TOPICS), [])
    found = read_lake(spark, tmp_path / "lake")
    assert {(row.topic, bytes(row.body).decode(), row.brokerName) for row in found.collect()} == {
        (topic, topic, label) for topic in TOPICS
    }
    (row,) = found.where(f"topic = '{LONGEST}'").select("body").collect()
    assert bytes(row.body) == LONGEST.encode()
    assert found.columns[0] == "topic" and found.columns[-1] == "date"
    assert export(spark, {label: tmp_path / "s"}, tmp_path / "lake", **options).rows == 0
    others = [topic for topic in TOPICS if topic_name(topic).startswith("~")]
    assert others == [LONGEST]


@pytest.mark.parametrize("name", ["bogus", "", "zst", "brotli", None, 3])
def test_a_compression_that_there_is_not(tmp_path: Path, name: object) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyrocketstore.spark.pipeline import export

    pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 16).close()
    with pytest.raises(StoreFormatError, match=f"compression={name!r}: must be one of zstd, "):
        export(None, tmp_path / "s", tmp_path / "lake", compression=name)  # type: ignore[arg-type]
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("name", ["ZSTD", "none", "snappy", "gzip", "lz4"])
def test_a_compression(tmp_path: Path, spark, name: str) -> None:
    from pyrocketstore.spark.pipeline import export, read_lake

    with pyrocketstore.open(tmp_path / "s", mapped_file_size_commit_log=1 << 16) as store:
        store.put("t", b"x" * 100)
    assert export(spark, tmp_path / "s", tmp_path / "lake", compression=name).rows == 1
    assert [bytes(row.body) for row in read_lake(spark, tmp_path / "lake").collect()] == [
        b"x" * 100
    ]
