"""Goal: the example and the document work as they stand.
Method: run both on the broker's golden store; their answers are counted in its list."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

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
    told = [json.loads(line)["message"] for line in lines if line.startswith('{"message"')]
    counts = {row.topic: row.messages for row in found["by_topic"].collect()}
    assert counts == Counter(message["cq_topic"] for message in told)
    tags = {(row.topic, row.tags): row.messages for row in found["by_tag"].collect()}
    assert tags == Counter(
        (message["cq_topic"], message["properties"].get("TAGS", "(none)")) for message in told
    )
    back = {(row.topic, row.reconsumeTimes): row.messages for row in found["given_back"].collect()}
    assert back == Counter(
        (message["cq_topic"], message["reconsume_times"])
        for message in told
        if message["cq_topic"].startswith(("%RETRY%", "%DLQ%"))
    )
    assert f"{len(told)} messages in" in capsys.readouterr().out


def test_the_code_of_the_document(spark, store, tmp_path, monkeypatch):
    text = (ROOT / "docs" / "spark-pipeline.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    names = {"spark": spark}
    for block in blocks:
        code = block.replace('"/data/store"', repr(str(store)))
        code = code.replace('"/data/new"', repr(str(tmp_path / "new")))
        exec(code.replace('"/data/lake"', repr(str(tmp_path / "lake"))), names)
