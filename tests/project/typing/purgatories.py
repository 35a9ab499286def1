"""Uses of the optional parts that a type checker must accept; read by mypy and pyright, never run."""

from pathlib import Path
from typing import assert_type

from opentelemetry.metrics import Meter

from purgatory import DelayedOperation, Observer, Purgatory
from purgatory.journal import SCHEMA_VERSION, Journal, JournalError, JournalStatistics
from purgatory.otel import Durations, observe, tracing
from purgatory.testing import VirtualClock


def metrics(meter: Meter, fetch: Purgatory[DelayedOperation[bytes]], count: Purgatory[DelayedOperation[int]]) -> None:
    assert_type(observe(fetch, count, meter=meter, hot_keys=10), None)
    listener: Observer = Durations(meter)
    Purgatory[DelayedOperation[bytes]]("fetch", observers=[listener, Durations(), tracing()])
    observe("fetch")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    observe(fetch, hot_keys="10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Durations("meter")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def journals(path: Path) -> None:
    async with Journal(
        path, rows_per_file=10, interval=1, max_buffered=100, clock=VirtualClock(), epoch_ms=0
    ) as journal:
        assert_type(journal, Journal)
        assert_type(journal.path, Path)
        assert_type(journal.statistics(), JournalStatistics)
        assert_type(journal.statistics().written + journal.statistics().dropped, int)
        assert_type(journal.statistics().last_error, str | None)
        Purgatory[DelayedOperation[bytes]]("fetch", observers=[journal, Durations()])
        await journal.flush()
        await journal.aclose()
    Journal("journal", key_text=repr)
    Journal("journal", partition_by="date")
    Journal("journal", partition_by="hour")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Journal(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Journal(path, key_text=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Journal(path, 10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    error: Exception = JournalError("no directory")
    print(error, SCHEMA_VERSION)
