"""The timeout context manager, under an earlier name: see :mod:`purgatory.types`."""

from .types import Timeout

__all__ = ["Timeout"]
