"""An observer that acts on every end in the same way, whatever the outcome is."""

from typing import Any

import pytest

from purgatory import Event, Outcome, Purgatory
from purgatory.aio.end_observer import EndObserver
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op


class Ends(EndObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def ended(self, event: Event) -> None:
        self.seen.append((event.outcome.value, event.expired_by_closing))


class Failures(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException | None] = []

    def failed(self, event: Event) -> None:
        self.errors.append(event.error)
        super().failed(event)


@pytest.mark.parametrize("kind", [Ends, Failures])
async def test_every_end_is_seen_once(clock: VirtualClock, kind: type[Ends]) -> None:
    """Parking is not an end, and a method for one outcome may be overridden."""
    ends = kind()
    error = Boom()
    async with Purgatory[Any]("ends", clock=clock, observers=[ends]) as purgatory:
        operations = [Op(timeout=timeout) for timeout in (1.0, 9.0, 9.0, 9.0, 9.0)]
        for number, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [number])
        await clock.advance(1.0)
        operations[1].force_complete()
        operations[2].cancel()
        purgatory.fail_for_key(3, error)
        assert len(ends.seen) == 4
    assert ends.seen == [
        ("expired", False), ("completed", False), ("cancelled", False), ("failed", False), ("expired", True)
    ]  # fmt: skip
    assert {name for name, _ in ends.seen} == {outcome.value for outcome in Outcome} - {"pending"}
    if isinstance(ends, Failures):
        assert ends.errors == [error]


def test_an_end_observer_must_say_what_an_end_means() -> None:
    """The one method that it needs is abstract."""
    with pytest.raises(TypeError, match="abstract"):
        EndObserver()  # type: ignore[abstract]
