"""Goal: the example and the code of the pages on frames and on the lake run unchanged.
Method: run them on the broker's golden store, and compare their answers with its list of
messages."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import DataFrame

from encoded_records import golden_records
from pyrocketstore.spark import register

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "broker-clean.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "broker-clean"


def test_the_example(spark, store, tmp_path, monkeypatch, capsys):
    conf = GOLDEN / "broker-clean.conf"
    words = ["broker_to_lake.py", str(store), str(tmp_path / "lake"), str(conf)]
    monkeypatch.setattr(sys, "argv", words)
    found = runpy.run_path(str(ROOT / "examples" / "broker_to_lake.py"))
    lines = (GOLDEN / "broker-clean.jsonl").read_text().splitlines()
    reported = [json.loads(line)["message"] for line in lines if line.startswith('{"message"')]
    counts = {row.topic: row.messages for row in found["by_topic"].collect()}
    assert counts == Counter(message["cq_topic"] for message in reported)
    tags = {(row.topic, row.tags): row.messages for row in found["by_tag"].collect()}
    assert tags == Counter(
        (message["cq_topic"], message["properties"].get("TAGS", "(none)")) for message in reported
    )
    back = {(row.topic, row.reconsumeTimes): row.messages for row in found["returned"].collect()}
    assert back == Counter(
        (message["cq_topic"], message["reconsume_times"])
        for message in reported
        if message["cq_topic"].startswith(("%RETRY%", "%DLQ%"))
    )
    assert f"{len(reported)} messages in" in capsys.readouterr().out


def test_the_code_of_the_document(spark, store, tmp_path, monkeypatch):
    text = (ROOT / "docs" / "spark-pipeline.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    names = {"spark": spark}
    for block in blocks:
        code = block.replace('"/data/store"', repr(str(store)))
        code = code.replace('"/data/new"', repr(str(tmp_path / "new")))
        exec(code.replace('"/data/lake"', repr(str(tmp_path / "lake"))), names)


def test_the_code_of_the_page_on_frames(spark, store, capsys):
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"python", "sql"}
    assert len(re.findall("^```", text, re.MULTILINE)) == 2 * len(blocks)
    lines = (GOLDEN / "broker-clean.jsonl").read_text().splitlines()
    reported = [json.loads(line)["message"] for line in lines if line.startswith('{"message"')]
    topics = Counter(message["cq_topic"] for message in reported)
    wanted = next(topic for topic in sorted(topics) if topic.isalnum())
    register(spark)
    spark.catalog.dropTempView("m")  # whoever left it in the session
    records = list(enumerate(golden_records("plain")))
    frame = spark.createDataFrame(records, "id int, record binary")
    names = {"path": str(store), "frame": frame}
    for kind, block in blocks:
        code = block.replace("/var/rocketmq/store", str(store))
        # test_connect.py has a server; the code is the same with the session of this process.
        code = code.replace('.remote("sc://server:15002")', "")
        if kind == "python":
            for line in ast.parse(code).body:
                if not isinstance(line, ast.Expr):
                    exec(ast.unparse(line), names)
                    continue
                answer = eval(ast.unparse(line), names)
                assert not isinstance(answer, DataFrame) or len(answer.take(3)) == 3
        else:
            assert "'orders'" in code
            spark.sql(code.replace("orders", wanted).strip().removesuffix(";"))
            assert spark.table("m").count() == topics[wanted]
    assert "topic" in capsys.readouterr().out
    spark.catalog.dropTempView("m")
    spark.catalog.dropTempView("messages")
