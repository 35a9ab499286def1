"""The commands of ``python -m purgatory.pipeline``, one file each, and the options that they share.

These modules import Spark only when a command runs, so that ``--help`` works without Spark.
"""
