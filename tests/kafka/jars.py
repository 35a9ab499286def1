"""The jars of Kafka and of Spark's Kafka connector, or a skip with the reason, and the tools of Kafka's distribution.

The connector's version is `CONNECTOR_VERSION`.  ``.ci/previous-spark`` runs its tests with the Spark release of the
same version.  The other tests use a newer Spark, for which Maven Central did not serve the connector when this was
written.  ``spark-token-provider-kafka-0-10``, which the connector needs, was served in no release after 4.0.0.  The
versions of the other two jars are those that the connector names.
"""

import subprocess
from pathlib import Path

from benchmarks.maven import classpath
from benchmarks.real_kafka import class_path, java, short_run
from benchmarks.row import Unavailable
from tests.parts import missing

__all__ = ["CLIENT", "CONNECTOR", "CONNECTOR_VERSION", "connector", "connector_class_path", "jars", "tool"]

CLIENT = Path(__file__).parent / "Client.java"
CONNECTOR_VERSION = "4.2.0"
CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
_PATIENCE_S = 120.0  # for a tool, on a machine that may be busy


def jars() -> str:
    """Return the class path, or skip the test where it cannot be had."""
    try:
        return class_path()
    except Unavailable as error:
        missing(str(error))


def connector_class_path() -> str:
    """Return the jars of Spark's Kafka connector that Spark does not have; Unavailable where they cannot be had."""
    return classpath(*CONNECTOR, transitive=False)


def connector() -> str:
    """Return the jars of Spark's Kafka connector, or skip the test where they cannot be had."""
    try:
        return connector_class_path()
    except Unavailable as error:
        missing(str(error))


def tool(name: str, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a tool of the distribution to its end; ``name`` is its class below ``org.apache.kafka.tools``."""
    path = jars()
    options = (*short_run(path), "-Dlog4j2.level=OFF")
    command = java(path, f"org.apache.kafka.tools.{name}", *map(str, arguments), options=options)
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
