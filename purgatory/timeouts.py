"""The timeout context manager: see :meth:`purgatory.SystemTimer.timeout`."""

from .aio.timeout import Timeout

__all__ = ["Timeout"]
