"""The report that :meth:`purgatory.Purgatory.dump` returns."""

from .aio.dump import Dump

__all__ = ["Dump"]
