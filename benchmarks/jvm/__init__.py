"""Kafka's own purgatory on a JVM, beside ours."""

from .kafka import prepare, rows

__all__ = ["prepare", "rows"]
