"""Goal: all spellings of a path name one directory, and a path that is not local is refused.
Method: spellings of paths, each accepted or refused; every function of the package that takes a
path is called with a URI of another file system and must leave no file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.local_paths import local_path
from pyrocketstore.spark.options import WRITE, read_options

ELSEWHERE = ["s3a://bucket/lake", "hdfs:/x", "hdfs://name:8020/x", "abfss://c@a/x", "S3://b/x"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/a/b", "/a/b"),
        ("/a/./c/../b/", "/a/b"),
        ("/a/s3a:/b", "/a/s3a:/b"),
        ("/a/%20", "/a/%20"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("FILE:////a//b/", "/a/b"),
        ("file://localhost/a", "/a"),
        ("file:///a%20b/%25/%C3%A9", "/a b/%/é"),
        ("file:///a?b#c=d", "/a?b#c=d"),
        ("file:///%FFx", os.fsdecode(b"/\xffx")),
        ("file:///%2e%2e/a", "/a"),
    ],
)
def test_a_path_however_it_is_spelled(path: str, wanted: str) -> None:
    assert local_path(path, "path") == wanted
    assert local_path(wanted, "path") == wanted


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/x")
    assert local_path("a:b/c", "path") == f"{tmp_path}/a:b/c"
    assert local_path(Path("a"), "path") == f"{tmp_path}/a"
    assert local_path("~/a", "path") == "/home/x/a"
    assert local_path("C:/a", "path") == f"{tmp_path}/C:/a"


def test_the_directory_above_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    for path in ("link/../c", f"{tmp_path}/link/../c", f"file://{tmp_path}/link/%2E./c"):
        assert local_path(path, "path") == str(tmp_path.resolve() / "a" / "c")
    assert local_path("link/c", "path") == f"{tmp_path}/link/c"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        *((path, "is not local") for path in ELSEWHERE),
        ("s3a:/bucket/lake", "is not local"),  # the text that pathlib returns for s3a://bucket/lake
        ("file://other/x", "names the machine 'other'"),
        ("file:x", "absolute path"),
        ("file:", "absolute path"),
        ("file://localhost", "absolute path"),
        ("file:///a%2", "two hexadecimal digits"),
        ("file:///a%zz", "two hexadecimal digits"),
        ("file:///a%00", "NUL"),
        ("", "empty"),
        ("\ud800", "encoding"),
    ],
)
def test_what_is_refused(path: str, text: str) -> None:
    with pytest.raises(StoreFormatError, match=f"^lake.*{text}"):
        local_path(path, "lake")


def _entries() -> dict[str, Callable[[Any, str, str], object]]:
    """Everything that takes a path: called with (spark, a store, a URI)."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from pyrocketstore.spark import pipeline
    from pyrocketstore.spark.jobs import rebuild as rebuild_job
    from pyrocketstore.spark.jobs import verify as verify_job
    from pyrocketstore.spark.source.writer import write_options

    body = StructType([StructField("body", BinaryType())])

    def write(**options: str) -> object:
        return write_options({"topic": "t", **options}, body, False)

    return {
        "path": lambda _, store, uri: read_options({"path": uri}),
        "paths": lambda _, store, uri: read_options({"paths": f'["{uri}"]'}),
        "stores": lambda _, store, uri: read_options({"stores": f'{{"a": "{uri}"}}'}),
        "brokerConf": lambda _, store, uri: read_options({"path": store, "brokerConf": uri}),
        WRITE: lambda _, store, uri: write(path=uri),
        "stagingDir": lambda _, store, uri: write(path=store, stagingDir=uri),
        "write brokerConf": lambda _, store, uri: write(path=store, brokerConf=uri),
        "export": lambda spark, store, uri: pipeline.export(spark, store, uri),
        "export of": lambda spark, store, uri: pipeline.export(spark, uri, f"{store}/lake"),
        "export of a": lambda spark, store, uri: pipeline.export(spark, {"a": uri}, f"{store}/l"),
        "read_lake": lambda spark, store, uri: pipeline.read_lake(spark, uri),
        "read_manifest": lambda spark, store, uri: pipeline.read_manifest(uri),
        "is_lake": lambda spark, store, uri: pipeline.is_lake(uri),
        "verify": lambda spark, store, uri: verify_job.verify(spark, uri),
        "verify conf": lambda spark, store, uri: verify_job.verify(spark, store, broker_conf=uri),
        "rebuild": lambda spark, store, uri: rebuild_job.rebuild(spark, store, uri),
        "rebuild of": lambda spark, store, uri: rebuild_job.rebuild(spark, uri, f"{store}/new"),
        "rebuild conf": lambda spark, store, uri: rebuild_job.rebuild(
            spark, store, f"{store}/new", broker_conf=uri
        ),
    }


@pytest.mark.parametrize("uri", ["s3a://bucket/lake", "file://other/lake"])
def test_nothing_takes_a_directory_of_another_file_system(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    for name, entry in _entries().items():
        with pytest.raises(StoreFormatError, match=r"is not local|names the machine"):
            print(name, entry(None, str(tmp_path / "store"), uri))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_commands_take_uris(tmp_path: Path) -> None:
    click = pytest.importorskip("click", reason="click is not installed")
    from pyrocketstore.cli.spark_commands import _existing, _labelled

    (tmp_path / "a b=c").mkdir()
    uri = f"file://{tmp_path}/a%20b=c"
    assert _labelled((uri,)) == {"a b=c": uri}
    assert _labelled((f"x={uri}",)) == {"x": uri}
    assert _existing(uri) == str(tmp_path / "a b=c")
    with pytest.raises(click.UsageError, match="does not exist"):
        _existing(f"file://{tmp_path}/a%20b")
    with pytest.raises(StoreFormatError, match="is not local"):
        _existing("s3a://bucket/lake")
