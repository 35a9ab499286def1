"""Run commands of the pipeline one after the other, in one process, and print the exit status of each.

python -m tests.pipeline.cluster.run_commands COMMANDS [MASTER SETTINGS]

COMMANDS is a JSON list of commands, each a list of arguments.  With a master and settings, a JSON object, all of them
use one session.
"""

import json
import sys
from contextlib import nullcontext

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.spark.session import spark_session

__all__ = ["run"]


def run(commands: list[list[str]], master: str | None, settings: dict[str, str]) -> None:
    """Run the commands.  ``master`` None: each has its own session."""
    with nullcontext() if master is None else spark_session(master, settings):
        for command in commands:
            print("status", main(command), flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]), *(sys.argv[2], json.loads(sys.argv[3])) if len(sys.argv) > 2 else (None, {}))
