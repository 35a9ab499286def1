"""The long poll as a process of its own: sockets, signals, and the order in which it stops.

Stopping
========

A server that is told to stop usually lets its open requests end and then tells the application.  With requests that
wait, this is the wrong way round: they would be waited for until their time is up.  So here, on SIGTERM or SIGINT:

1.  The listening socket is closed, and every connection is marked to be closed after its answer.
2.  The waiting room is closed: everyone who waits is answered with what there is, and a request that is read from now
    on is refused with 503.
3.  The answers go out, the connections are closed.
4.  The application's lifespan ends, and the process exits with 0.

Whoever dawdles (a body that does not come, an answer that is not read) is cut off after ``drain`` seconds.
"""

import asyncio
import contextlib
import json
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import FrameType

import uvicorn

from purgatory import Purgatory

from .app import LongPoll, make_app
from .fetch import Fetch
from .parameters import Limits
from .topics import Topics

__all__ = ["READY", "STOPPED", "Options", "raise_file_limit", "serve"]

READY = "ready "  # how the two lines begin that other programs wait for
STOPPED = "stopped "
_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """How the server is to be run; times in seconds.  ``port`` 0: a free one, see the line that says ready."""

    host: str = "127.0.0.1"
    port: int = 8080
    uvloop: bool = True
    max_parked: int | None = None
    max_parked_per_key: int | None = None
    retain_bytes: int = 16 << 20
    max_topics: int = 10_000
    retry_after: int = 1
    drain: float = 10.0
    limits: Limits = field(default_factory=Limits)


class _Server(uvicorn.Server):
    """uvicorn, with the waiting room closed at the right moment and an ordinary exit after a signal."""

    def __init__(self, config: uvicorn.Config, room: LongPoll) -> None:
        super().__init__(config)
        self.room = room

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        print(f"{READY}http://{address} on {loop}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.create_task(self.room.aclose())  # runs when the sockets have been closed: steps 1, 2
        try:
            await super().shutdown(sockets)
        finally:
            await closing


def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT.  OSError if the address cannot be listened on; ValueError for a bad option."""
    raise_file_limit()
    purgatory = Purgatory[Fetch](
        "long-poll", max_parked=options.max_parked, max_parked_per_key=options.max_parked_per_key
    )
    topics = Topics(retain_bytes=options.retain_bytes, max_topics=options.max_topics)
    room = LongPoll(purgatory, topics, limits=options.limits, retry_after=options.retry_after)
    config = uvicorn.Config(
        make_app(room),
        loop="uvloop" if options.uvloop else "asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=options.drain,  # type: ignore[arg-type]
    )
    server = _Server(config, room)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.create_server((options.host, options.port), family=family, backlog=_BACKLOG)
    with listener, _signals_end(server):
        server.run(sockets=[listener])
    print(STOPPED + json.dumps(asdict(purgatory.statistics())), flush=True)


@contextlib.contextmanager
def _signals_end(server: uvicorn.Server) -> Iterator[None]:
    """Have the signals end the server, and nothing else.

    While it serves, uvicorn has handlers of its own and puts these back afterwards to send itself the signal again: a
    wanted end is no death by signal, but exit code 0.
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
    """Allow this process as many open files, so connections, as it may have; return the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS names a hard limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft
