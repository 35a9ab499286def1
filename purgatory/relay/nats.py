"""NATS: publish and subscribe through nats-py, with the ``nats`` extra.

NATS passes a message to its current subscribers and keeps no copy.  NATS closes the connection of a subscriber that
does not read in time; nats-py drops messages if the process does not keep up.  Here, either fault ends the
subscription, and the relay connects again and checks every key.  In a cluster of NATS servers, a new subscription takes
a moment to reach the other servers; if a notice is published on one of them in the meantime, the workers find the
change at the next resync (``resync_every``).
"""

import asyncio
import contextlib
import inspect
import os
import re
import ssl
from collections import UserString
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import ParseResult, unquote, urlsplit

from .addresses import described, secrets_of_url, validate_url, without_secrets
from .loop_lock import LoopLock
from .transport import SLICE, Received, Subscribed

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import NoServersError, UnexpectedEOF
except ImportError as _missing:
    raise ImportError("NatsTransport needs nats-py: pip install 'aiopurgatory[nats]'") from _missing

__all__ = ["NatsTransport"]

# nats-py tries every server in turn until each has failed more times than this, with a pause between attempts.
_CONNECT_ONCE: Final[dict[str, Any]] = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
_OPTIONS: Final = frozenset(inspect.signature(Client.connect).parameters) - {"self"}
# Without an echo of the relay's own messages, none of its pings would return.
_RESERVED: Final = frozenset({"servers", "error_cb", "closed_cb", "no_echo", *_CONNECT_ONCE})
_WITHOUT_SCHEME: Final = re.compile(r"@|:[0-9]+$")  # host:port, or user:password@host
_MAX_PAYLOAD: Final = 32_768
_SECRET: Final = ("password", "token", "nkeys_seed_str")
_SEED_OR_JWT: Final = re.compile(r"S[UAONCX][A-Z2-7]{30,}|eyJ[\w-]+\.")  # in an nkey's or a user's credentials
_CLOSE_TIMEOUT: Final = 0.2  # seconds allowed for closing a failed client
_MOST_FLUSHES: Final = 8  # after this many flushes, the connection counts as lost
_MOST_UNREAD: Final = 8 * 1024 * 1024  # bytes that nats-py may buffer for this process


class NatsTransport:
    """Relays through one NATS subject.

    ``url``: the URL of one server (``nats://``, ``tls://``, ``ws://``, or ``wss://``) or ``host:port``, or a list of
    them; raises ValueError if a URL is invalid or contains a password that is not percent-encoded.  ``subject``: the
    subject, without wildcards.  ``options``: further arguments for :meth:`nats.aio.client.Client.connect`, such as
    ``user_credentials`` or ``tls``, except ``error_cb``, ``closed_cb``, ``no_echo``, and the arguments for
    reconnecting.  ``nkeys_seed`` and ``user_credentials`` are paths of files: ValueError is raised if one of them is
    the text of such a file.  Pass a seed as ``nkeys_seed_str``, and the text of credentials as nats-py's
    ``RawCredentials``.

    With ``tls://`` or the option ``tls``, the transport does not connect to a server that does not require TLS, and
    sends it no credentials.

    A transport serves one event loop at a time.  While a loop uses the transport, relays and calls in other loops are
    refused with a RuntimeError.
    """

    def __init__(self, url: str | list[str], *, subject: str = "purgatory_relay", **options: Any) -> None:
        urls = [url] if isinstance(url, str) else url
        if not isinstance(urls, list):
            raise TypeError(f"url must be a str or a list of str, got {described(url)}")
        for one in urls:
            if not isinstance(one, str):
                raise TypeError(f"url must be a str or a list of str, got a list with {described(one)}")
        if not isinstance(subject, str):
            raise TypeError(f"subject must be a str, got {described(subject)}")
        if not subject or any(character in subject for character in "*> \t\r\n"):
            raise ValueError(f"subject must not be empty and must have no wildcards or blanks, got {subject!r}")
        if "" in subject.split("."):
            raise ValueError(f"subject must have no empty tokens between its dots, got {subject!r}")
        _validate_urls(urls)
        for name in options:
            if name in _RESERVED:
                raise TypeError(f"options must not include those that the transport sets itself, got {name!r}")
            if name not in _OPTIONS:
                raise TypeError(f"options must be arguments of nats.aio.client.Client.connect, got {name!r}")
        _validate_files(options)
        self._url = url
        self._secrets = [text for one in urls if "@" in one or "?" in one for text in _secrets_of(one)]
        self._secrets += _secrets_in(options)
        self._subject = subject
        self._options = options
        self._max_payload = _MAX_PAYLOAD
        self._loop_lock: LoopLock[_Client] = LoopLock("NatsTransport")
        self._publish_error: Exception | None = None

    @property
    def max_payload(self) -> int:
        """The largest payload: 32 KB, or the server's limit if that is lower.

        The limit is known only after the transport has connected to publish.
        """
        return self._max_payload

    async def _connect(self, failed: Callable[[Exception], None]) -> "_Client":
        """Connect once; ``failed`` is called with each later connection error."""
        attempts: list[Exception] = []  # what went wrong with each server
        connecting = True

        async def failed_once(reason: Exception) -> None:
            if connecting:
                attempts.append(reason)
            else:
                failed(reason)

        client = _Client()
        client.ended.add_done_callback(lambda _: failed(_lost()))
        try:
            await client.connect(self._url, error_cb=failed_once, **self._options, **_CONNECT_ONCE)
        except BaseException as error:
            await _give_up(client)
            reason = attempts[-1] if isinstance(error, NoServersError) and attempts else error
            if reason is not error or _hint(reason):
                text = str(reason) or "no answer in time"  # only a TimeoutError has no text
                raise ConnectionError(
                    f"no NATS server accepts the connection: {type(reason).__name__}: {text}{_hint(reason)}"
                ) from None
            raise
        finally:
            connecting = False
        return client

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        in_a_row = 0

        def failed(reason: Exception) -> None:
            if not lost.done():
                lost.set_exception(reason)

        async def message(message: Msg) -> None:
            nonlocal in_a_row
            received(message.data)
            in_a_row += 1
            if in_a_row % SLICE == 0:
                await asyncio.sleep(0)  # nats-py calls this for all buffered messages without yielding to other tasks

        connection: _Client | None = None
        with self._loop_lock.used(), without_secrets(self._secrets):
            try:
                connection = await self._connect(failed)
                await connection.subscribe(self._subject, cb=message, pending_bytes_limit=_MOST_UNREAD)
                await _round_trip(connection)
                if not lost.done():
                    subscribed()
                await lost
            finally:
                if not lost.cancel() and not lost.cancelled():
                    lost.exception()  # marks the exception as retrieved: the cause has already been raised
                if connection is not None:
                    await connection.close()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`."""
        with without_secrets(self._secrets):
            async with self._loop_lock.publishing() as use:
                connection = use.connection
                if connection is None or connection.is_closed:
                    connection = use.connection = await self._connect(self._publish_failed)
                    self._publish_error = None  # by now, the end of the previous connection has been noted
                    self._max_payload = min(_MAX_PAYLOAD, connection.max_payload)
                try:
                    await connection.publish(self._subject, payload.encode())
                    await _round_trip(connection)
                    if self._publish_error is not None:
                        raise self._publish_error
                except BaseException:
                    use.connection = None
                    await connection.close()
                    raise

    def _publish_failed(self, reason: Exception) -> None:
        self._publish_error = reason

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`."""
        async with self._loop_lock.closing() as connection:
            if connection is not None:
                with contextlib.suppress(Exception):  # the connection is gone in any case
                    await connection.close()

    def __copy__(self) -> "NatsTransport":
        """Return a new transport for the same subject, without connections."""
        return type(self)(self._url, subject=self._subject, **self._options)

    def __repr__(self) -> str:
        return f"<NatsTransport subject={self._subject!r}>"


class _Client(Client):
    """A client whose end is noticed at once, and that requires TLS if its URL or the option ``tls`` does.

    ``ended``: done as soon as the connection has ended or is being closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close the connection.  nats-py calls this method, too, when the connection is lost.

        nats-py would first try to send what it has not sent yet, and leave its tasks and the socket behind if that
        fails.  Nothing of it is needed: every message is followed by a ping whose answer is awaited.
        """
        if not self.ended.done():
            self.ended.set_result(None)
        self._pending = []
        self._pending_data_size = 0
        await super()._close(status, do_cbs)

    def _connect_command(self) -> bytes:
        """Return the command that contains the credentials, which nats-py sends after the TLS handshake, if any.

        nats-py uses TLS only if the server's first message requires it, and that message is not encrypted.  Otherwise,
        nats-py would send the credentials in clear text.
        """
        scheme = self._current_server.uri.scheme if self._current_server is not None else ""
        requires_tls = scheme == "tls" or "tls" in self.options
        if requires_tls and scheme != "wss" and not _is_encrypted(self._transport):
            raise ConnectionError(
                "tls:// or the option tls requires TLS, but the NATS server does not; no credentials were sent to it;"
                " enable TLS on the server, without allow_non_tls, or remove tls from the URL and the options"
            )
        if self._current_server is not None:
            self._current_server.uri = _Address(*self._current_server.uri)
        return super()._connect_command()


class _Address(ParseResult):
    """The URL of a server, with decoded credentials: nats-py would send them as they are in the URL."""

    @property
    def username(self) -> str | None:
        name = super().username
        return None if name is None else unquote(name)

    @property
    def password(self) -> str | None:
        password = super().password
        return None if password is None else unquote(password)


def _is_encrypted(transport: object) -> bool:
    writer: asyncio.StreamWriter | None = getattr(transport, "_io_writer", None)
    return writer is not None and writer.get_extra_info("ssl_object") is not None


def _lost() -> ConnectionResetError:
    return ConnectionResetError("the connection to NATS was lost")


async def _round_trip(connection: _Client) -> None:
    """Wait until the server has processed everything that was sent before, so that any errors from the server have
    arrived.

    nats-py's ``flush`` writes its ping at once, ahead of the commands that a nats-py task writes a moment later.

    If the flush fails or is cancelled, the connection is closed.  If the connection ends, nats-py does not end the
    flush, which would fail only after its timeout of 10 seconds.
    """
    for _ in range(_MOST_FLUSHES):
        await asyncio.sleep(0)  # lets the nats-py task write
        is_written = connection.pending_data_size == 0
        flush = asyncio.ensure_future(connection.flush())
        try:
            await asyncio.wait({flush, connection.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not flush.done():
                raise _lost()
            flush.result()
        except BaseException:
            # nats-py treats the answer to a cancelled flush as an error, so close the connection first.
            try:
                await connection.close()
            finally:
                flush.cancel()
                await asyncio.wait([flush])
            raise
        if is_written:
            return
    raise ConnectionResetError("nats-py does not write to the connection")


def _hint(error: BaseException) -> str:
    """Return the likely cause of a failed attempt to connect, if nats-py does not name it."""
    if isinstance(error, (ssl.SSLError, UnexpectedEOF)):
        return "; does the server use TLS, and do the options tls and tls_handshake_first agree with it?"
    if isinstance(error, TimeoutError):
        return "; does the server use TLS, and does it begin with the handshake (tls_handshake_first=True)?"
    return ""


async def _give_up(client: Client) -> None:
    """Close a client that has not connected.  After a failed TLS handshake, nats-py would wait for the server."""
    closing = asyncio.ensure_future(client.close())
    try:
        await asyncio.wait([closing], timeout=_CLOSE_TIMEOUT)
    finally:
        closing.cancel()  # also if the caller, whose relay is closing, has been cancelled in the meantime
        await asyncio.wait([closing], timeout=_CLOSE_TIMEOUT)
        if closing.done() and not closing.cancelled():
            # Mark the exception as retrieved: closing raises one if connect() failed before its first attempt.
            closing.exception()


def _validate_urls(urls: list[str]) -> None:
    if not urls:
        raise ValueError("url must be a str or a list of str, got an empty list")
    schemes = set()
    for url in urls:
        full = f"nats://{url}" if "://" not in url and _WITHOUT_SCHEME.search(url) else url
        validate_url(full, "nats://user:password@host:4222", ("nats", "tls", "ws", "wss"), needs_host=True)
        schemes.add(full.startswith("ws"))
    if len(schemes) > 1:
        raise ValueError("url must be a list with WebSockets for all servers or for none")


def _validate_files(options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option that names a file contains the text of the file.

    nats-py would fail to open such a file, and the system's error repeats the name.
    """
    for name, instead in (("nkeys_seed", "a seed is nkeys_seed_str"), ("user_credentials", "text is RawCredentials")):
        given = options.get(name)
        for value in given if isinstance(given, tuple) else (given,):
            path = os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else ""
            if "\n" in path or "\r" in path or _SEED_OR_JWT.search(path):
                raise ValueError(
                    f"{name} must be the path of a file, got one that looks like the text of the file ({instead}"
                    " of nats-py); it is not repeated here, because it may contain a secret"
                )


def _secrets_in(options: Mapping[str, Any]) -> list[str]:
    """Return the strings in the options of nats-py that must not appear in a message."""
    texts = [str(options[name]) for name in _SECRET if isinstance(options.get(name), (str, UserString))]
    if isinstance(headers := options.get("ws_connection_headers"), Mapping):
        for given in headers.values():
            values = [given] if isinstance(given, (str, bytes)) else given
            texts += [value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in values]
    if isinstance(credentials := options.get("user_credentials"), UserString):
        texts += [line for line in str(credentials).splitlines() if not line.startswith("-----")]
    return [part for text in texts for part in (text, text.strip())]


def _secrets_of(url: str) -> list[str]:
    """Return the strings that must not appear in a message."""
    if "://" not in url:
        url = f"nats://{url}"
    user = urlsplit(url).username if urlsplit(url).password is None else None  # a username alone is a token
    # The gateway of a WebSocket gives the options in the query their meaning.
    forms = [text for form in (url, _requoted(url)) for text in secrets_of_url(form, every_option=True)]
    return [*forms, *([user, unquote(user)] if user else [])]


def _requoted(url: str) -> str:
    """Return the URL with the escapes that it has in the errors of aiohttp, which opens the WebSockets."""
    try:
        from yarl import URL
    except ImportError:  # so aiohttp is missing, too
        return url
    return str(URL(url))
