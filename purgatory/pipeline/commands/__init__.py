"""The commands of ``python -m purgatory.pipeline``, one file for each; ``options`` contains what they share.

These modules import Spark only when a command runs, so that ``--help`` works without Spark.
"""
