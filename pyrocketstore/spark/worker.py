"""What a Python worker of Spark is told once."""

from __future__ import annotations

import functools
import gc
import sys


@functools.cache
def settle() -> None:
    """Keep what is loaded by now out of garbage collections, if this is a worker of Spark.

    Such a worker collects all garbage after each task, and so walks each object of each module that
    it has ever loaded, for some 50 ms: decoding 150 MiB of the log takes as long. Modules do not
    become garbage.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()
