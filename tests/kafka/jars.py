"""The jars of Kafka for the tests: the class path, or a skip with the reason, and the tools of the distribution."""

import subprocess
from pathlib import Path

from benchmarks.real_kafka import SHORT_RUN, class_path, java
from benchmarks.row import Unavailable
from tests.parts import missing

__all__ = ["CLIENT", "jars", "tool"]

CLIENT = Path(__file__).parent / "Client.java"
_PATIENCE_S = 120.0  # for a tool, on a machine that may be busy


def jars() -> str:
    """Return the class path, or skip the test where it cannot be had."""
    try:
        return class_path()
    except Unavailable as error:
        missing(str(error))


def tool(name: str, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a tool of the distribution to its end; ``name`` is its class below ``org.apache.kafka.tools``."""
    options = (*SHORT_RUN, "-Dlog4j2.level=OFF")
    command = java(jars(), f"org.apache.kafka.tools.{name}", *map(str, arguments), options=options)
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
