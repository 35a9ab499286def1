"""Serve the long poll: ``python -m examples.long_poll --port 8080``."""

import argparse
import os
import sys

from purgatory.asgi import LOCAL_HOSTS

from .parameters import Limits
from .server import Options, serve

_MANY = 1 << 40
_BOUNDS = (
    ("port", 0, 65535),
    ("max_parked", 1, _MANY),
    ("max_parked_per_topic", 1, _MANY),
    ("max_topics", 1, _MANY),
    ("retain_bytes", 1, _MANY),
    ("max_message_bytes", 1, _MANY),
    ("longest_wait", 0, 86_400),
    ("retry_after", 1, 86_400),
    ("drain", 0, 86_400),
    ("head_timeout", 0.001, 86_400),
    ("body_timeout", 0.001, 86_400),
    ("write_timeout", 0.001, 86_400),
    ("max_head_bytes", 64, _MANY),
    ("max_connections", 1, _MANY),
    ("max_unsent_bytes", 1, _MANY),
    ("max_total_bytes", 1, _MANY),
)


def _parser() -> argparse.ArgumentParser:
    usual, limits = Options(), Limits()
    parser = argparse.ArgumentParser(prog="python -m examples.long_poll", description=__doc__)
    parser.add_argument("--host", default=usual.host, help="address to listen on (%(default)s)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="also serve requests for this host name"
    )
    parser.add_argument(
        "--port", type=int, default=usual.port, help="port to listen on; 0 selects a free port (%(default)s)"
    )
    parser.add_argument("--no-uvloop", action="store_true", help="run on asyncio's event loop instead of uvloop")
    parser.add_argument(
        "--max-parked", type=int, metavar="N", help="maximum number of waiting readers; above it: 503 (no limit)"
    )
    parser.add_argument(
        "--max-parked-per-topic",
        type=int,
        metavar="N",
        help="maximum number of waiting readers per topic; above it: 429 (no limit)",
    )
    parser.add_argument(
        "--max-topics", type=int, metavar="N", default=usual.max_topics, help="maximum number of topics (%(default)s)"
    )
    parser.add_argument("--retain-bytes", type=int, default=usual.retain_bytes, help="memory per topic (%(default)s)")
    parser.add_argument(
        "--max-message-bytes", type=int, default=limits.max_message_bytes, help="maximum size (%(default)s)"
    )
    parser.add_argument("--longest-wait", type=float, default=limits.longest_wait, help="maximum seconds (%(default)s)")
    parser.add_argument(
        "--retry-after",
        type=int,
        default=usual.retry_after,
        help="seconds in Retry-After of a rejected request (%(default)s)",
    )
    parser.add_argument(
        "--drain", type=float, default=usual.drain, help="seconds for slow clients at shutdown (%(default)s)"
    )
    add = parser.add_argument
    add(
        "--head-timeout",
        type=float,
        default=usual.head_timeout,
        help="seconds within which the headers must arrive (%(default)s)",
    )
    add(
        "--body-timeout",
        type=float,
        default=limits.body_timeout,
        help="seconds within which a message must arrive (%(default)s)",
    )
    add(
        "--write-timeout",
        type=float,
        default=usual.write_timeout,
        help="seconds within which a client must read a response (%(default)s)",
    )
    add(
        "--max-head-bytes",
        type=int,
        default=usual.max_head_bytes,
        help="maximum size of the headers; above it: 431 (%(default)s)",
    )
    add(
        "--max-connections",
        type=int,
        default=usual.max_connections,
        help="further connections are closed at once (%(default)s)",
    )
    add(
        "--max-unsent-bytes",
        type=int,
        default=usual.max_unsent_bytes,
        help="memory of all responses that clients have not read; above it: 503 (%(default)s)",
    )
    add(
        "--max-total-bytes",
        type=int,
        default=usual.max_total_bytes,
        help="memory of all topics; above it: 507 (%(default)s)",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the server and return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    for name, least, most in _BOUNDS:
        number = getattr(given, name)
        if number is not None and not least <= number <= most:
            parser.error(f"--{name.replace('_', '-')} must be {least} to {most}, got {number}")
    limits = Limits(
        longest_wait=given.longest_wait,
        default_wait=min(Limits().default_wait, given.longest_wait),
        max_message_bytes=given.max_message_bytes,
        body_timeout=given.body_timeout,
    )
    try:
        serve(
            Options(
                host=given.host,
                port=given.port,
                uvloop=not given.no_uvloop,
                max_parked=given.max_parked,
                max_parked_per_key=given.max_parked_per_topic,
                retain_bytes=given.retain_bytes,
                max_topics=given.max_topics,
                retry_after=given.retry_after,
                drain=given.drain,
                head_timeout=given.head_timeout,
                max_head_bytes=given.max_head_bytes,
                write_timeout=given.write_timeout,
                max_connections=given.max_connections,
                max_unsent_bytes=given.max_unsent_bytes,
                max_total_bytes=given.max_total_bytes,
                limits=limits,
                allowed_hosts=(*LOCAL_HOSTS, *given.allow_host),
            )
        )
    except OSError as error:
        print(
            f"cannot listen on {given.host}:{given.port}: {os.strerror(error.errno) if error.errno else error}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
