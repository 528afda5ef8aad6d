"""What Spark's side costs: runs the parts and writes docs/benchmarks-spark.md.

python bench/spark.py            measures, some fifteen minutes; 20 GB in the temporary directory
python bench/spark.py --smoke    small, prints only
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import machine

HOME = Path(__file__).resolve().parent
PAGE = HOME.parent / "docs" / "benchmarks-spark.md"
PARTS = {
    "Reading": "spark_read.py",
    "Functions": "spark_udf.py",
    "Export to Parquet": "spark_export.py",
}
HEAD = """# Benchmarks of the Spark side

Written by `make bench-spark`; one part alone: `python bench/spark_read.py`, and so on. All sides of
a part work in turn within one run; ratios are medians over neighbouring rounds, with the smallest
and the largest. The ceiling is a source that gives one finished Arrow batch of the same schema,
rows and bytes again and again: what Spark itself takes to move them.
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="only see that it runs")
    arguments = parser.parse_args()
    page = [HEAD]
    facts = machine.facts(HOME, java=True, rust=False)
    page += [f"- {name}: {value}" for name, value in facts.items()]
    for title, script in PARTS.items():
        command = [sys.executable, str(HOME / script), *(["--smoke"] if arguments.smoke else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        page += ["", f"## {title}", "", done.stdout.strip()]
        print(done.stdout, flush=True)
    if not arguments.smoke:
        PAGE.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
