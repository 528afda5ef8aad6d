"""The data source `rocketmq-store`: its batch reader, its stream reader and its writers.

These classes implement PySpark's data source API, which pickles them on the driver and calls them
on the executors. Methods that Spark calls on the driver import `plan/` inside the method.

`spark.register` and the package `pyspark_rocketmq` import this folder.
"""
