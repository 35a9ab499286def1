"""Run commands of the pipeline in one process, and print the exit status of each.

python -m tests.pipeline.cluster.run_commands [MASTER SETTINGS]

Each line of standard input is a JSON list of commands, which are lists of arguments; after the commands of a line,
``done`` is printed.  With a master and settings, a JSON object, all commands use one session.
"""

import json
import sys
from collections.abc import Iterable
from contextlib import nullcontext

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark.session import spark_session

__all__ = ["DONE", "run"]

DONE = "done"


def run(lines: Iterable[str], master: str | None, settings: dict[str, str]) -> None:
    """Run the commands.  ``master`` None: each has its own session."""
    with nullcontext() if master is None else spark_session(master, settings):
        for line in lines:
            for command in json.loads(line):
                print("status", main(command))
            print(DONE, flush=True)


if __name__ == "__main__":
    run(sys.stdin, *(sys.argv[1], json.loads(sys.argv[2])) if len(sys.argv) > 1 else (None, {}))
