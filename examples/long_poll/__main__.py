"""Serve topics with a long poll: ``python -m examples.long_poll --port 8080``."""

import argparse
import os
import sys

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
)


def _parser() -> argparse.ArgumentParser:
    usual, limits = Options(), Limits()
    parser = argparse.ArgumentParser(prog="python -m examples.long_poll", description=__doc__)
    parser.add_argument("--host", default=usual.host, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=usual.port, help="0: a free one (%(default)s)")
    parser.add_argument("--no-uvloop", action="store_true", help="run on asyncio's own loop")
    parser.add_argument("--max-parked", type=int, metavar="N", help="readers that may wait; more get 503 (no limit)")
    parser.add_argument(
        "--max-parked-per-topic",
        type=int,
        metavar="N",
        help="readers that may wait on one topic; more get 429 (no limit)",
    )
    parser.add_argument("--max-topics", type=int, metavar="N", default=usual.max_topics, help="(%(default)s)")
    parser.add_argument("--retain-bytes", type=int, default=usual.retain_bytes, help="kept per topic (%(default)s)")
    parser.add_argument("--max-message-bytes", type=int, default=limits.max_message_bytes, help="(%(default)s)")
    parser.add_argument("--longest-wait", type=float, default=limits.longest_wait, help="seconds (%(default)s)")
    parser.add_argument(
        "--retry-after", type=int, default=usual.retry_after, help="seconds, told to who is turned away (%(default)s)"
    )
    parser.add_argument(
        "--drain", type=float, default=usual.drain, help="seconds that slow clients get at the end (%(default)s)"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the server; the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    for name, least, most in _BOUNDS:
        number = getattr(given, name)
        if number is not None and not least <= number <= most:
            parser.error(f"--{name.replace('_', '-')} is {least} to {most}, not {number}")
    limits = Limits(
        longest_wait=given.longest_wait,
        default_wait=min(Limits().default_wait, given.longest_wait),
        max_message_bytes=given.max_message_bytes,
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
                limits=limits,
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
