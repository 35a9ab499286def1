"""The journal of a night: ``python -m examples.hangs SERVICE --record journal``.

The forty minutes of virtual time, from 02:30 on, take a few seconds.  Service 2 works until it breaks at 03:00; the
others are broken from the beginning.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from purgatory import Clock
from purgatory.journal import Journal
from purgatory.testing import VirtualClock

from .forgotten_check import ForgottenCheck
from .service import Service

__all__ = ["BEGIN", "BREAKS_S", "END_S", "record"]

BEGIN = datetime(2026, 11, 24, 2, 30, tzinfo=UTC)
BREAKS_S = 1_800
END_S = 2_400


async def record(folder: Path, make: Callable[[Clock, Sequence[Any]], Service]) -> None:
    """Record one night of a service."""
    clock = VirtualClock(BEGIN.timestamp())
    async with Journal(folder, clock=clock, epoch_ms=0) as journal:
        service = make(clock, [journal])
        if isinstance(service, ForgottenCheck):
            service.broken_from = BREAKS_S
        async with service.room, service.running():
            for second in range(END_S):
                service.tick(second)
                await clock.advance(1.0)
