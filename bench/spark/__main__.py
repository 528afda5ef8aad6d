"""Measure the Spark side: run its parts and write them into docs/benchmarks.md.

python -m bench.spark            measure, about fifteen minutes; 20 GB in the temporary directory
python -m bench.spark --smoke    small sizes, as a test; print only
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time

from bench.paths import PYTHON_PATH, ROOT, module_command
from bench.report import machine, page

DOCS = ROOT / "docs"
PARTS = {
    "Reading": "read",
    "Functions": "udf",
    "Export to Parquet": "export",
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
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    for title, part in PARTS.items():
        command = module_command(f"bench.spark.{part}") + ["--smoke"] * arguments.smoke
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
        parts[title] = done.stdout.strip()
        print(done.stdout, flush=True)
    if not arguments.smoke:
        facts = machine.facts(ROOT, java=True, rust=False)
        method = "alternating rounds after one warm-up round"
        facts |= {"when": begun, "size": "measured", "method": method}
        record = {"facts": facts, "parts": parts}
        text = json.dumps(record, indent=1, ensure_ascii=False)
        DOCS.joinpath(page.SPARK_RECORD).write_text(text + "\n", "utf-8")
        page.render(DOCS)


if __name__ == "__main__":
    main()
