"""The types of the ASGI specification that this package uses."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

__all__ = ["CLOSING", "CONNECTION", "HEADERS", "ASGIApp", "Message", "Receive", "Scope", "Send"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CLOSING: Final = "purgatory.closing"
"""The scope key that marks a request that waited in a closing purgatory: its connection must not be reused."""
CONNECTION: Final = "purgatory.connection"
"""The scope key of a weak reference to the Connection that may have a ``receive()`` pending."""
HEADERS: Final = "purgatory.headers"
"""The scope key of a dict of headers that the middleware adds to the response unless it already contains them."""
