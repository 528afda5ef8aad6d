"""The Parquet lake: its manifest, the export on the driver, and the executors' file writer.

`pyrocketstore.spark.pipeline` is the public name of the export. The manifest records the plan of
a run before the first file is written, so that a killed export continues without a duplicate.

`export` is driver code. Executors import `manifest` and `writer`.
"""
