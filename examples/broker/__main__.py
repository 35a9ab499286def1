"""``python -m examples.broker``: the broker on a port, until SIGTERM or SIGINT."""

import argparse
import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Sequence

from examples.group import GroupConfig
from purgatory import Statistics

from .server import Server
from .settings import Settings

__all__ = ["main"]

_DEFAULTS = Settings()
_GROUP = GroupConfig()
_LOOK = 0.1  # seconds between two looks for the live page


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m examples.broker",
        description="A small Kafka broker, in memory; its requests wait in purgatories.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add("--host", default=_DEFAULTS.host, help="address to listen on")
    add("--port", type=int, default=_DEFAULTS.port, help="0 takes a free one")
    add("--advertised-host", default=None, help="what clients are told to connect to; the same as --host if not given")
    add("--no-uvloop", action="store_true", help="run on asyncio's own loop")
    add("--stats", action="store_true", help="print the purgatories' statistics each second")
    add("--web", action="store_true", help="serve a live page of what waits where")
    add("--web-port", type=int, default=8000, help="of the live page, on 127.0.0.1; 0 takes a free one")
    add("--log-level", default="warning", choices=["debug", "info", "warning", "error"], help="what is logged")
    add("--followers", type=int, default=_DEFAULTS.followers, help="simulated followers of a partition")
    add("--replication-delay", type=float, default=_DEFAULTS.replication_delay, help="seconds a follower takes to copy")
    add("--partitions", type=int, default=_DEFAULTS.default_partitions, help="of a topic created without a number")
    add("--no-auto-create", action="store_true", help="do not create topics that clients ask for")
    add("--segment-bytes", type=int, default=_DEFAULTS.segment_bytes, help="a segment of a log is closed at this size")
    add("--retention-bytes", type=int, default=_DEFAULTS.retention_bytes, help="kept per partition")
    add("--max-connections", type=int, default=_DEFAULTS.max_connections, help="further ones are closed at once")
    add("--max-frame-bytes", type=int, default=_DEFAULTS.max_frame_bytes, help="of one request")
    add("--max-fetch-bytes", type=int, default=_DEFAULTS.max_fetch_bytes, help="of one fetch response")
    add("--max-buffered-bytes", type=int, default=_DEFAULTS.max_buffered_bytes, help="of all connections together")
    add("--write-buffer-bytes", type=int, default=_DEFAULTS.write_buffer_bytes, help="unsent, of one connection")
    add("--write-timeout", type=float, default=_DEFAULTS.write_timeout, help="seconds for a response to be read")
    add("--frame-timeout", type=float, default=_DEFAULTS.frame_timeout, help="seconds for a request to arrive")
    add("--idle-timeout", type=float, default=_DEFAULTS.idle_timeout, help="seconds without a request")
    add("--initial-rebalance-delay", type=float, default=_GROUP.initial_rebalance_delay, help="of an empty group")
    add("--min-session-timeout", type=float, default=_GROUP.min_session_timeout, help="seconds, of group members")
    return made


def settings_from(arguments: argparse.Namespace) -> Settings:
    """The settings that a command line stands for.  ValueError for what makes no sense."""
    return Settings(
        host=arguments.host,
        port=arguments.port,
        advertised_host=arguments.advertised_host,
        followers=arguments.followers,
        replication_delay=arguments.replication_delay,
        default_partitions=arguments.partitions,
        auto_create=not arguments.no_auto_create,
        segment_bytes=arguments.segment_bytes,
        retention_bytes=arguments.retention_bytes,
        max_connections=arguments.max_connections,
        max_frame_bytes=arguments.max_frame_bytes,
        max_fetch_bytes=arguments.max_fetch_bytes,
        max_buffered_bytes=arguments.max_buffered_bytes,
        write_buffer_bytes=arguments.write_buffer_bytes,
        write_timeout=arguments.write_timeout,
        frame_timeout=arguments.frame_timeout,
        idle_timeout=arguments.idle_timeout,
        group=GroupConfig(
            initial_rebalance_delay=arguments.initial_rebalance_delay,
            min_session_timeout=arguments.min_session_timeout,
        ),
    )


async def serve(settings: Settings, stats: bool, web_port: int | None = None) -> None:
    """Serve until a signal comes; then everyone is answered."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Server(settings) as server:
        print(f"broker ready on {server.broker.host}:{server.port}", flush=True)
        beside = [asyncio.create_task(print_statistics(server))] if stats else []
        if web_port is not None:
            beside.append(asyncio.create_task(show(server, web_port)))
            beside[-1].add_done_callback(lambda _: stopped.set())  # a page that cannot be served is an error
        await stopped.wait()
        for task in beside:
            task.cancel()
        for ended in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def show(server: Server, port: int) -> None:
    """The live page, until the task is cancelled.  OSError if its port cannot be listened on."""
    from examples.web import LoopMeter, Page, Scene  # not loaded where nobody asks for it

    broker = server.broker
    rooms = (broker.produce, broker.fetch, broker.delete_records, *broker.groups.purgatories)
    with Page(port) as page, LoopMeter() as meter:
        print(f"live page: {page.url}", flush=True)
        scene = Scene("Broker", broker.timer, rooms, groups=broker.groups.groups, meter=meter)
        while True:
            with meter.left_out():
                page.look(scene)
            await asyncio.sleep(_LOOK)


async def print_statistics(server: Server) -> None:
    """A table each second."""
    while True:
        await asyncio.sleep(1.0)
        print(table(server), flush=True)


def table(server: Server) -> str:
    """The purgatories' statistics, one line each, and a line for the connections."""
    head = f"{'purgatory':<15}{'parked':>8}{'watched':>8}{'keys':>7}{'completed':>11}{'expired':>9}{'withdrawn':>10}"
    lines = [head + f"{'wait p50 ms':>13}{'p99':>8}{'late p99':>9}"]
    lines += [_row(statistics) for statistics in server.broker.statistics()]
    lines.append(
        f"connections {len(server.connections)}, closed for a reason {server.dropped},"
        f" buffered {server.memory.used} bytes, timer {server.broker.timer.size},"
        f" log {sum(partition.log.size for topic in server.broker.topics for partition in topic.partitions)} bytes"
    )
    return "\n".join(lines)


def _row(of: Statistics) -> str:
    counts = (
        f"{of.name:<15}{of.parked:>8}{of.watched:>8}{of.keys:>7}{of.completed:>11}{of.expired:>9}{of.cancelled:>10}"
    )
    return counts + f"{of.wait.p50 * 1000:>13.0f}{of.wait.p99 * 1000:>8.0f}{of.lateness.p99 * 1000:>9.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit code."""
    made = parser()
    arguments = made.parse_args(argv)
    try:
        settings = settings_from(arguments)
    except ValueError as error:
        made.error(str(error))
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    _allow_many_files()
    if arguments.no_uvloop:
        run = asyncio.run
    else:
        import uvloop

        run = uvloop.run
    try:
        run(serve(settings, arguments.stats, arguments.web_port if arguments.web else None))
    except OSError as error:
        # The page words its own error, which has no number.
        where = f"cannot listen on {settings.host}:{settings.port}: " if error.errno is not None else ""
        print(f"{where}{error}", file=sys.stderr)
        return 1
    return 0


def _allow_many_files() -> None:
    """A connection is a file: as many as the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
