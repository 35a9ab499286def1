"""Reading an inspector's frames over HTTP."""

import contextlib
import io
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any, Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from purgatory.texts import shortened

__all__ = ["STAY", "Client", "ServiceError"]

STAY: Final = 5.0
"""The longest number of seconds between two requests in which checks are counted without interruption: the inspector
stops ten seconds after the last one.
"""
_LARGEST: Final = 8 << 20  # bytes in a response
_IN_PATH: Final = "/%:@!$&'()*+,;=~"  # characters that a path may contain as they are, besides letters and digits
_LONGEST: Final = 300  # characters in a string from the service
_FIELDS: Final = frozenset(
    {"findings", "loop", "relays", "rooms", "time", "title", "worker"}
)  # fields that the screen shows
_FIELDS_OF_SEARCH: Final = frozenset({"complete", "keys", "operations"})


class ServiceError(Exception):
    """The service did not answer with a frame; the message states the reason."""


class _Deadline:
    """The time at which the current answer must be complete."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._until = 0.0

    def start(self) -> None:
        """Start to wait for an answer."""
        self._until = time.monotonic() + self._timeout

    def left(self) -> float:
        """Return the number of seconds that are left.  Raises TimeoutError if no time is left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    def error(self) -> TimeoutError:
        """Return the error for an answer that is late."""
        return TimeoutError(f"the answer was not complete within {self._timeout:g} s")


class _Reads(io.RawIOBase):
    """Reads from a socket until the deadline.  A socket's own timeout restarts with every byte."""

    def __init__(self, sock: Any, raw: Any, deadline: _Deadline) -> None:
        self._sock = sock
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left())
        try:
            number: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            raise self._deadline.error() from None
        return number

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections whose answers, including the headers, must be read before the deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._until = deadline

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._connection(HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._connection(HTTPSConnection), req)

    def _connection(self, kind: Any) -> Any:
        def response(sock: Any, *arguments: Any, **options: Any) -> HTTPResponse:
            made: Any = HTTPResponse(sock, *arguments, **options)
            made.fp = io.BufferedReader(_Reads(sock, made.fp.detach(), self._until))
            return made  # type: ignore[no-any-return]

        def connection(*arguments: Any, **options: Any) -> Any:
            made = kind(*arguments, **options)
            made.response_class = response
            return made

        return connection


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never sends the user's headers, such as a token, to another origin."""

    def __init__(self, has_headers: bool) -> None:
        self._has_headers = has_headers

    def http_error_302(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Follow a redirect.  If the redirect fails, close the response, which the superclass leaves open."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except urllib.error.HTTPError:
            raise  # the error owns the response, so do not close it here
        except Exception:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request.  Raises ServiceError if the request goes to another origin and the user has given
        headers.
        """
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if self._has_headers and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            shown = shortened(_without_user(newurl), _LONGEST)
            raise ServiceError(
                f"{req.full_url} redirects to {shown}, and the headers are not sent to another origin: pass that"
                " URL if they are meant for it"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Client:
    """Reads an inspector's ``state.json``.

    ``url``: the URL of the page, such as ``http://localhost:8000/purgatory``.  ``headers``: additional request headers,
    which are not sent to another origin.  ``timeout``: the number of seconds within which the service must answer.
    Raises ValueError unless the URL is an HTTP or HTTPS URL without a user name.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        given = url if "://" in url else f"http://{url}"
        if "@" in re.split("[/?#]", given.partition("://")[2], maxsplit=1)[0]:
            # The URL is not repeated, because errors are often logged.
            raise ValueError("the URL must not contain a user name or a password: pass --header 'Authorization: ...'")
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL must begin with http:// or https://, got {url!r}")
        try:
            _ = parts.port  # the system would take a number above 65,535 modulo 65,536
        except ValueError:
            raise ValueError(f"the port of the URL must be a number from 0 to 65535, got {url!r}") from None
        path = quote(parts.path.removesuffix("/state.json").rstrip("/"), safe=_IN_PATH) + "/state.json"
        self.url: str = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        self._headers = {"Accept": "application/json", "User-Agent": "purgatory-top", **headers}
        self._timeout = timeout
        self._deadline = _Deadline(timeout)
        self._asked_at = 0.0
        self._opener = urllib.request.build_opener(_Redirect(bool(headers)), _Handler(self._deadline))

    def frame(self) -> dict[str, Any]:
        """Return the next frame.  Raises ServiceError if the service does not answer with a frame."""
        return self._read("", _FIELDS)

    def stay(self) -> None:
        """Make a request if the last one was :data:`STAY` seconds ago, so that checks are counted until the next frame.

        The request takes no frame, because a frame has the longest turn since the one before.  If the service does not
        answer, the next frame raises the error.
        """
        if time.monotonic() - self._asked_at >= STAY:
            with contextlib.suppress(ServiceError):
                self._ask("", "HEAD")

    def search(self, room: str, key: str, rows: int) -> dict[str, Any]:
        """Return those keys of a purgatory that contain ``key``, and the operations on the best match.  Raises
        ServiceError, as :meth:`frame` does.
        """
        return self._read("?" + urlencode({"room": room, "key": key, "rows": rows}), _FIELDS_OF_SEARCH)

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Raise ServiceError if the block cannot show a frame because the frame does not have the expected form."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            reason = shortened(f"{type(error).__name__}: {error}", _LONGEST)
            raise ServiceError(
                f"{self.url} sends a frame that cannot be shown, so it is not an inspector of this version ({reason})"
            ) from None

    def _read(self, query: str, fields: frozenset[str]) -> dict[str, Any]:
        try:
            found = json.loads(self._ask(query))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("version") != 1 or not found.keys() >= fields:
            raise ServiceError(f"{self.url} is not an inspector of this version: mount purgatory.asgi.inspector there")
        return found

    def _ask(self, query: str, method: str = "GET") -> bytes:
        url = self.url + query
        request = urllib.request.Request(url, headers=self._headers, method=method)  # noqa: S310  # scheme validated
        self._deadline.start()
        body = b""
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                while len(body) <= _LARGEST and (part := answer.read1(65_536)):
                    body += part
        except urllib.error.HTTPError as error:
            raise ServiceError(f"{self.url} answers {error.code}: {_read_detail(error)}") from None
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a host or a header that cannot be encoded
            reason = error if isinstance(error, UnicodeError) else getattr(error, "reason", error)
            raise ServiceError(f"{self.url} does not answer: {_described(reason)}") from None
        finally:
            self._asked_at = time.monotonic()
        return body


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _read_detail(error: urllib.error.HTTPError) -> str:
    try:
        with error:
            return _detail(error.read(4096))
    except (OSError, HTTPException, ValueError) as trouble:
        return f"the reason cannot be read ({_described(trouble)})"


def _described(error: object) -> str:
    """Return the text of an error, which may repeat what the service has sent."""
    return shortened(str(error) or type(error).__name__, _LONGEST)


def _detail(body: bytes) -> str:
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no reason given"
    return shortened(str(detail), _LONGEST)
