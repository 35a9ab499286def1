"""Checking the host and the origin of requests, for servers that are meant for one machine or one site.

A server on 127.0.0.1 is not protected by its address, because every web page that the user opens runs in a browser on
the same machine.  Two attacks are possible:

*   **DNS rebinding.**  The name of a page's site is made to resolve to 127.0.0.1.  The page can then read every
    response, because the browser considers the page and the server to be the same site.  Only the ``Host`` header
    reveals the attack.
*   **Cross-site requests.**  A page can send a POST without custom headers, or open a WebSocket, to any address.  The
    page cannot read the response to the POST, but the request takes effect.  Browsers send ``Sec-Fetch-Site`` and
    ``Origin`` with these requests.

Programs other than browsers send neither header and are not affected.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from .responses import respond
from .types import ASGIApp, Receive, Scope, Send

__all__ = ["LOCAL_HOSTS", "OriginCheckMiddleware", "host_names", "refusal"]

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
"""The names and addresses of the local machine, which :class:`OriginCheckMiddleware` allows by default."""

_LONGEST_HOST: Final = 253  # characters in a DNS name
_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS", "TRACE")


class OriginCheckMiddleware:
    """ASGI middleware that refuses requests for other host names, and refuses changes that pages from other sites
    request.

    ::

        app.add_middleware(OriginCheckMiddleware)                                  # a server on 127.0.0.1
        app = OriginCheckMiddleware(app, allowed_hosts=["orders.example.com"])     # any ASGI application

    A request whose ``Host`` header is not one of ``allowed_hosts`` gets 400: a page cannot reach the application
    through a host name of its own that resolves to this server.  A WebSocket, or a request with a method other than
    GET, HEAD, OPTIONS, or TRACE, gets 403 if a browser sends it on behalf of a page from another origin.  Other
    programs do not send ``Origin`` and are not refused.

    ``allowed_hosts``: host names and addresses without a port; by default, the local machine's.  As in
    Starlette's ``TrustedHostMiddleware``, ``*.example.com`` allows every subdomain of example.com, and ``*`` allows
    every host, as does None.  If every host is allowed, the application relies on a proxy to check the host.  Raises
    TypeError unless ``allowed_hosts`` is None or an iterable of str, and ValueError for a ``*`` in any other position.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str] | None = LOCAL_HOSTS) -> None:
        self.app = app
        self._allowed_hosts = host_names(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, unless the request is refused."""
        refused = refusal(scope, self._allowed_hosts) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await respond(scope, send, *refused)


def host_names(allowed_hosts: Iterable[str] | None) -> frozenset[str] | None:
    """Return the host names in the form that :func:`refusal` compares, or None if every host is allowed.

    ``*.example.com`` becomes ``.example.com``.  Raises TypeError unless all names are str, and ValueError for other
    wildcards.
    """
    if allowed_hosts is None:
        return None
    if isinstance(allowed_hosts, (str, bytes)) or not isinstance(allowed_hosts, Iterable):
        raise TypeError(f"allowed_hosts must be an iterable of host names or None, got {allowed_hosts!r}")
    names = list(allowed_hosts)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a host of allowed_hosts must be a str, got {name!r}")
        if "*" in name.removeprefix("*.") and name != "*":
            raise ValueError(f"a host of allowed_hosts must be '*', '*.example.com' or have no '*', got {name!r}")
    if "*" in names:
        return None
    return frozenset(_normalized(name.strip("[]").removeprefix("*")) for name in names)


def refusal(scope: Scope, allowed_hosts: frozenset[str] | None) -> tuple[int, str] | None:
    """Return the status and detail of the response if the request must be refused; otherwise, return None."""
    hosts: list[str] = []
    origin = site = None
    for name, value in scope.get("headers", ()):
        if name == b"host":
            hosts.append(value.decode("latin-1").strip())
        elif name == b"origin":
            origin = value.decode("latin-1").strip()
        elif name == b"sec-fetch-site":
            site = value.decode("latin-1").strip()
    host = hosts[0] if len(hosts) == 1 else ""
    if allowed_hosts is not None and not _is_allowed(_host_name(host), allowed_hosts):
        return 400, "the host of the request is not served here"
    if scope["type"] == "http" and scope["method"] in _SAFE_METHODS:
        return None
    if _is_other_site(host, origin, site):
        return 403, "the request was sent by a page from another origin"
    return None


def _is_other_site(host: str, origin: str | None, site: str | None) -> bool:
    """Return whether a browser sends the request on behalf of a page from another origin.  Only Sec-Fetch-Site covers
    the scheme, because the server cannot see the scheme in front of a proxy.
    """
    if site is not None:
        return site not in ("same-origin", "none")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:  # an incomplete IPv6 address
        return True


def _is_allowed(name: str, allowed_hosts: frozenset[str]) -> bool:
    """Return whether the name or one of its parent domains is in the set.  Domains in the set begin with a dot."""
    if name in allowed_hosts:
        return True
    if len(name) > _LONGEST_HOST:  # the cost of the loop below grows with the square of the length
        return False
    dot = name.find(".")
    while dot >= 0:
        if name[dot:] in allowed_hosts:
            return True
        dot = name.find(".", dot + 1)
    return False


def _host_name(host: str) -> str:
    """Return the name or the address in a ``Host`` header, without the port."""
    if host.startswith("["):
        return _normalized(host[1:].partition("]")[0])
    return _normalized(host.partition(":")[0])


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")
