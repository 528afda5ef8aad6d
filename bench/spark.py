"""What Spark's side costs: runs the parts and writes them into docs/benchmarks.md.

python bench/spark.py            measures, some fifteen minutes; 20 GB in the temporary directory
python bench/spark.py --smoke    small, prints only
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
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="only see that it runs")
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
        method = "each side in turn, after a round that does not count"
        facts |= {"when": begun, "size": "measured", "method": method}
        record = {"facts": facts, "parts": parts}
        text = json.dumps(record, indent=1, ensure_ascii=False)
        DOCS.joinpath(report.SPARK_RECORD).write_text(text + "\n", "utf-8")
        report.render(DOCS)


if __name__ == "__main__":
    main()
