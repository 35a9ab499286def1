"""``python -m tests.kafka.fetch``: fetch every jar that the tests use and compile the drivers, so no test has to."""

import os
import sys

from benchmarks.jvm.kafka import prepare
from benchmarks.maven import compile_java
from benchmarks.real_kafka import class_path
from benchmarks.row import Unavailable
from tests.kafka.jars import CLIENT

__all__ = ["main"]


def main() -> int:
    """Run the command; the status is 1 where something is missing."""
    try:
        path = class_path()
        compile_java(CLIENT, path)
        prepare()
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(path.split(os.pathsep))} jars for the broker, the client and the tools")
    return 0


if __name__ == "__main__":
    sys.exit(main())
