"""A purgatory on Spark Structured Streaming, for more operations than one process can hold.

==================================  ==========================================================================
``input_rows``                      the rows of the input; invalid rows become dead letters
``group shard``                     the groups of operations; the core of the library makes the decisions
``output_records``                  the records of the output: outcomes and dead letters
``dataframes``                      the conversions as functions from DataFrame to DataFrame
``row_files``                       the types of the columns in Parquet files with rows
``processor``                       a stream of rows; Spark keeps the state of the shards
``batch``                           the batch equivalent: all rows at once, group by group
``sinks job``                       the targets of the records, and the job
``traces``                          random rows, for tests and measurements
==================================  ==========================================================================

A **row** is one event of the input, and a **record** is one line of the output.

``input_rows``, ``group``, ``shard``, ``output_records``, and ``traces`` do not import Spark.
"""
