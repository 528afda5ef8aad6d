"""The measurements of Spark's side. `python -m bench.spark` runs all parts; each part is a command
as well, such as `python -m bench.spark.read`."""
