"""The types of the relay: results keep their types, and ``refresh`` may declare the type of its keys."""

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, assert_type

from purgatory import DelayedOperation, Purgatory
from purgatory.relay import (
    MemoryTransport,
    NatsTransport,
    Notifier,
    PostgresTransport,
    RedisTransport,
    Relay,
    RelayStatistics,
    TransactionalTransport,
    Transport,
    UnixTransport,
)


class Fetch(DelayedOperation[bytes]):
    def try_complete(self) -> bool:
        return True

    def on_complete(self) -> bytes:
        return b""


async def load(keys: list[str]) -> dict[str, int]:
    """Read keys of the application's own type."""
    return dict.fromkeys(keys, 1)


class Plain:
    """A user's own transport."""

    max_payload = 1000

    async def listen(self, subscribed: Callable[[], None], received: Callable[[str | bytes], None]) -> None: ...

    async def publish(self, payload: str) -> None: ...

    async def aclose(self) -> None: ...


async def use(room: Purgatory[Any], connection: object) -> None:
    """Use every public name."""
    transports: list[Transport] = [
        Plain(),
        MemoryTransport(),
        PostgresTransport("postgresql://localhost", channel="orders"),
        RedisTransport("redis://localhost", channel="orders"),
        NatsTransport("nats://localhost", subject="orders"),
        UnixTransport("/run/orders"),
        UnixTransport(Path("/run/orders")),
        MemoryTransport().peer(),
    ]
    transactional: list[TransactionalTransport] = [MemoryTransport(), PostgresTransport("postgresql://localhost")]
    assert transports[1:3] != transactional
    async with Relay(
        room, transports[0], refresh=load, max_keys=10, heartbeat=1.0, resync_every=5, on_lost="fail"
    ) as relay:
        assert_type(relay, Relay[str, int])
        assert_type(relay.state, Mapping[str, int])
        assert_type(await relay.park(Fetch(1.0), key="a"), bytes)
        assert_type(await relay.wait_value(lambda: relay.state.get("a"), key="a", timeout=5), int | None)
        assert_type(
            await relay.wait_value(lambda: "a", keys=["a"], deadline=5.0, kind="job", on_abandoned=print), str | None
        )
        assert_type(await relay.park(Fetch(1.0), ["a"]), bytes)
        assert_type(await relay.wait_until(lambda: True, keys={("a", 1): 5.0}, timeout=None), bool)
        assert_type(relay.check("a", 5), int)
        await relay.check_in(connection, ["a"])
        await relay.check_in(connection, {"a": 1.0})
        assert_type(relay.connected, bool)
        statistics = relay.statistics()
        assert_type(statistics, RelayStatistics)
        assert_type(statistics.lag, float | None)
        await relay.aclose(grace=2.0)


def notify(connection: object) -> None:
    """Use the notifier, which needs no event loop."""
    with Notifier(UnixTransport("/run/orders"), timeout=2) as notifier:
        assert_type(notifier, Notifier)
        notifier.check("a")
        notifier.check(("a", 1), 5)
        notifier.check_in(connection, ["a"])
        notifier.check_in(connection, {"a": 1.0})
    notifier.close()


def keys() -> list[Hashable]:
    """Check the types of keys."""
    return ["o-1", 7, ("o", 1)]
