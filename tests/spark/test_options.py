"""Goal: each option behaves as docs/spark.md describes, or is refused.
Method: option texts, compared with the parsed options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyrocketstore.errors import StoreFormatError
from pyrocketstore.spark.options import (
    ANY,
    EARLIEST,
    LATEST,
    STREAM,
    WRITE,
    canonical_options,
    read_options,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in the home directory, which is the current one too."""
    (tmp_path / "store x").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "store x")
    return tmp_path / "store x"


class TestPlaces:
    @pytest.mark.parametrize(
        "again", ["file://{0}", "file:{0}", "FILE:///{0}", "~/store x", ".", "../store x", "{1}"]
    )
    def test_one_directory_under_two_labels(self, store: Path, again: str) -> None:
        uri = "file://" + str(store).replace(" ", "%20")
        second = again.format(store, uri)
        with pytest.raises(StoreFormatError, match="two are the same directory"):
            read_options({"stores": json.dumps({"a": str(store), "b": second})})

    def test_through_a_link(self, store: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(store)
        stores = {"a": str(store), "b": f"file://{tmp_path}/link"}
        with pytest.raises(StoreFormatError, match="two are the same directory"):
            read_options({"stores": json.dumps(stores)})

    @pytest.mark.parametrize("path", [".", "./", "../store x/.", "~/store x", "file:{0}/store%20x"])
    def test_the_label_is_the_directory_s_name(
        self, store: Path, tmp_path: Path, path: str
    ) -> None:
        (place,) = read_options({"path": path.format(tmp_path)}).places
        assert place.broker_name == store.name
        (place,) = read_options({"paths": json.dumps([path.format(tmp_path)])}).places
        assert place.broker_name == store.name

    def test_the_label_of_the_directory_above(self, store: Path) -> None:
        (place,) = read_options({"path": ".."}).places
        assert place.broker_name == store.parent.name

    def test_another_file_system(self) -> None:
        with pytest.raises(StoreFormatError, match="local file system"):
            read_options({"path": "hdfs://x/y"})


ANOTHER = {
    "includeSystemTopics": "true",
    "startingOffsetsByTimestampStrategy": "latest",
    "verifyCrc": "true",
    "decompress": "false",
    "batchBytes": "1m",
    "batchRows": "10",
    "minPartitions": "5",
    "partitionBytes": "1m",
    "maxRecordsPerPartition": "5",
    "failOnDataLoss": "false",
}
QUEUES, RECORDS = {"messages", "consumequeue"}, {"messages", "commitlog"}
TASKS = {"messages", "commitlog", "consumequeue", "index"}
TAKEN_BY = {
    "includeSystemTopics": QUEUES,
    "startingOffsetsByTimestampStrategy": QUEUES,
    "verifyCrc": RECORDS,
    "decompress": RECORDS,
    "batchBytes": RECORDS,
}


class TestRefusals:
    @pytest.mark.parametrize("view", ["messages", "commitlog", "consumequeue", "index", "files"])
    @pytest.mark.parametrize("name", ANOTHER)
    def test_an_option_that_the_view_would_ignore(self, view: str, name: str) -> None:
        options = {"path": "/x", "view": view, name: ANOTHER[name]}
        if view in TAKEN_BY.get(name, TASKS):
            assert read_options(options).view == view
            return
        with pytest.raises(StoreFormatError, match=f"{name} is for view messages.*, not {view}"):
            read_options(options)

    def test_a_write_has_no_label(self) -> None:
        with pytest.raises(StoreFormatError, match="brokerName is for batch and stream"):
            canonical_options({"path": "/x", "brokerName": "b"}, WRITE)
        assert canonical_options({"brokerName": "b"}, ANY)

    @pytest.mark.parametrize("text", ["||", " || ", "||||"])
    def test_an_expression_without_a_tag(self, text: str) -> None:
        with pytest.raises(StoreFormatError, match=r"subExpression=.*names no tag"):
            read_options({"path": "/x", "subExpression": text})

    @pytest.mark.parametrize(
        ("text", "tags"), [("", None), (" * ", None), ("a||", {"a"}), ("|| a || b", {"a", "b"})]
    )
    def test_an_expression(self, text: str, tags: set[str] | None) -> None:
        wanted = read_options({"path": "/x", "subExpression": text}).wanted_tags
        assert (None if wanted is None else wanted.tags) == tags

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"startingOffsets": '{"t": {"0": 5, "1": -1}}'}, r"-1 \(latest\) for queue 't'/1"),
            ({"startingOffsets": '{"t": {"b": {"1": -1}}}'}, r"-1 \(latest\) for queue 't'/1"),
            ({"endingOffsets": '{"t": {"0": -2}}'}, r"-2 \(earliest\) for queue 't'/0"),
            ({"startingOffsets": "latest"}, "selects no message in a batch; use earliest"),
            ({"endingOffsets": "earliest"}, "reads nothing"),
        ],
    )
    def test_a_queue_of_which_nothing_would_be_read(
        self, options: dict[str, str], text: str
    ) -> None:
        with pytest.raises(StoreFormatError, match=text):
            read_options({"path": "/x", **options})

    def test_the_two_ends_at_their_own_side(self) -> None:
        starting = {"startingOffsets": '{"t": {"0": -2}}'}
        found = read_options({"path": "/x", "endingOffsets": '{"t": {"0": -1}}', **starting})
        assert found.starting.offset_of("x", "t", 0) == EARLIEST
        assert found.ending.offset_of("x", "t", 0) == LATEST
        latest = {"path": "/x", "startingOffsets": '{"t": {"0": -1}}'}
        assert read_options(latest, STREAM).starting.offset_of("x", "t", 0) == LATEST

    @pytest.mark.parametrize(
        "name",
        [
            "startingOffsets",
            "endingOffsets",
            "startingOffsetsByTimestamp",
            "endingOffsetsByTimestamp",
        ],
    )
    @pytest.mark.parametrize(
        "value", ['{"t": {}}', '{"u": {"0": 1000000000000}, "t": {}}', '{"t": {"b": {}}}']
    )
    def test_a_topic_without_a_queue(self, name: str, value: str) -> None:
        with pytest.raises(StoreFormatError, match=f"{name}=.*names no queue of topic 't'"):
            read_options({"path": "/x", name: value})

    def test_a_topic_that_is_assigned_no_queue(self) -> None:
        with pytest.raises(StoreFormatError, match=r"assign=.*names no queue of topic 't'"):
            read_options({"path": "/x", "assign": '{"u": [0], "t": []}'})
