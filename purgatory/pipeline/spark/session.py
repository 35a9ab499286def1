"""A Spark session: the active one, or a quiet one for this machine."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from purgatory.pipeline.locations import is_local_mode

from .ending import interruptible, stopped_at_end
from .java import find_java, quiet_home
from .scripts import worker_python

__all__ = ["changed_settings", "has_local_workers", "is_connect", "local_settings", "spark_session"]

# Only a small part of the heap is live at any time, at every journal size.  With these settings the heap shrinks to it
# after each full collection, so the memory does not depend on the journal.  The price is a few more collections.
_SMALL_HEAP: Final = " -XX:+UseSerialGC -XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=30"

_DAEMON: Final = "purgatory.pipeline.spark.daemon"


@contextmanager
def spark_session(
    master: str | None = None, settings: Mapping[str, str] | None = None, remote: str | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session.

    An active session, or the session of ``spark-submit``, is used as it is and not stopped.  Otherwise, a session is
    created with ``settings``.  If ``master`` (default ``local[*]``) is local, settings for one machine apply where
    ``settings`` has none.  With ``remote``, the URL of a Spark Connect server, the session is one of that server.  The
    created session is stopped at the end, and its directories are removed.  SparkEnded if the Java process of the
    created session ends before that.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if remote is not None:
        builder = SparkSession.builder.remote(remote)
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM, with all settings
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
            # Otherwise a thread of Spark dies alone, and the others wait for it.
            own["spark.driver.extraJavaOptions"] += " -XX:+ExitOnOutOfMemoryError"
            if "spark.driver.memory" not in wanted:
                own["spark.driver.extraJavaOptions"] += _SMALL_HEAP
            if is_local_mode(where):  # the workers of an executor may lack the package until it is sent to them
                own["spark.python.daemon.module"] = _DAEMON
            wanted = own | wanted
        for name, value in wanted.items():
            builder = builder.config(name, value)
        with interruptible():
            session = builder.appName(wanted.get("spark.app.name", "purgatory")).getOrCreate()
        if where.startswith("local"):
            context = session.sparkContext
            context.pythonExec = worker_python(context.pythonExec)
        with stopped_at_end(session, scratch):
            yield session
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server, so it has neither a context nor a JVM."""
    return not hasattr(spark, "_jsparkSession")


def has_local_workers(spark: SparkSession) -> bool:
    """Return whether the workers run on this machine, and therefore have its packages and its files."""
    # The session's own settings have the master too, but reading one of them makes Java load Spark SQL.
    return not is_connect(spark) and is_local_mode(spark.sparkContext.master)


@contextmanager
def changed_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session, and restore them at the end."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


def local_settings(scratch: Path) -> dict[str, str]:
    """Return settings for one machine: loopback only, no console, no web page, all files in ``scratch``."""
    log4j = scratch / "log4j2.properties"
    log4j.write_text(files(__package__).joinpath("log4j2.properties").read_text(encoding="utf-8"))
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Xss8m -Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.local.dir": str(scratch / "local"),
        # Otherwise PySpark tells Java the line of the caller for each column expression, in several messages.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
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
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # one arena for each of Java's threads needs more memory
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
