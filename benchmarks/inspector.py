"""What the inspector page costs: ``python -m benchmarks.inspector [--parked N] [--viewers N] [--seconds S]``.

A server on uvicorn has N operations parked, on half as many keys, and completes up to a hundred others per second.  It
measures itself: its CPU time and the CPU time of each turn of its event loop, so other processes do not count.  The
viewers are in this process.  The two cases alternate, and the table shows their medians.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["main"]


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that measures the CPU time of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns.append(time.thread_time() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspector", description="Cost of the inspector's page.")
    parser.add_argument("--parked", type=int, default=10_000, help="parked operations (10,000)")
    parser.add_argument("--viewers", type=int, default=10, help="open pages (10)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case (3)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(_serve(options.parked))
        return 0
    command = [sys.executable, "-m", "benchmarks.inspector", "--serve", "--parked", str(options.parked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        port = int(server.stdout.readline())

        def measure() -> dict[str, float]:
            assert server.stdout is not None
            assert server.stdin is not None
            server.stdin.write(f"{options.seconds}\n")
            server.stdin.flush()
            answer: dict[str, float] = json.loads(server.stdout.readline())
            return answer

        nobody, watched = [], []
        for _ in range(options.rounds):
            nobody.append(measure())
            with _viewers(port, options.viewers) as frames:
                watched.append(measure())
        server.stdin.close()
    print(f"{options.parked:,} operations parked, {options.viewers} viewers, medians of {options.rounds} rounds")
    print(f"{'':24}{'CPU share':>12}{'longest turn, CPU':>20}{'p99 turn':>12}")
    for name, results in (("nobody looks", nobody), (f"{options.viewers} viewers", watched)):
        share, longest, p99 = (
            statistics.median([result[column] for result in results]) for column in ("share", "longest", "p99")
        )
        print(f"{name:24}{100 * share:>11.1f}%{1000 * longest:>17.1f} ms{1000 * p99:>9.1f} ms")
    print(f"frames received in the last round: {frames['frames']}, {frames['bytes'] / 1000:,.0f} kB")
    return 0


@contextlib.contextmanager
def _viewers(port: int, number: int) -> Iterator[dict[str, int]]:
    """Keep ``number`` pages open, and count what they receive."""
    received = {"frames": 0, "bytes": 0}
    sockets = []
    threads = []

    def read(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                received["bytes"] += len(data)
                received["frames"] += data.count(b"data: ")

    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET /purgatory/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sockets.append(connection)
        thread = threading.Thread(target=read, args=[connection], daemon=True)
        thread.start()
        threads.append(thread)
    ends = time.monotonic() + 30
    while received["frames"] < number and time.monotonic() < ends:
        time.sleep(0.05)
    try:
        yield received
    finally:
        for connection in sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in threads:
            thread.join(5)


async def _serve(parked: int) -> None:
    """Serve.  For each line of standard input, measure for that number of seconds, and print the result."""
    import uvicorn
    from starlette.applications import Starlette

    from purgatory import DelayedOperation, Purgatory
    from purgatory.asgi import inspector

    class Wait(DelayedOperation[None]):
        def try_complete(self) -> bool:
            return False

    loop = asyncio.get_running_loop()
    async with Purgatory[Any]("orders") as room:
        for number in range(parked):
            room.try_complete_else_watch(Wait(3600.0 + number % 60), [f"order-{number % max(1, parked // 2)}"])
        app = Starlette()
        app.mount("/purgatory", inspector(room))
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", ws="none"))
        serving = loop.create_task(server.serve(sockets=[listener]))
        traffic = loop.create_task(_traffic(room))
        print(listener.getsockname()[1], flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await _measure(float(line))), flush=True)
        traffic.cancel()
        server.should_exit = True
        await asyncio.wait([serving])


async def _traffic(room: Any) -> None:
    """Complete a hundred operations per second."""
    number = 0
    while True:
        number += 1
        done = asyncio.Event()
        waiting = asyncio.ensure_future(room.wait_until(done.is_set, key=f"busy-{number}", timeout=10.0))
        await asyncio.sleep(0.01)
        done.set()
        room.check(f"busy-{number}")
        await waiting


async def _measure(seconds: float) -> dict[str, float]:
    """Return the CPU share and the turns of the loop, measured over ``seconds``."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    loop.turns.clear()
    began, busy = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - busy) / (time.perf_counter() - began)
    turns = sorted(loop.turns)
    return {"share": share, "longest": turns[-1], "p99": turns[int(len(turns) * 0.99)]}


if __name__ == "__main__":
    sys.exit(main())
