"""The server of the long poll: sockets, signals, and the shutdown sequence.

Shutdown
========

On shutdown, a server usually waits for its open requests and then notifies the application.  This order is wrong for
parked requests, because the server would wait for their timeouts.  On SIGTERM or SIGINT, this server shuts down as
follows:

1.  ``purgatory_lifespan`` closes the purgatory: every reader gets the available messages, and a new request that would
    have to wait gets 503.
2.  uvicorn closes the listening socket and closes every connection after its response.
3.  The responses are sent, and the connections are closed.
4.  The lifespan of the application ends, and the process exits with code 0.

The server disconnects slow clients after ``drain`` seconds.
"""

import asyncio
import contextlib
import json
import resource
import signal
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from purgatory import Purgatory
from purgatory.asgi import LOCAL_HOSTS, OriginCheckMiddleware

from .app import LongPoll, make_app
from .fetch import Fetch
from .http_protocol import limited_protocol
from .parameters import Limits
from .topics import Topics
from .unsent import UnsentLimit

__all__ = ["READY", "STOPPED", "Options", "raise_file_limit", "serve"]

READY = "ready "  # prefixes of the two lines that other programs wait for
STOPPED = "stopped "
_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the server.  Times are in seconds.  ``port`` 0 selects a free port."""

    host: str = "127.0.0.1"
    port: int = 8080
    uvloop: bool = True
    max_parked: int | None = None
    max_parked_per_key: int | None = None
    retain_bytes: int = 16 << 20
    max_topics: int = 10_000
    max_total_bytes: int = 4 << 30
    retry_after: int = 1
    drain: float = 10.0
    head_timeout: float = 10.0
    max_head_bytes: int = 16 << 10
    write_timeout: float = 30.0
    max_connections: int = 50_000
    max_unsent_bytes: int = 1 << 30
    limits: Limits = field(default_factory=Limits)
    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS  # host names that requests may use, in addition to ``host``


def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT.  Raise OSError if the address is unavailable, and ValueError for a bad option."""
    raise_file_limit()
    purgatory = Purgatory[Fetch](
        "long-poll", max_parked=options.max_parked, max_parked_per_key=options.max_parked_per_key
    )
    topics = Topics(
        retain_bytes=options.retain_bytes, max_topics=options.max_topics, max_total_bytes=options.max_total_bytes
    )
    room = LongPoll(purgatory, topics, limits=options.limits, retry_after=options.retry_after)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.create_server((options.host, options.port), family=family, backlog=_BACKLOG)

    @asynccontextmanager
    async def started(_: Starlette) -> AsyncGenerator[None]:
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        print(f"{READY}http://{address} on {loop}", flush=True)
        yield

    app = UnsentLimit(make_app(room, started), max_bytes=options.max_unsent_bytes, retry_after=options.retry_after)
    config = uvicorn.Config(
        OriginCheckMiddleware(app, allowed_hosts=[options.host, *options.allowed_hosts]),
        http=limited_protocol(
            head_timeout=options.head_timeout,
            max_head_bytes=options.max_head_bytes,
            write_timeout=options.write_timeout,
            max_connections=options.max_connections,
        ),
        loop="uvloop" if options.uvloop else "asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=options.drain,  # type: ignore[arg-type]
    )
    server = uvicorn.Server(config)
    with listener, _signals_end(server):
        server.run(sockets=[listener])
    print(STOPPED + json.dumps(asdict(purgatory.statistics())), flush=True)


@contextlib.contextmanager
def _signals_end(server: uvicorn.Server) -> Iterator[None]:
    """Let the signals stop the server without ending the process.

    On exit, uvicorn restores the signal handlers that it found and raises the signal again.  With the handlers set
    here, the process then exits with code 0 instead of being terminated by the signal.
    """

    def end(_: int, __: FrameType | None) -> None:
        server.should_exit = True

    wanted = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, end) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)


def raise_file_limit() -> int:
    """Raise the limit on open files, and therefore on connections, as far as possible.  Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS reports a hard limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft
