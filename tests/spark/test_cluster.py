"""Goal: the package reaches executors as docs/spark.md describes, and Spark finds the data source.
Method: a local cluster whose executors have no pyrocketstore; a driver in its own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import pyrocketstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="java is not installed")

PACKAGE = Path(pyrocketstore.__file__ or "").parent
#: The packages of an executor's Python, besides pyrocketstore.
NEEDED = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "pandas", "pandas.libs", "dateutil",
          "pytz", "tzdata", "six.py", "typing_extensions.py")  # fmt: skip

DRIVER = """
import sys, json
from pyspark.sql import SparkSession
master, store, archive = sys.argv[1:4]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "1g")
spark = builder.config("spark.executor.memory", "1g").getOrCreate()
if archive != "-":
    spark.sparkContext.addArchive(archive + "#pyrocketstore")
frame = spark.read.format("rocketmq-store").option("minPartitions", 4).load(store)
def whereabouts(batches):
    import pyarrow, pyrocketstore
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [pyrocketstore.__file__]})
paths = spark.range(2).mapInArrow(whereabouts, "path string").collect()
print("RESULT", json.dumps([frame.count(), sorted({row.path for row in paths})]))
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with pyrocketstore.open(tmp_path / "store") as store:
        store.put_many("T", [b"x" * 100] * 500)
    return tmp_path / "store"


def run_driver(home: Path, store: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    script = home / "driver.py"
    script.write_text(DRIVER)
    master, archive = arguments
    done = subprocess.run(
        [sys.executable, str(script), master, str(store), archive],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE.parent),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **variables,
        },
        cwd=home,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def bare_python(home: Path) -> Path:
    """A Python that in an executor's directory has the packages of Spark, and no pyrocketstore."""
    site = home / "site"
    site.mkdir()
    import numpy

    packages = Path(numpy.__file__).parent.parent
    for name in NEEDED:
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    script = home / "python"
    script.write_text(
        '#!/bin/sh\ncase "$PWD" in\n*/app-*/*)\n'
        f'  rest=$(echo "$PYTHONPATH" | tr : "\\n" | grep -vx "{PACKAGE.parent}" | paste -sd:)\n'
        f'  PYTHONPATH="{site}:$rest" exec {sys.executable} -S "$@";;\n'
        f'*) exec {sys.executable} "$@";;\nesac\n'
    )
    script.chmod(0o755)
    return script


@pytest.mark.slow
def test_the_package_travels_as_an_archive(tmp_path: Path, store: Path) -> None:
    python = bare_python(tmp_path)
    place = tmp_path / "app-1" / "0"
    place.mkdir(parents=True)
    probe = subprocess.run(
        [python, "-c", "import pyarrow, pyrocketstore"], capture_output=True, cwd=place
    )
    assert b"No module named 'pyrocketstore'" in probe.stderr
    archive = tmp_path / "pyrocketstore.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in sorted(PACKAGE.rglob("*")):
            if path.suffix in (".py", ".so"):
                tar.add(path, path.relative_to(PACKAGE))
    master = "local-cluster[2,1,2048]"
    code, said = run_driver(tmp_path, store, master, str(archive), PYSPARK_PYTHON=str(python))
    assert code == 0, said
    count, paths = json.loads(said.partition("RESULT ")[2].splitlines()[0])
    assert count == 500
    assert not any(Path(path).is_relative_to(PACKAGE) for path in paths)


def test_discovery(tmp_path: Path, store: Path) -> None:
    python = {"PYSPARK_PYTHON": sys.executable}
    code, said = run_driver(tmp_path, store, "local[1]", "-", **python)
    assert code == 0, said
    assert "RESULT [500" in said


def test_without_pyspark_the_module_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('none here')\n")
    text = "import pyspark_rocketmq as m; print(hasattr(m, 'DefaultSource'))"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}"},
        check=True,
    )
    assert done.stdout.strip() == "False"


NEIGHBOUR = """
from pyspark.sql.datasource import DataSource, DataSourceReader
class Reader(DataSourceReader):
    def read(self, partition):
        yield ("here",)
class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "neighbour"
    def schema(self):
        return "text string"
    def reader(self, schema):
        return Reader()
"""
NEIGHBOURS_DRIVER = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "1g")
spark = builder.getOrCreate()
def tell(format_name, *path):
    try:
        print("RESULT", format_name, spark.read.format(format_name).load(*path).count())
    except Exception as error:
        print("RESULT", format_name, "none")
        print(error)
tell("neighbour")
tell("rocketmq-store", sys.argv[1])
if len(sys.argv) > 2:
    from pyrocketstore.spark import register
    register(spark)
    tell("rocketmq-store", sys.argv[1])
"""


def tell_formats(home: Path, *arguments: str, **modules: str) -> list[str]:
    """The output of a driver whose import path begins with these modules."""
    (home / "driver.py").write_text(NEIGHBOURS_DRIVER)
    for name, text in modules.items():
        place = home / "path" / name
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(home / "driver.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "PYTHONPATH": f"{home / 'path'}:{PACKAGE.parent}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def test_a_package_that_fails_hides_no_neighbour(tmp_path: Path, store: Path) -> None:
    broken = "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')\n"
    found = tell_formats(tmp_path, str(store), pyrocketstore=broken, pyspark_neighbour=NEIGHBOUR)
    assert found == ["neighbour 1", "rocketmq-store none"]


def test_a_neighbour_that_fails_hides_all_but_registered_sources(
    tmp_path: Path, store: Path
) -> None:
    broken = "raise ValueError('broken')\n"
    modules = {"pyspark_broken": broken, "pyspark_neighbour": NEIGHBOUR}
    assert tell_formats(tmp_path, str(store), "register", **modules) == [
        "neighbour none",
        "rocketmq-store none",
        "rocketmq-store 500",
    ]
