"""No address and no password reaches an error, the log, the statistics or a ``repr``."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import RawCredentials

from purgatory import Purgatory
from purgatory.relay import (
    MemoryTransport,
    NatsTransport,
    Notifier,
    PostgresTransport,
    RedisTransport,
    Relay,
    RelayLost,
    Transport,
    UnixTransport,
)
from purgatory.relay.addresses import described, secrets_of_url, without_secrets
from purgatory.testing import VirtualClock
from tests.parts import missing
from tests.relay.engines import Engine, NatsServer, PostgresServer, RedisServer

pytestmark = pytest.mark.timeout(60)


class _Client:
    """A client, pool, or URL object whose ``repr`` contains the password, as in redis-py 7.0 and pydantic."""

    def __repr__(self) -> str:
        return "<Client(host=h, password=secret)>"


_MISTYPED: dict[str, Callable[[], Any]] = {
    "the URL of SQLAlchemy": lambda: PostgresTransport("postgresql+psycopg://app:secret@db/app"),
    "a percent sign in a DSN": lambda: PostgresTransport("postgresql://app:%secret@db/app"),
    "a space in a DSN": lambda: PostgresTransport("postgresql://app:secret secret@db/app"),
    "a space before a DSN": lambda: PostgresTransport(" postgresql://app:secret@db/app"),
    "a slash in a DSN": lambda: PostgresTransport("postgresql://app:secret/x@db/app"),
    "an @ in a DSN": lambda: PostgresTransport("postgresql://app:x@secret@db/app"),
    "a port that is no number": lambda: PostgresTransport("postgresql://app:x@db:secret/app"),
    "a space in keywords": lambda: PostgresTransport("host=db password=my secret"),
    "a DSN as bytes": lambda: PostgresTransport(b"postgresql://app:secret@db/app"),  # type: ignore[arg-type]
    "a hash in a URL of Redis": lambda: RedisTransport("redis://:secret#@h"),
    "a slash in a URL of Redis": lambda: RedisTransport("redis://:secret/x@h"),
    "a number before a hash": lambda: RedisTransport("redis://:12#secret@h"),
    "a question mark in a URL of Redis": lambda: RedisTransport("redis://:12?secret@h"),
    "another scheme": lambda: RedisTransport("http://:secret@h"),
    "a bracket": lambda: RedisTransport("redis://[:secret@h"),
    "a URL of Redis as bytes": lambda: RedisTransport(b"redis://:secret@h"),  # type: ignore[arg-type]
    "a hash in a URL of NATS": lambda: NatsTransport("nats://me:secret#@h"),
    "a slash in a URL without a scheme": lambda: NatsTransport("me:secret/x@h"),
    "a slash in the second URL": lambda: NatsTransport(["nats://h", "nats://me:secret/x@h"]),
    "a tuple of URLs": lambda: NatsTransport(("nats://me:secret@h",)),  # type: ignore[arg-type]
    "bytes in a list of URLs": lambda: NatsTransport([b"nats://me:secret@h"]),  # type: ignore[list-item]
    "a URL as the transport": lambda: Relay(Purgatory[Any]("test"), "redis://:secret@h"),  # type: ignore[arg-type]
    "a URL object": lambda: RedisTransport(_Client()),  # type: ignore[arg-type]
    "a URL object as a DSN": lambda: PostgresTransport(_Client()),  # type: ignore[arg-type]
    "a URL object for NATS": lambda: NatsTransport(_Client()),  # type: ignore[arg-type]
    "a list of URL objects": lambda: NatsTransport([_Client()]),  # type: ignore[list-item]
    "a client as a channel of Redis": lambda: RedisTransport("redis://h", channel=_Client()),  # type: ignore[arg-type]
    "a client as a channel of Postgres": lambda: PostgresTransport("host=h", channel=_Client()),  # type: ignore[arg-type]
    "a client as a subject": lambda: NatsTransport("nats://h", subject=_Client()),  # type: ignore[arg-type]
    "a client as a directory": lambda: UnixTransport(_Client()),  # type: ignore[arg-type]
    "a client as the transport": lambda: Relay(Purgatory[Any]("test"), _Client()),  # type: ignore[arg-type]
    "a client as the purgatory": lambda: Relay(_Client(), RedisTransport("redis://h")),  # type: ignore[arg-type]
    "a client as refresh": lambda: Relay(Purgatory[Any]("test"), MemoryTransport(), refresh=_Client()),  # type: ignore[arg-type]
    "a client as a clock": lambda: Relay(Purgatory[Any]("test"), MemoryTransport(), clock=_Client()),  # type: ignore[arg-type]
    "a client as the transport of a notifier": lambda: Notifier(_Client()),  # type: ignore[arg-type]
    "a client as the connection": lambda: Notifier(PostgresTransport("host=h")).check_in(_Client(), ["a"]),
    "a client as the connection of Redis": lambda: Notifier(RedisTransport("redis://h")).check_in(_Client(), ["a"]),
    "a client as the keys": lambda: Notifier(MemoryTransport()).check_in(["a"], _Client()),  # type: ignore[arg-type]
    "a URL as the purgatory": lambda: Relay("redis://:secret@h", RedisTransport("redis://h")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", _MISTYPED.values(), ids=_MISTYPED)
def test_a_mistyped_address_is_refused_at_once_and_not_repeated(make: Callable[[], Any]) -> None:
    """The error is raised when the transport is made; its text and its causes do not contain the password."""
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    assert "secret" not in str(refused.value)
    error: BaseException | None = refused.value
    while error is not None:
        assert "secret" not in str(error)
        assert error.__suppress_context__ or error.__context__ is None
        error = error.__cause__
    assert "secret" not in "".join(traceback.format_exception_only(refused.value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (3, "3"),
        (_Client(), "a value of type _Client"),
        (_Client, "the class _Client"),
        (partial(print, "secret"), "a value of type partial"),
        (missing, "the function missing"),
    ],
)
def test_what_an_error_says_about_a_value(value: object, text: str) -> None:
    """A number is shown, a class and a function are named, and of anything else only the class is named."""
    assert described(value) == text


async def test_an_object_that_shows_its_password() -> None:
    """A transport and a connection that a relay refuses for a transaction are named by their classes alone."""

    class Own:
        max_payload = 1000

        async def listen(self, subscribed: Any, received: Any) -> None:
            raise ConnectionRefusedError

        async def publish(self, payload: str) -> None: ...

        async def aclose(self) -> None: ...

        def __repr__(self) -> str:
            return "Own(secret)"

    assert repr(Notifier(Own())) == "<Notifier new through Own>"
    async with Purgatory[Any]("test") as room, Relay(room, Own()) as relay:
        with pytest.raises(TypeError, match=r"got a value of type Own, .* got a value of type _Client: commit"):
            await relay.check_in(_Client(), ["a"])
        with pytest.raises(TypeError, match="keys must be an iterable of keys, got a value of type _Client"):
            await relay.check_in(["a"], _Client())  # type: ignore[arg-type]
    async with Purgatory[Any]("test") as room, Relay(room, PostgresTransport("host=127.0.0.1 port=1")) as relay:
        with pytest.raises(TypeError, match="got a value of type _Client"):
            await relay.check_in(_Client(), ["a"])


_SEED = "SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY"
_CREDENTIALS = f"""-----BEGIN NATS USER JWT-----
eyJ0eXAiOiJqd3QifQ.eyJqdGk
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{_SEED}
------END USER NKEY SEED------
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nkeys_seed", _SEED),
        ("nkeys_seed", _SEED[:-3]),
        ("nkeys_seed", f'"{_SEED}"'),
        ("nkeys_seed", _SEED.encode()),
        ("nkeys_seed", Path(_SEED)),
        ("nkeys_seed", "/etc/nats\nseed"),
        ("user_credentials", _SEED),
        ("user_credentials", _CREDENTIALS),
        ("user_credentials", _CREDENTIALS.partition("\n")[2]),
        ("user_credentials", "eyJ0eXAiOiJqd3QifQ.eyJqdGk.AAAA"),
        ("user_credentials", ("/etc/nats.jwt", _SEED)),
        ("user_credentials", (_CREDENTIALS, "/etc/nats.seed")),
    ],
)
def test_a_seed_in_place_of_a_file_is_refused_at_once_and_not_repeated(name: str, value: Any) -> None:
    """An option of NATS that names a file does not accept the text of the file, which the system's error would show."""
    with pytest.raises(ValueError, match=rf"^{name} must be the path of a file, ") as refused:
        NatsTransport("nats://h", **{name: value})
    assert "it is not repeated here" in str(refused.value)
    assert not any(part in str(refused.value) for part in (_SEED[:20], "eyJ", "\n"))
    assert refused.value.__context__ is None


def test_credentials_of_nats_as_their_options_expect_them() -> None:
    """Paths, a seed as nkeys_seed_str, and credentials as RawCredentials are accepted."""
    NatsTransport("nats://h", nkeys_seed="/etc/SEEDS/nats.seed")
    NatsTransport("nats://h", user_credentials=Path("/etc/nats.creds"))
    NatsTransport("nats://h", user_credentials=("/etc/nats.jwt", "/etc/nats.seed"))
    NatsTransport("nats://h", user_credentials=RawCredentials(_CREDENTIALS))
    NatsTransport("nats://h", nkeys_seed_str=_SEED + "\n")


@pytest.mark.parametrize(
    "options",
    [
        {"nkeys_seed_str": _SEED},
        {"nkeys_seed_str": f" {_SEED}\n"},
        {"user_credentials": RawCredentials(_CREDENTIALS)},
        {"token": "eyJ0oken"},
        {"password": "eyJassword"},
        {"ws_connection_headers": {"Authorization": ["eyJassword"], "X-Token": "s3cret"}},
        {"ws_connection_headers": {"Authorization": [b"eyJassword"], "X-Token": b"s3cret"}},
    ],
)
async def test_an_error_of_nats_with_its_credentials(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of the credentials is in the error of a connection, whatever nats-py writes."""

    async def connect(self: object, *_: object, **given: Any) -> None:
        raise OSError(f"cannot use {' '.join(str(given[name]) for name in options)}")

    monkeypatch.setattr("nats.aio.client.Client.connect", connect)
    transport = NatsTransport("nats://h", **options)
    text = ""
    for work in (transport.publish("a"), transport.listen(lambda: None, lambda _: None)):
        with pytest.raises(ConnectionError) as refused:
            await work
        text += str(refused.value)
    lines = [line.strip() for value in options.values() for line in str(value).splitlines()]
    assert not any(line in text for line in lines if line and not line.startswith("-----"))
    assert not any(secret in text for secret in ("assword", "s3cret"))


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float' is deprecated")  # in nats-py
@pytest.mark.parametrize(
    "query",
    [
        "token=T0PSECRET",
        "password=T0PSECRET",
        "next=1&key=T0PSECRET%2B+%C3%A9",
        "T0PSECRET=&a=T0PSECRET",
        "token=k9%2FT0PSECRET%2BPm8%3D",
        "token=%2babc%c3%a9T0PSECRET",
        "token=a%20b+cT0PSECRET",
    ],
)
async def test_a_gateway_that_refuses_a_websocket(query: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error of the handshake repeats the URL, and the query of the URL may contain a token of the gateway."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        transport = NatsTransport(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/nats?{query}")
        async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=5.0) as relay:
            loss = relay.statistics().last_loss
        with pytest.raises(ConnectionError) as refused:
            await asyncio.to_thread(Notifier(transport).check, "a")
    for text in (str(loss), str(refused.value), caplog.text):
        assert "401" in text
        assert "T0PSECRET" not in text


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "host=db password='my secret'",
        "postgresql://app:%20secret%25@db,other:5433/app",
        "postgresql://app@[::1]:5432/app?sslmode=require",
        "postgres://db:1,other:2/app",
        "service=orders",
        "host=/var/run/postgresql dbname=a@b",
    ],
)
def test_a_good_connection_string_is_accepted(dsn: str) -> None:
    """Every form that libpq reads is accepted."""
    PostgresTransport(dsn)


@pytest.mark.parametrize(
    "url", ["redis://h", "rediss://user:a%2Fb@h:1/2?socket_timeout=5", "redis://[::1]:1", "unix:///tmp/a@b?db=1"]
)
def test_a_good_url_is_accepted(url: str) -> None:
    """A password may contain any character that is percent-encoded."""
    RedisTransport(url)
    if url.startswith("redis:"):
        NatsTransport([url.replace("redis", "nats"), "h:4222", "user:secret@h", "tls://h", "[::1]:4222"])
        NatsTransport(["ws://h", "wss://h"])


_SCHEMES = {"redis": "redis://, rediss://, or unix://", "nats": "nats://, tls://, ws://, or wss://"}


@pytest.mark.parametrize("make", [RedisTransport, NatsTransport, lambda url: NatsTransport(["nats://h", url])])
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("bogus", "one that does not begin with {schemes}"),
        ("", "one that does not begin with {schemes}"),
        ("http://h", "one that does not begin with {schemes}"),
        ("bogus://h", "one that does not begin with {schemes}"),
        ("{engine}:/h", None),
        ("{engine}://h:0x", "one that cannot be parsed"),
        ("{engine}://h:99999", "one that cannot be parsed"),
        ("{engine}://[", "one that cannot be parsed"),
        ("{engine}://a b", "one with a blank or a comma in its host"),
        ("{engine}://a,b", "one with a blank or a comma in its host"),
        ("{engine}://me:/y@h", "one with an @ after its host"),
    ],
)
def test_an_address_that_cannot_work_is_refused_at_once(make: Callable[[str], Any], url: str, problem: Any) -> None:
    """The error states the problem and an example; it does not repeat the URL."""
    engine = "redis" if make is RedisTransport else "nats"
    with pytest.raises(ValueError, match=r"^url must be a URL such as ") as refused:
        make(url.format(engine=engine))
    assert f"url must be a URL such as {engine}://user:password@host:" in str(refused.value)
    assert "it is not repeated here, because it may contain a password" in str(refused.value)
    if problem is not None:
        assert f", got {problem.format(schemes=_SCHEMES[engine])};" in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RedisTransport("unix://"), "got one without a path;"),
        (lambda: NatsTransport("nats://"), "got one without a host;"),
        (lambda: NatsTransport("nats://me:secret@"), "got one without a host;"),
        (lambda: NatsTransport(":4222"), "got one without a host;"),
        (lambda: NatsTransport("nats://a,nats://b"), "got one with a blank or a comma in its host;"),
        (lambda: NatsTransport([]), "url must be a str or a list of str, got an empty list"),
        (lambda: NatsTransport(["nats://h", "ws://h"]), "WebSockets for all servers or for none"),
    ],
)
def test_an_address_that_cannot_work_with_its_engine(make: Callable[[], Any], message: str) -> None:
    """What only one of the engines needs is checked, too."""
    with pytest.raises(ValueError, match=r"^url must be ") as refused:
        make()
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_error_with_a_secret_is_replaced() -> None:
    """The class and the rest of the text stay; no traceback shows the original error."""
    with pytest.raises(ConnectionError) as raised, without_secrets(["secret", "host=h password=secret", ""]):
        raise ValueError("cannot parse host=h password=secret")
    assert str(raised.value) == "ValueError: cannot parse ***"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    with pytest.raises(ValueError, match="harmless"), without_secrets(["secret"]):
        raise ValueError("harmless")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (f"unknown command with args {'s' * 100}", "unknown command with args ***"),
        (f"unknown command with args {'s' * 15}", None),
        (f"unknown command with args {'t' * 8}", None),
        (f"args: {'s' * 300}", "args: ******"),
    ],
)
def test_the_beginning_of_a_long_secret_is_replaced(text: str, safe: str | None) -> None:
    """An engine may repeat only a part of it."""
    with (
        pytest.raises(ValueError if safe is None else ConnectionError) as raised,
        without_secrets(["s" * 150, "t" * 9]),
    ):
        raise ValueError(text)
    assert str(raised.value) == (text if safe is None else f"ValueError: {safe}")


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("redis://:a%2Fb@h", {"a%2Fb", "a/b"}),
        ("redis://h?password=a%2Fb+c", {"a%2Fb+c", "a/b+c", "a/b c"}),
        ("unix:///run/redis.sock?db=3&password=a&username=b", {"a"}),
        ("rediss://h?ssl_password=a", {"a"}),
        ("redis://h?db=3", set()),
    ],
)
def test_the_secrets_of_a_url(url: str, secrets: set[str]) -> None:
    """The URL itself, and its passwords in each form."""
    assert set(secrets_of_url(url)) == {url, *secrets}


class _Locked(RedisServer):
    def command(self, folder: Any) -> list[str]:
        return [*super().command(folder), "--requirepass", "right"]


class _Old(_Locked):
    """A server that repeats what it does not know, as Redis before version 6 does with ``HELLO`` and the password."""

    def command(self, folder: Any) -> list[str]:
        return [*super().command(folder), "--rename-command", "HELLO", ""]


class _Authorized(NatsServer):
    def settings(self) -> list[str]:
        return ["authorization { user: me, password: right }"]


_REFUSING: list[tuple[type[Engine], Callable[[int], Transport]]] = [
    (PostgresServer, lambda port: PostgresTransport(f"postgresql://postgres:secret@127.0.0.1:{port}/missing")),
    (_Locked, lambda port: RedisTransport(f"redis://:secret@127.0.0.1:{port}")),
    (_Old, lambda port: RedisTransport(f"redis://:secret@127.0.0.1:{port}")),
    (_Old, lambda port: RedisTransport(f"redis://127.0.0.1:{port}?password=secret")),
    (_Old, lambda port: RedisTransport(f"redis://:{'secret' * 50}@127.0.0.1:{port}")),
    (_Authorized, lambda port: NatsTransport(f"nats://me:secret@127.0.0.1:{port}")),
]


@pytest.mark.parametrize(("kind", "connect"), _REFUSING, ids=lambda value: getattr(value, "name", "url"))
async def test_an_engine_that_refuses_the_user(
    kind: type[Engine], connect: Callable[[int], Transport], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the log nor ``last_loss``, ``RelayLost`` or a ``repr`` contains the password."""
    caplog.set_level(logging.DEBUG)
    reason = kind.missing()
    if reason:
        missing(reason)
    server = kind()
    await asyncio.to_thread(server.start)
    try:
        transport = connect(server.port)
        async with Purgatory[Any]("test") as room, Relay(room, transport, on_lost="fail", heartbeat=5.0) as relay:
            assert not relay.connected
            with pytest.raises(RelayLost) as lost:
                await relay.wait_until(lambda: False, key="a", timeout=5.0)
            seen = [str(lost.value), repr(relay), repr(transport), str(relay.statistics()), caplog.text]
            assert relay.statistics().losses >= 1
        assert not any("secret" in text for text in seen)
        assert len([record for record in caplog.records if record.name == "purgatory.relay"]) == 1
    finally:
        await asyncio.to_thread(server.close)


async def test_the_error_of_a_transport_of_your_own(clock: VirtualClock) -> None:
    """The relay shows the text of the error, and not its frames."""

    class Broken:
        max_payload = 1000

        def __init__(self, url: str) -> None:
            self.url = url

        async def listen(self, subscribed: Any, received: Any) -> None:
            raise ValueError("cannot connect")

        async def publish(self, payload: str) -> None: ...

        async def aclose(self) -> None: ...

    async with Purgatory[Any]("test", clock=clock) as room, Relay(room, Broken("secret")) as relay:
        assert relay.statistics().last_loss == "ValueError: cannot connect"
        assert "secret" not in repr(relay)
