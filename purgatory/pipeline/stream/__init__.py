"""A purgatory on Spark Structured Streaming, for more operations than one process can hold.

==========================  ==================================================================================
``rows group records``      pure: input, decisions, output.  The core of the library decides
``twin``                    all rows in one batch, group by group
``processor frames``        a stream of rows; Spark keeps the state of the groups
``sinks job``               the targets of the records, and the job
``traces``                  random rows, for tests and measurements
==========================  ==================================================================================

``rows``, ``group``, ``records`` and ``traces`` do not import Spark.
"""
