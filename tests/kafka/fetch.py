"""Fetch every jar that the tests use, compile the drivers, and archive the classes of Kafka, so no test has to.

python -m tests.kafka.fetch                 all of them
python -m tests.kafka.fetch --connector     only Spark's Kafka connector: print its jars, separated by commas
"""

import argparse
import os
import sys
from collections.abc import Sequence

from benchmarks.jvm.kafka import prepare
from benchmarks.maven import compile_java
from benchmarks.real_kafka import class_path
from benchmarks.row import Unavailable
from tests.kafka.archive import make_archive
from tests.kafka.jars import CLIENT, connector_class_path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the status is 1 where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.fetch", description=__doc__.partition("\n")[0])
    parser.add_argument("--connector", action="store_true", help="print the jars of Spark's Kafka connector")
    only_connector = parser.parse_args(arguments).connector
    try:
        for_spark = connector_class_path().split(os.pathsep)
        if only_connector:
            print(",".join(for_spark))
            return 0
        path = class_path()
        compile_java(CLIENT, path)
        prepare()
        make_archive(path)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(path.split(os.pathsep))} jars for the broker, the client and the tools, {len(for_spark)} for Spark")
    return 0


if __name__ == "__main__":
    sys.exit(main())
