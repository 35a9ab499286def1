"""Connections to NATS that fail: the reason is the one of the socket or of TLS, and another server is tried."""

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.relay import NatsTransport, Relay
from tests.parts import missing
from tests.relay.engines import NatsServer, free_port

pytestmark = pytest.mark.timeout(60)


class _Encrypted(NatsServer):
    """A server that accepts TLS only; ``first``: the TLS handshake comes before everything else."""

    certificates: Path
    first = False

    def settings(self) -> list[str]:
        files = f'cert_file: "{self.certificates}/certificate.pem", key_file: "{self.certificates}/key.pem"'
        return [f"tls {{ {files}, handshake_first: {str(self.first).lower()} }}"]


class _Optional(_Encrypted):
    """A server that accepts clients with TLS and without."""

    def settings(self) -> list[str]:
        return [*super().settings(), "allow_non_tls: true"]


class _WebSockets(_Encrypted):
    """A server that also accepts WebSockets, with TLS or without."""

    def __init__(self, *, tls: bool) -> None:
        super().__init__()
        self.tls = tls
        self.websocket_port = free_port()

    def settings(self) -> list[str]:
        (encryption,) = super().settings() if self.tls else ["no_tls: true"]
        encryption = encryption.replace(", handshake_first: false", "")
        return [f"websocket {{ host: 127.0.0.1, port: {self.websocket_port}, {encryption} }}"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate for 127.0.0.1 and its key."""
    if reason := NatsServer.missing():
        missing(reason)
    folder = tmp_path_factory.mktemp("certificates")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    try:
        subprocess.run([*command.split(), *files], check=True, capture_output=True)
    except FileNotFoundError:
        missing("no openssl: install it")
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["TLS after INFO", "TLS first"])
def encrypted(request: pytest.FixtureRequest, certificates: Path) -> Iterator[_Encrypted]:
    """Yield a running server that accepts TLS only."""
    server = _Encrypted()
    server.certificates, server.first, server.given = certificates, request.param, None
    server.start()
    yield server
    server.close()


async def reason(url: Any, **options: Any) -> str:
    """Return why a relay cannot connect."""
    transport = NatsTransport(url, **options)
    async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=10.0) as relay:
        return str(relay.statistics().last_loss)


async def test_a_connection_that_is_refused() -> None:
    """The reason names the error of the socket."""
    found = await reason(f"nats://127.0.0.1:{free_port()}")
    assert "no NATS server accepts the connection: ConnectionRefusedError" in found


async def test_a_client_without_the_certificate_of_the_server(encrypted: _Encrypted) -> None:
    """The reason names TLS, or the option for a server that begins with the handshake."""
    found = await reason(f"nats://127.0.0.1:{encrypted.port}", connect_timeout=1)
    first = "TimeoutError: no answer in time; does the server use TLS, and does it begin with the handshake"
    assert (first if encrypted.first else "does the server use TLS") in found


def closings() -> list["asyncio.Task[Any]"]:
    """Return the tasks in which nats-py closes a client."""
    return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "Client.close"]  # type: ignore[union-attr]


async def test_a_relay_that_closes_after_a_failed_handshake_leaves_no_task(encrypted: _Encrypted) -> None:
    """After a failed TLS handshake, nats-py waits for the server while it closes the client."""
    transport = NatsTransport(f"tls://127.0.0.1:{encrypted.port}", tls_handshake_first=encrypted.first)
    listening = asyncio.create_task(transport.listen(lambda: None, lambda _: None))
    while not closings():  # noqa: ASYNC110 - the handshake takes some turns of the loop
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    left = closings()
    listening.cancel()
    await asyncio.wait([listening])
    assert [task for task in left if not task.done()] == []
    await transport.aclose()


async def test_a_client_with_tls_at_a_server_without(certificates: Path) -> None:
    """The reason names TLS."""
    server = NatsServer()
    server.given = None
    await asyncio.to_thread(server.start)
    try:
        context = ssl.create_default_context(cafile=certificates / "certificate.pem")
        found = await reason(f"tls://127.0.0.1:{server.port}", tls=context, tls_handshake_first=True, connect_timeout=1)
        assert "does the server use TLS" in found
    finally:
        await asyncio.to_thread(server.close)


class _WithoutTls:
    """A server that offers no TLS and echoes all messages.  ``received``: the lines that the clients have sent."""

    def __init__(self) -> None:
        self.received = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true}\r\n')
        while line := await reader.readline():
            self.received += line
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"PUB"):
                _, subject, size = line.split()
                message = await reader.readexactly(int(size) + 2)
                writer.write(b"MSG %s 1 %s\r\n%s" % (subject, size, message))
        writer.close()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("tls://me:s3cret@{}", {}),
        ("tls://s3cret@{}", {}),
        ("tls://{}", {"user": "me", "password": "s3cret"}),
        ("tls://{}", {"token": "s3cret"}),
        ("nats://me:s3cret@{}", {"tls": ssl.create_default_context()}),
        ("me:s3cret@{}", {"tls": ssl.create_default_context()}),
        ("tls://me:s3cret@{}", {"tls": ssl.create_default_context()}),
    ],
)
async def test_a_server_without_tls_gets_no_credentials(url: str, options: Any) -> None:
    """If the URL or the option requires TLS, the connection ends before the credentials are sent, and the reason names
    TLS.  This also fails if nats-py does not call the method of the client that checks this.
    """
    fake = _WithoutTls()
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        transport = NatsTransport(url.format(f"{host}:{port}"), **options)
        async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=10.0) as relay:
            found = str(relay.statistics().last_loss)
        with pytest.raises(ConnectionError, match="requires TLS"):
            await transport.publish("")
        await transport.aclose()
    assert fake.received == b""
    assert "the NATS server does not" in found
    assert "s3cret" not in found


async def test_a_server_without_tls_gets_credentials_if_the_url_does_not_require_tls() -> None:
    """The URL ``nats://`` works with and without TLS, as before."""
    fake = _WithoutTls()
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as server:
        transport = NatsTransport("nats://me:s3cret@{}:{}".format(*server.sockets[0].getsockname()))
        await transport.publish("")
        await transport.aclose()
    assert b"s3cret" in fake.received


class _Private(NatsServer):
    """A server that accepts only certain credentials."""

    def __init__(self, credentials: str) -> None:
        super().__init__()
        self.credentials = credentials
        self.given = None

    def settings(self) -> list[str]:
        return [f"authorization {{ {self.credentials} }}"]


@pytest.mark.parametrize(
    ("credentials", "in_url"),
    [('user: "a:b", password: "s3cr/t%41"', "a%3Ab:s3cr%2Ft%2541"), ('token: "s3cr?t@"', "s3cr%3Ft%40")],
)
async def test_credentials_in_a_url_are_decoded(credentials: str, in_url: str) -> None:
    """nats-py sends them as they are in the URL."""
    if reason := NatsServer.missing():
        missing(reason)
    server = _Private(credentials)
    await asyncio.to_thread(server.start)
    try:
        transport = NatsTransport(f"nats://{in_url}@127.0.0.1:{server.port}")
        async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=10.0) as relay:
            assert relay.connected, relay.statistics().last_loss
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.parametrize("allows", [False, True], ids=["no TLS", "TLS is optional"])
async def test_a_client_that_requires_tls_at_a_server_that_does_not(allows: bool, certificates: Path) -> None:
    """nats-py uses TLS only if the server requires it, so the relay does not connect."""
    server = _Optional() if allows else NatsServer()
    server.given = None
    if isinstance(server, _Optional):
        server.certificates = certificates
    await asyncio.to_thread(server.start)
    try:
        context = ssl.create_default_context(cafile=certificates / "certificate.pem")
        for options in ({}, {"tls": context}):
            found = await reason(f"tls://me:s3cret@127.0.0.1:{server.port}", **options)
            assert "requires TLS" in found
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.filterwarnings("ignore:parameter 'timeout':DeprecationWarning")  # from nats-py's call of aiohttp
@pytest.mark.parametrize("tls", [False, True])
async def test_a_websocket_with_the_option_tls(tls: bool, certificates: Path) -> None:
    """A WebSocket without TLS is refused, because nats-py would ignore the option; one with TLS is used."""
    server = _WebSockets(tls=tls)
    server.certificates, server.given = certificates, None
    await asyncio.to_thread(server.start)
    try:
        context = ssl.create_default_context(cafile=certificates / "certificate.pem")
        url = f"{'wss' if tls else 'ws'}://me:s3cret@127.0.0.1:{server.websocket_port}"
        found = await reason(url, tls=context)
        assert found == "None" if tls else "requires TLS" in found
    finally:
        await asyncio.to_thread(server.close)


async def test_a_client_with_the_certificate_of_the_server(encrypted: _Encrypted, certificates: Path) -> None:
    """The relay is connected."""
    context = ssl.create_default_context(cafile=certificates / "certificate.pem")
    transport = NatsTransport(
        f"tls://127.0.0.1:{encrypted.port}", tls=context, tls_handshake_first=encrypted.first, connect_timeout=5
    )
    async with Purgatory[Any]("test") as room, Relay(room, transport) as relay:
        assert relay.connected, relay.statistics().last_loss


async def test_a_server_that_is_away_beside_one_that_is_not() -> None:
    """The error of one server is not the end of the connection to the other, whichever is tried first."""
    if reason := NatsServer.missing():
        missing(reason)
    server = NatsServer()
    server.given = None
    await asyncio.to_thread(server.start)
    try:
        urls = [f"nats://127.0.0.1:{free_port()}", server.url]
        transport = NatsTransport(urls, dont_randomize=True)
        async with Purgatory[Any]("test") as room, Relay(room, transport) as relay:
            assert relay.connected, relay.statistics().last_loss
            assert relay.statistics().losses == 0
    finally:
        await asyncio.to_thread(server.close)
