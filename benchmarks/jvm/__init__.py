"""Kafka's own purgatory on a JVM, compared with ours."""

from .kafka import prepare, rows

__all__ = ["prepare", "rows"]
