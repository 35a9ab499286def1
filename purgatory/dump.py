"""The report of :meth:`purgatory.Purgatory.dump`, under an earlier name: see :mod:`purgatory.types`."""

from .types import Dump

__all__ = ["Dump"]
