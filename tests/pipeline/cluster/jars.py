"""The jars of Hadoop's S3A, which PySpark does not contain, or a skip with the reason.

``hadoop-aws`` must have the version of the Hadoop in PySpark.  It names the bundle of the AWS SDK, of more than 600 MB,
which has all services.  The modules that it uses have 15 MB, with the same version.

python -m tests.pipeline.cluster.jars       fetch them, and print their paths, separated by commas
"""

import os
import sys
from pathlib import Path
from typing import Final

import pyspark

from benchmarks.maven import classpath
from benchmarks.row import Unavailable
from tests.pipeline.jars import or_skip, print_paths

__all__ = ["hadoop_version", "main", "s3a_class_path", "s3a_jars"]

_HADOOP: Final = "3.5.0"
_ALONE: Final = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
_WITH_DEPENDENCIES: Final = ("software.amazon.awssdk:s3-transfer-manager:2.35.4", "software.amazon.awssdk:sts:2.35.4")


def hadoop_version() -> str:
    """Return the version of the Hadoop in PySpark."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def s3a_class_path() -> str:
    """Return the paths of the jars, separated by commas, as ``spark.jars`` expects them; Unavailable without Maven."""
    if hadoop_version() != _HADOOP:
        raise Unavailable(f"hadoop-aws must have version {hadoop_version()}, got {_HADOOP}")
    paths = (classpath(*_ALONE, transitive=False), classpath(*_WITH_DEPENDENCIES))
    return ",".join(jar for path in paths for jar in path.split(os.pathsep))


def s3a_jars() -> str:
    """Return the paths of the jars, or skip the test where they cannot be had."""
    return or_skip(s3a_class_path)


def main() -> int:
    """Run the command; the status is 1 where a jar is missing."""
    return print_paths(s3a_class_path)


if __name__ == "__main__":
    sys.exit(main())
