"""The long poll on several event loops, one in each thread: ``python -m examples.long_poll_threads --loops 4``.

============================================  =========================================================================
``POST /topics/{topic}``                      appends the body as one message
``GET /topics/{topic}?offset=3&wait=25``      waits for message 3 and returns the messages from 3 on; 204 after 25 s
============================================  =========================================================================

Each thread runs a uvicorn server on the same socket, with a purgatory and a relay of its own.  The messages are in
memory that all threads share, so a loop needs only a notice.  On a free-threaded Python, the loops run at the same
time; with the GIL, the example works in the same way, but on one core.
"""

import argparse
import os
import signal
import socket
import sys
import threading
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import Purgatory
from purgatory.asgi import install_errors, purgatory_lifespan, waiting
from purgatory.relay import MemoryTransport, Relay

topics: dict[str, list[str]] = {}  # messages are only ever appended, and appending is atomic
engine = MemoryTransport()


def make_app(number: int) -> Starlette:
    """Return the application of one loop."""
    room = Purgatory[Any](f"topics of loop {number}")
    relay = Relay(room, engine.peer())
    waits = waiting(relay, longest=55)

    async def read(request: Request) -> Response:
        topic = request.path_params["topic"]
        offset = request.query_params.get("offset", "0")
        if not (offset.isascii() and offset.isdigit() and len(offset) < 10):
            return JSONResponse({"error": f"offset must be an integer, got {offset[:40]!r}"}, 422)
        first = int(offset)
        # The threshold: a check with a value of at most `first` need not try this reader.
        wait = await waits(request)
        if not await wait.until(lambda: len(topics.get(topic, ())) > first, keys={topic: first + 1}):
            return Response(status_code=204)
        return JSONResponse({"messages": topics[topic][first:], "loop": number})

    async def append(request: Request) -> Response:
        topic = request.path_params["topic"]
        messages = topics.setdefault(topic, [])
        messages.append((await request.body()).decode(errors="replace"))
        end = len(messages)
        relay.check(topic, end)  # here at once, and in the other loops a moment later
        return JSONResponse({"end": end, "loop": number}, 201)

    app = Starlette(
        routes=[
            Route("/topics/{topic}", read, methods=["GET"]),
            Route("/topics/{topic}", append, methods=["POST"]),
        ],
        lifespan=purgatory_lifespan(relay),
    )
    install_errors(app)
    return app


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.long_poll_threads", description=__doc__)
    parser.add_argument("--loops", type=int, default=4, help="number of threads with an event loop (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="0 selects a free port (%(default)s)")
    options = parser.parse_args()
    if options.loops < 1:
        parser.error(f"--loops must be at least 1, got {options.loops}")
    if not 0 <= options.port <= 65535:
        parser.error(f"--port must be from 0 to 65535, got {options.port}")
    try:
        listener = socket.create_server(("127.0.0.1", options.port), backlog=4096)
    except OSError as error:
        print(f"cannot listen on 127.0.0.1:{options.port}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return 1
    servers = [
        uvicorn.Server(
            uvicorn.Config(make_app(number), log_level="warning", lifespan="on", timeout_graceful_shutdown=10)
        )
        for number in range(options.loops)
    ]

    def stop(*_: object) -> None:
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    threads = [threading.Thread(target=server.run, args=[[listener.dup()]]) for server in servers]
    for thread in threads:
        thread.start()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"http://127.0.0.1:{listener.getsockname()[1]} on {options.loops} loops", "with the GIL" if gil else "without"
    )
    sys.stdout.flush()
    for thread in threads:
        thread.join()
    listener.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
