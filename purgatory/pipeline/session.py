"""A Spark session: the caller's, or a quiet one for this machine."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from .java import find_java, quiet_home

__all__ = ["local_settings", "spark_session"]

# Warnings are shown, less those that tell nothing here.  Errors of a task come back as exceptions, with the name of the
# file; their traces need not be printed as well.
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = Spark: %p %c{1}: %m%n%ex{0}
appender.stderr.filter.directory.type = RegexFilter
appender.stderr.filter.directory.regex = .*spark\\.local\\.dir will be overridden.*
appender.stderr.filter.directory.onMatch = DENY
appender.stderr.filter.directory.onMismatch = NEUTRAL
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.files.name = org.apache.spark.sql.execution.datasources
logger.files.level = off
logger.python.name = org.apache.spark.api.python
logger.python.level = warn
logger.states.name = org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer
logger.states.level = error
"""
# However long the journal, little of the heap is alive at once.  A heap that follows that, instead of filling up with
# what has died before it is cleared away, is a memory to plan with.  It costs a few whole collections.
_SMALL_HEAP: Final = " -XX:+UseSerialGC -XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=30"


@contextmanager
def spark_session(master: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session to work in.

    One that is active already is used as it is and left as it is; so is the one of ``spark-submit``.  Else a session is
    made with Spark's settings as given in ``settings``, above those that suit one machine if ``master`` (default
    ``local[*]``) is local; it is stopped, and its directories are removed, at the end.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and knows all the settings
        yield SparkSession.builder.getOrCreate()
        return
    wanted = dict(settings or {})
    where = master or wanted.get("spark.master") or "local[*]"
    scratch = Path(tempfile.mkdtemp(prefix="purgatory-spark-"))
    try:
        builder = SparkSession.builder.master(where)
        if where.startswith("local"):
            _prepare_environment()
            own = local_settings(scratch)
            if "spark.driver.memory" not in wanted:
                own["spark.driver.extraJavaOptions"] += _SMALL_HEAP
            wanted = own | wanted
        for name, value in wanted.items():
            builder = builder.config(name, value)
        session = builder.appName(wanted.get("spark.app.name", "purgatory")).getOrCreate()
        try:
            yield session
        finally:
            session.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def local_settings(scratch: Path) -> dict[str, str]:
    """What suits one machine: the loopback only, no console, no web page, everything temporary below ``scratch``."""
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Xss8m -Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _prepare_environment() -> None:
    os.environ["JAVA_HOME"] = str(quiet_home(find_java()))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # one for each of Java's threads is memory that comes with time only
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
