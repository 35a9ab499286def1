"""The purgatory's work on Spark Structured Streaming, for operations that outgrow one process.

==========================  ==================================================================================
``rows group records``      pure: what comes in, what happens, what goes out.  The core of the house decides
``twin``                    a batch of rows in one go, group by group
``processor frames``        a stream of rows, with the groups as Spark's state
``sinks job cli``           where it goes, and the commands
``traces``                  random rows, for trials and measurements
==========================  ==================================================================================

``rows``, ``group``, ``records`` and ``traces`` know nothing of Spark.
"""
