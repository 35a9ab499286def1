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
    assert "tls_handshake_first=True" in found if encrypted.first else "does the server use TLS" in found


async def test_a_client_with_tls_at_a_server_without(certificates: Path) -> None:
    """The reason names TLS."""
    server = NatsServer()
    server.given = None
    await asyncio.to_thread(server.start)
    try:
        context = ssl.create_default_context(cafile=certificates / "certificate.pem")
        found = await reason(f"tls://127.0.0.1:{server.port}", tls=context, tls_handshake_first=True, connect_timeout=1)
        assert "without TLS, omit tls" in found or "does the server use TLS" in found
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
