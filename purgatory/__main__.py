"""The ``purgatory`` command, which can also be run as ``python -m purgatory``."""

import argparse
import platform
import sys
from collections.abc import Callable, Sequence

from .broken_pipe import run_command
from .extras import deferred
from .installation import require_sole_package

__all__ = ["main"]

# The commands of purgatory.pipeline, which parses their arguments itself.
_PIPELINE = {
    "report": "wait times and outcomes of the operations in a journal",
    "compare": "two journals side by side: what got better, and what got worse",
    "replay": "the cost of other timer settings, for a journal",
    "estimate": "what other timeouts and limits would have changed",
    "compact": "merge the small files of a journal",
    "load": "a journal as a table, partitioned by date",
    "synthesize": "generate a journal for measurements",
    "stream": "process operations as a stream, on Spark",
    "backfill": "process the same rows in one batch",
}

# What follows "python -m", the packages that the example needs in addition to this one, and what the example shows.
_EXAMPLES = (
    ("examples", "aiopurgatory[examples]", "the long poll and the consumer groups, in half a minute"),
    ("examples.quickstart", "", "forty lines: a value, a deadline, a thread"),
    ("uvicorn examples.job_status:app", "fastapi uvicorn", "the status of jobs, as a long poll in FastAPI"),
    (
        "uvicorn examples.job_status_relayed:app",
        "aiopurgatory[redis] fastapi uvicorn",
        "the same in several workers, with Redis",
    ),
    ("uvicorn examples.job_status_sqlite:app", "fastapi uvicorn", "the same, with SQLite and no server"),
    (
        "uvicorn examples.tutorial.chapter_1:app",
        "fastapi uvicorn",
        "the programs of the tutorial, from chapter_1 to chapter_6",
    ),
    ("examples.long_poll", "aiopurgatory[examples]", "a long poll over HTTP: Starlette, uvicorn, and uvloop"),
    (
        "examples.long_poll.demo",
        "aiopurgatory[examples]",
        "its readers and writer, a disconnect, and SIGTERM, step by step",
    ),
    ("examples.long_poll_threads", "aiopurgatory[examples]", "a long poll on several event loops, one in each thread"),
    (
        "examples.join_group",
        "aiopurgatory[examples]",
        "a simulator of Kafka's consumer groups; --web serves a live page",
    ),
    ("examples.broker", "aiopurgatory[broker]", "a small Kafka broker for real Kafka clients"),
    ("examples.orders", "aiopurgatory fastapi uvicorn", "FastAPI with several workers, and a live page"),
    ("examples.hangs", "aiopurgatory[examples]", "five services that hang, to practice with the inspector"),
    ("examples.incident", "aiopurgatory[journal]", "the journals of an incident, to practice with the reports"),
    ("examples.job_queue", "", "a job queue that loses no jobs"),
    ("examples.simple_wheel", "", "a timing wheel with one ring, beside the real one"),
)

_EPILOG = """\
examples:
  purgatory demo                                        park, complete, expire, and close, in a second
  purgatory top localhost:8000/purgatory                who waits for what, from an inspector
  purgatory report journal --out report                 report/index.html
  purgatory compare before after --out comparison       comparison/compare.html
  purgatory replay journal --tick-ms 1,5 --out replay   the cost of other tick sizes
  purgatory estimate journal --timeout 10,60            what other timeouts would have changed
  purgatory synthesize journal --rows 1000000           a journal to try these with

The commands for journals and streams need Spark: pip install 'aiopurgatory[spark]'.
The journal is written by purgatory.journal.Journal in your server: pip install 'aiopurgatory[journal]'.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    The status is 1 if the command failed (the reason is on standard error), 130 if it was interrupted, and 141 if the
    process that reads its output has exited.
    """
    return run_command(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        require_sole_package()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments and arguments[0] in _PIPELINE:
        with deferred():
            from .pipeline.__main__ import main as pipeline
        return pipeline(arguments, prog="purgatory")
    if arguments and arguments[0] == "top":
        from .top import main as top

        return top(arguments[1:])
    run: Callable[[], int] = _parser().parse_args(arguments).run
    return run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="purgatory",
        description="Park requests of an asyncio server on keys; each request is answered exactly once.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=_version())
    parser.set_defaults(run=lambda: _print_help(parser))
    commands = parser.add_subparsers(metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="a long poll and a consumer group, in a second",
        description="Run a long poll over sockets in real time, and a Kafka consumer group in virtual time.",
        epilog="example: purgatory demo",
    )
    demo.set_defaults(run=_run_demo)
    examples = commands.add_parser(
        "examples",
        help="the example programs, one line each",
        description="List the example programs of the repository.",
        epilog="example: purgatory examples",
    )
    examples.set_defaults(run=_print_examples)
    commands.add_parser("top", help="who waits for what in a service, in a terminal", add_help=False)
    for name, text in _PIPELINE.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _version() -> str:
    from purgatory import COMPILED, __version__

    core = "compiled" if COMPILED else "interpreted"
    return f"aiopurgatory {__version__}, core {core}, Python {platform.python_version()}"


def _print_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _run_demo() -> int:
    from .demo import main

    return main()


def _print_examples() -> int:
    width = max(len(module) for module, _, _ in _EXAMPLES)
    for module, packages, text in _EXAMPLES:
        needs = f"; needs {packages}" if packages else ""
        print(f"python -m {module:{width}}  {text}{needs}")
    print(
        "\nThe examples are in the repository and in the source distribution, not in the installed package.\n"
        "Run them in a checkout, or unpack the source distribution:\n"
        "pip download --no-deps --no-binary aiopurgatory aiopurgatory && tar xf aiopurgatory-*.tar.gz"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
