"""The types of the ASGI specification, as far as this package uses them."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

__all__ = ["CLOSING", "CONNECTION", "HEADERS", "ASGIApp", "Message", "Receive", "Scope", "Send"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CLOSING: Final = "purgatory.closing"
"""The key of a scope whose request waited in a purgatory that is closing: the connection must not be reused."""
CONNECTION: Final = "purgatory.connection"
"""The key of a weak reference, in the scope, to the Connection that has left a ``receive()`` pending."""
HEADERS: Final = "purgatory.headers"
"""The key of a dict of headers that the middleware adds to the response, unless the response contains them."""
