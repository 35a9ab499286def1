"""``python -m examples.broker``: run the broker until SIGTERM or SIGINT."""

import argparse
import asyncio
import contextlib
import importlib
import logging
import resource
import signal
import sys
from collections.abc import Sequence

from examples.broker.network.server import Server
from examples.group import GroupConfig
from purgatory import Statistics

from .settings import Settings

__all__ = ["main"]

_DEFAULTS = Settings()
_GROUP = GroupConfig()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m examples.broker",
        description="A small in-memory Kafka broker. Its requests wait in purgatories.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = made.add_argument
    add("--host", default=_DEFAULTS.host, help="address to listen on")
    add("--port", type=int, default=_DEFAULTS.port, help="port to listen on; 0 selects a free port")
    add("--advertised-host", default=None, help="host name that clients connect to; by default, the value of --host")
    add("--no-uvloop", action="store_true", help="run on asyncio's event loop instead of uvloop")
    add("--stats", action="store_true", help="print the statistics of the purgatories every second")
    add("--web", action="store_true", help="serve a live page of the purgatories and their operations")
    add("--web-port", type=int, default=8000, help="port of the live page on 127.0.0.1; 0 selects a free port")
    add(
        "--log-level",
        default="warning",
        choices=["debug", "info", "warning", "error"],
        help="lowest level of messages to log",
    )
    add("--followers", type=int, default=_DEFAULTS.followers, help="simulated followers per partition")
    add(
        "--replication-delay",
        type=float,
        default=_DEFAULTS.replication_delay,
        help="seconds that a follower takes to copy",
    )
    add(
        "--partitions",
        type=int,
        default=_DEFAULTS.default_partitions,
        help="partitions of a topic that is created without a number",
    )
    add("--no-auto-create", action="store_true", help="do not create missing topics on request")
    add("--segment-bytes", type=int, default=_DEFAULTS.segment_bytes, help="size at which a log segment is closed")
    add("--retention-bytes", type=int, default=_DEFAULTS.retention_bytes, help="bytes to keep per partition")
    add(
        "--max-connections",
        type=int,
        default=_DEFAULTS.max_connections,
        help="maximum number of connections; further ones are closed",
    )
    add("--max-frame-bytes", type=int, default=_DEFAULTS.max_frame_bytes, help="maximum size of a request")
    add("--max-fetch-bytes", type=int, default=_DEFAULTS.max_fetch_bytes, help="maximum size of a Fetch response")
    add(
        "--max-buffered-bytes",
        type=int,
        default=_DEFAULTS.max_buffered_bytes,
        help="maximum bytes buffered for all connections together",
    )
    add(
        "--write-buffer-bytes",
        type=int,
        default=_DEFAULTS.write_buffer_bytes,
        help="unsent bytes of a connection above which its next request waits",
    )
    add(
        "--write-timeout",
        type=float,
        default=_DEFAULTS.write_timeout,
        help="seconds within which a client must read a response",
    )
    add(
        "--frame-timeout",
        type=float,
        default=_DEFAULTS.frame_timeout,
        help="seconds within which a request must arrive",
    )
    add(
        "--idle-timeout",
        type=float,
        default=_DEFAULTS.idle_timeout,
        help="seconds without a request before a connection is closed",
    )
    add(
        "--initial-rebalance-delay",
        type=float,
        default=_GROUP.initial_rebalance_delay,
        help="seconds that an empty group waits for more members",
    )
    add(
        "--min-session-timeout",
        type=float,
        default=_GROUP.min_session_timeout,
        help="minimum session timeout of a member in seconds",
    )
    return made


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Return the settings for parsed arguments.  Raise ValueError if a value is out of range."""
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
    """Serve until a signal arrives, and then answer every parked request."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Server(settings) as server:
        print(f"broker ready on {server.broker.host}:{server.port}", flush=True)
        tasks = [asyncio.create_task(print_statistics(server))] if stats else []
        if web_port is not None:
            tasks.append(asyncio.create_task(show(server, web_port)))
            tasks[-1].add_done_callback(lambda _: stopped.set())  # stop if the page cannot be served
        await stopped.wait()
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def show(server: Server, port: int) -> None:
    """Serve the live page until the task is cancelled.  Raise OSError if its port is not available."""
    from examples.web import Groups, Page  # loaded only with --web

    broker = server.broker
    purgatories = (broker.produce, broker.fetch, broker.delete_records, *broker.groups.purgatories)
    groups = Groups(broker.groups.groups, broker.timer, broker.timer.time())
    with Page("Broker", purgatories, groups=groups, port=port) as page:
        print(f"live page: {page.url}", flush=True)
        await asyncio.Event().wait()


async def print_statistics(server: Server) -> None:
    """Print the table of statistics every second."""
    while True:
        await asyncio.sleep(1.0)
        print(table(server), flush=True)


def table(server: Server) -> str:
    """Return a table with one line per purgatory and one line for the connections."""
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
    """Run the broker and return the exit code."""
    made = parser()
    arguments = made.parse_args(argv)
    try:
        settings = settings_from(arguments)
    except ValueError as error:
        made.error(str(error))
    if arguments.web:
        try:
            importlib.import_module("examples.web")
        except ImportError as missing:
            made.error(f"--web needs {missing.name!r}, which is not installed: pip install -e '.[examples]'")
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
        # The OSError that the live page raises has no errno, and its message is already complete.
        where = f"cannot listen on {settings.host}:{settings.port}: " if error.errno is not None else ""
        print(f"{where}{error}", file=sys.stderr)
        return 1
    return 0


def _allow_many_files() -> None:
    """Raise the limit on open files, and therefore on connections, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
