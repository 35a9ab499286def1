"""Frames of an inspector over HTTP."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Client", "ServiceError"]

_LARGEST: Final = 8 << 20  # bytes of an answer


class ServiceError(Exception):
    """The service has not answered with a frame; the message states the reason."""


class Client:
    """Reads ``state.json`` of an inspector.

    ``url``: of the page, such as ``http://localhost:8000/purgatory``.  ``headers``: additional headers of the requests.
    ``timeout``: seconds.  ValueError unless the URL is one of HTTP.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL must begin with http:// or https://, got {url!r}")
        path = parts.path.removesuffix("/state.json").rstrip("/") + "/state.json"
        self.url: str = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        self._headers = {"Accept": "application/json", "User-Agent": "purgatory-top", **headers}
        self._timeout = timeout

    def frame(self) -> dict[str, Any]:
        """Return the next frame.  ServiceError if the service does not answer with one."""
        request = urllib.request.Request(self.url, headers=self._headers)  # noqa: S310  # the scheme was validated
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310
                body = answer.read(_LARGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(f"{self.url} answers {error.code}: {_detail(error.read(4096))}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServiceError(f"{self.url} does not answer: {str(reason) or type(reason).__name__}") from None
        try:
            frame = json.loads(body)
        except ValueError:
            frame = None
        if not isinstance(frame, dict) or frame.get("version") != 1 or not isinstance(frame.get("rooms"), list):
            raise ServiceError(f"{self.url} is not an inspector of this version: mount purgatory.asgi.inspector there")
        return frame


def _detail(body: bytes) -> str:
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return "no reason given"
    return str(detail)
