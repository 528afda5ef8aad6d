"""Goal: the views show exactly the entries of a store, and report missing ones.
Method: small stores that lose files, or are damaged, before or after a query was planned."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import SparkSession

from direct_reads import Row, read_directly
from pyrocketstore.errors import StoreCorruptionError
from pyrocketstore.spark import register
from pyrocketstore.spark.options import read_options
from pyrocketstore.spark.pipeline import export, read_lake
from pyrocketstore.spark.schemas import columns_of
from pyrocketstore.spark.source.batch import StoreReader
from pyrocketstore.spark.task_types import DataLossError

LOG_FILE, QUEUE_FILE = 1 << 16, 400
SIZES = {
    "mapped_file_size_commit_log": LOG_FILE,
    "mapped_file_size_consume_queue": QUEUE_FILE,
}
PRE_BLANK = struct.pack(">qiq", 0, 2**31 - 1, 0)
Rows = Callable[[], list[Row]]


def fill(root: Path, count: int, body: int = 100) -> Path:
    with pyrocketstore.open(root, **SIZES) as store:
        for number in range(count):
            store.put("T", bytes(body), keys=f"k{number}", tags="a")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """2000 messages in several files of the log."""
    return fill(tmp_path / "s", 2000)


def planned(root: Path, view: str, **options: object) -> Rows:
    """Plan now, and read the rows later, as executors would."""
    texts = {name: str(value).lower() for name, value in options.items()}
    requested = read_options({"path": str(root), "view": view, **texts})
    reader = StoreReader(requested, dict(columns_of(requested)[0]), None)
    sent = pickle.loads(pickle.dumps((reader, reader.partitions())))

    def rows() -> list[Row]:
        batches = [batch for part in sent[1] for batch in sent[0].read(part)]
        return [Row(row) for batch in batches for row in batch.to_pylist()]

    return rows


def write_units(root: Path, queue_offset: int, units: bytes) -> None:
    at = queue_offset * 20
    path = root / "consumequeue" / "T" / "0" / f"{at - at % QUEUE_FILE:020d}"
    with path.open("r+b") as file:
        file.seek(at % QUEUE_FILE)
        file.write(units)


class TestConsumeQueue:
    def test_units_that_are_gone_are_left_out_and_counted(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        lenient = planned(root, "consumequeue", failOnDataLoss=False, batchRows=33)
        strict = planned(root, "consumequeue")
        (root / "consumequeue" / "T" / "0" / f"{2 * QUEUE_FILE:020d}").unlink()
        with pytest.raises(DataLossError, match="20 units are gone, the first is 40"):
            strict()
        rows = lenient()
        assert [row.queueOffset for row in rows] == [*range(40), *range(60, 2000)]
        assert not any(row.isPreBlank for row in rows)
        assert all(Path(row.fileName).exists() for row in rows)
        assert "omitted 20 records" in caplog.text

    def test_pre_blank_units_are_shown(self, root: Path) -> None:
        write_units(root, 0, PRE_BLANK * 3)
        write_units(root, 57, PRE_BLANK)
        rows = read_directly(root, view="consumequeue")
        assert [row.queueOffset for row in rows] == list(range(2000))
        assert [row.queueOffset for row in rows if row.isPreBlank] == [0, 1, 2, 57]

    def test_units_of_a_deleted_log_are_shown(self, root: Path) -> None:
        (root / "commitlog" / ("0" * 20)).unlink()
        units = read_directly(root, view="consumequeue")
        first = min(row.queueOffset for row in read_directly(root, "queueOffset"))
        assert first > 100
        assert [row.queueOffset for row in units] == list(range(2000))
        options = {"view": "consumequeue", "startingOffsets": '{"T": {"0": 7}}'}
        assert len(read_directly(root, **options)) == 1993


class TestPreBlankUnits:
    """They name no message: none is shown, and none is missed."""

    @pytest.fixture
    def blank(self, tmp_path: Path) -> Path:
        """Two units before the queue's first message and one between messages, in front of the
        part of the log that an opening scans: there they are repaired."""
        root = fill(tmp_path / "s", 2000)
        assert len(list((root / "commitlog").iterdir())) > 3
        write_units(root, 0, PRE_BLANK * 2)
        write_units(root, 50, PRE_BLANK)
        return root

    @pytest.mark.parametrize("mode", ["queue", "sequential"])
    @pytest.mark.parametrize("on_corrupt", ["fail", "skip", "null"])
    def test_messages(
        self, blank: Path, mode: str, on_corrupt: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        options = {"readMode": mode, "onCorrupt": on_corrupt}
        rows = read_directly(blank, "queueOffset", "body", **options)
        assert sorted(row.queueOffset for row in rows) == [*range(2, 50), *range(51, 2000)]
        assert all(len(row.body) == 100 for row in rows)
        assert "omitted" not in caplog.text

    def test_a_lake(self, spark: SparkSession, blank: Path, tmp_path: Path) -> None:
        register(spark)
        report = export(spark, {"b": blank}, tmp_path / "lake")
        assert not report.skipped
        rows = read_lake(spark, str(tmp_path / "lake")).select("queueOffset").collect()
        assert sorted(row.queueOffset for row in rows) == [*range(2, 50), *range(51, 2000)]


class TestIndex:
    @staticmethod
    def file(root: Path) -> Path:
        (found,) = (root / "index").iterdir()
        return found

    def test_a_file_that_is_gone(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        strict = planned(root, "index")
        lenient = planned(root, "index", failOnDataLoss=False)
        self.file(root).unlink()
        with pytest.raises(DataLossError, match="gone, with its entries"):
            strict()
        assert lenient() == []
        assert "omitted 2000 records" in caplog.text

    def test_a_file_that_was_cut(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        kinds = {k: planned(root, "index", onCorrupt=k, batchRows=300) for k in ("skip", "null")}
        strict = planned(root, "index")
        whole = strict()
        path = self.file(root)
        with path.open("r+b") as file:
            file.truncate(40 + 4 * 5_000_000 + 20 * 1500 + 13)
        with pytest.raises(StoreCorruptionError, match="ends before 501 entries"):
            strict()
        assert kinds["skip"]() == whole[:1499]
        assert "omitted 501 records" in caplog.text
        rows = kinds["null"]()
        assert rows[:1499] == whole[:1499]
        assert [row.indexNo for row in rows] == list(range(1, 2001))
        said = {tuple(n for n, v in row.items() if v is not None) for row in rows[1499:]}
        assert said == {("fileName", "indexNo")}
        assert "shows 501 damaged ranges" in caplog.text


class TestCommitLog:
    def test_null_says_where_damage_is(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        rows = read_directly(root, view="commitlog")
        messages = [row for row in rows if row.recordType == "message"]
        head, body = messages[20], messages[30]
        with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.seek(head.filePosition)
            file.write(bytes(60))
            file.seek(body.filePosition + 100)
            file.write(b"\xff")
        for mode in ("skip", "null"):
            caplog.clear()
            found = read_directly(root, view="commitlog", onCorrupt=mode, verifyCrc=True)
            assert len(found) == len(rows)
            lost = [row for row in found if row.recordType == "corrupt"]
            places = [(row.commitLogOffset, row.filePosition, row.totalSize) for row in lost]
            assert places == [
                (row.commitLogOffset, row.filePosition, row.totalSize) for row in (head, body)
            ]
            assert [row.body for row in lost] == [None, None]
            assert "shows 2 damaged ranges" in caplog.text
            assert "omitted" not in caplog.text

    def test_a_file_that_is_gone(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        strict = planned(root, "commitlog")
        lenient = planned(root, "commitlog", failOnDataLoss=False)
        whole = strict()
        gone = root / "commitlog" / f"{LOG_FILE:020d}"
        gone.unlink()
        with pytest.raises(DataLossError, match="gone"):
            strict()
        assert lenient() == [row for row in whole if row.fileName != str(gone)]
        assert f"{gone}: gone" in caplog.text


QUERIES = [
    ("messages", {"readMode": "queue"}),
    ("messages", {"readMode": "sequential"}),
    ("messages", {"onCorrupt": "skip"}),
    ("messages", {"onCorrupt": "null"}),
    ("commitlog", {}),
    ("consumequeue", {}),
    ("index", {}),
]


class TestWhereTheStoreIsNot:
    """A task on an executor that does not have the directory fails; it never looks empty."""

    @pytest.mark.parametrize(("view", "options"), QUERIES)
    def test_it_fails(
        self,
        root: Path,
        view: str,
        options: dict[str, object],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        strict = planned(root, view, minPartitions=4, **options)
        lenient = planned(root, view, failOnDataLoss=False, **options)
        root.rename(root.with_name("elsewhere"))
        with pytest.raises(DataLossError, match="gone"):
            strict()
        caplog.clear()
        assert lenient() == []
        assert "omitted" in caplog.text
