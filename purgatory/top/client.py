"""Frames of an inspector over HTTP."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import IO, Any, Final
from urllib.parse import urlsplit, urlunsplit

from purgatory.texts import shortened

__all__ = ["Client", "ServiceError"]

_LARGEST: Final = 8 << 20  # bytes of an answer
_LONGEST: Final = 300  # characters of a text of the service
_FIELDS: Final = frozenset({"findings", "loop", "relays", "rooms", "title", "worker"})  # that the screen shows


class ServiceError(Exception):
    """The service has not answered with a frame; the message states the reason."""


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, but never takes the headers of the user, such as a token, to another origin."""

    def __init__(self, has_headers: bool) -> None:
        self._has_headers = has_headers

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request.  ServiceError for one to another origin if the user has given headers."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if self._has_headers and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise ServiceError(
                f"{req.full_url} redirects to {shortened(newurl, _LONGEST)}, and the headers are not sent to another"
                " origin: pass that URL if they are meant for it"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Client:
    """Reads ``state.json`` of an inspector.

    ``url``: of the page, such as ``http://localhost:8000/purgatory``.  ``headers``: additional headers of the requests,
    which are not sent to another origin.  ``timeout``: seconds until the service must have answered.  Raises ValueError
    unless the URL is one of HTTP.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL must begin with http:// or https://, got {url!r}")
        path = parts.path.removesuffix("/state.json").rstrip("/") + "/state.json"
        self.url: str = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        self._headers = {"Accept": "application/json", "User-Agent": "purgatory-top", **headers}
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_Redirect(bool(headers)))

    def frame(self) -> dict[str, Any]:
        """Return the next frame.  ServiceError if the service does not answer with one."""
        request = urllib.request.Request(self.url, headers=self._headers)  # noqa: S310  # the scheme was validated
        until = time.monotonic() + self._timeout
        body = b""
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                while len(body) <= _LARGEST and (part := answer.read1(65_536)):
                    body += part
                    if time.monotonic() > until:  # the timeout of a socket begins again with every byte
                        raise TimeoutError(f"the answer was not complete within {self._timeout:g} s")
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(f"{self.url} answers {error.code}: {_detail(error.read(4096))}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServiceError(f"{self.url} does not answer: {str(reason) or type(reason).__name__}") from None
        try:
            frame = json.loads(body)
        except (ValueError, RecursionError):
            frame = None
        if not isinstance(frame, dict) or frame.get("version") != 1 or not frame.keys() >= _FIELDS:
            raise ServiceError(f"{self.url} is not an inspector of this version: mount purgatory.asgi.inspector there")
        return frame


def _detail(body: bytes) -> str:
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no reason given"
    return shortened(str(detail), _LONGEST)
