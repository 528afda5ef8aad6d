"""Measure the Spark side: run its parts and write them into docs/benchmarks.md.

python bench/spark.py            measure, about fifteen minutes; 20 GB in the temporary directory
python bench/spark.py --smoke    small sizes, as a test; print only
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import machine
import report

HOME = Path(__file__).resolve().parent
DOCS = HOME.parent / "docs"
PARTS = {
    "Reading": "spark_read.py",
    "Functions": "spark_udf.py",
    "Export to Parquet": "spark_export.py",
}


def main() -> None:
    """Run all parts; write the record and the page, except with --smoke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small sizes, as a test")
    arguments = parser.parse_args()
    begun = time.strftime("%Y-%m-%d %H:%M")
    parts = {}
    for title, script in PARTS.items():
        command = [sys.executable, str(HOME / script), *(["--smoke"] if arguments.smoke else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        parts[title] = done.stdout.strip()
        print(done.stdout, flush=True)
    if not arguments.smoke:
        facts = machine.facts(HOME, java=True, rust=False)
        method = "alternating rounds after one warm-up round"
        facts |= {"when": begun, "size": "measured", "method": method}
        record = {"facts": facts, "parts": parts}
        text = json.dumps(record, indent=1, ensure_ascii=False)
        DOCS.joinpath(report.SPARK_RECORD).write_text(text + "\n", "utf-8")
        report.render(DOCS)


if __name__ == "__main__":
    main()
