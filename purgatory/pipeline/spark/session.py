"""A Spark session: the active one, or a quiet one for this machine.  The module defines how a session begins, what it
logs, and how it ends.

A session of this process can end in three ways: normally, after an interrupt, or because Java has ended.  Each Python
thread has one connection to Java.  After an interrupt, the answer to the interrupted call still arrives, and the next
call in the same thread would mistake that answer for its own.  The session is therefore stopped in another thread.
"""

import logging
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import is_local_mode

from .connect import connected_session
from .ended import SparkEnded
from .java import find_java, quiet_home
from .scripts import worker_python
from .start import interruptible

__all__ = [
    "NO_SPACE",
    "STATE_SERVER",
    "SparkEnded",
    "changed_settings",
    "has_local_workers",
    "is_connect",
    "is_temporary",
    "local_settings",
    "silence_state_server",
    "spark_session",
    "stopped_at_end",
]

# Only a small part of the heap is live at any time, whatever the size of the journal.  With these settings, the heap
# shrinks to that part after each full collection, so memory use does not depend on the journal.  The price is a few
# more collections.
_SMALL_HEAP: Final = " -XX:+UseSerialGC -XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=30"
_DAEMON: Final = "purgatory.pipeline.spark.daemon"
# This logger warns about each key without a state (every new key) and about each timer that has already been deleted.
STATE_SERVER: Final = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"
_OUT_OF_MEMORY: Final = (3, 52)  # the exit statuses that Java and Spark use
_LOCK: Final = "lock"
_NEW_S: Final = 60.0
_SCRATCH: Final = "purgatory-spark-"  # the beginning of the name of a session's temporary directory
NO_SPACE: Final = "No space left on device"
# Hadoop writes the results and raises this error; Spark writes its temporary files without Hadoop.
_NO_SPACE_FOR_RESULTS: Final = f"FSError: java.io.IOException: {NO_SPACE}"
_RESULTS: Final = re.compile(
    r"Task failed while writing rows to (?P<place>.+?)(?:/\.(?:spark-staging-|unfinished/)\S*)?\. SQLSTATE"
)
_REAP_S: Final = 5.0  # seconds from the end of the connection to the end of the process
_STOP_S: Final = 30.0


@contextmanager
def spark_session(
    master: str | None = None, settings: Mapping[str, str] | None = None, remote: str | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session.

    An active session, or the session of ``spark-submit``, is used as it is and is not stopped.  Otherwise, a session is
    created with ``settings``.  If ``master`` (default ``local[*]``) is local, ``settings`` are added to the settings
    for one machine and take precedence over them.  With ``remote``, the URL of a Spark Connect server, the session
    runs on that server.  The created session is stopped at the end, and its directories are removed.  Raises SparkEnded
    if the Java process of the created session ends before that, or if the server cannot be reached.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if remote is not None:
        with connected_session(remote, settings or {}) as session:
            yield session
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM, with all settings
        yield SparkSession.builder.getOrCreate()
        return
    wanted = dict(settings or {})
    where = master or wanted.get("spark.master") or "local[*]"
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    lock = _lock(scratch)
    try:
        _remove_abandoned(scratch.parent)
        builder = SparkSession.builder.master(where)
        if where.startswith("local"):
            _prepare_environment()
            own = local_settings(scratch)
            # Otherwise, one of Spark's threads dies alone, and the others wait for it.
            own["spark.driver.extraJavaOptions"] += " -XX:+ExitOnOutOfMemoryError"
            if "spark.driver.memory" not in wanted:
                own["spark.driver.extraJavaOptions"] += _SMALL_HEAP
            if is_local_mode(where):  # the workers of an executor may lack the package until it is sent to them
                own["spark.python.daemon.module"] = _DAEMON
            if wanted.get("spark.sql.catalogImplementation") == "hive":  # the tables last longer than the session
                del own["spark.sql.warehouse.dir"]
            wanted = own | wanted
        for name, value in wanted.items():
            builder = builder.config(name, value)
        with ExitStack() as stack:
            with _started(), interruptible():
                session = builder.appName(wanted.get("spark.app.name", "purgatory")).getOrCreate()
                stack.enter_context(stopped_at_end(session, scratch))
            if where.startswith("local"):
                context = session.sparkContext
                context.pythonExec = worker_python(context.pythonExec)
            yield session
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server and has neither a context nor a JVM."""
    return not hasattr(spark, "_jsparkSession")


def has_local_workers(spark: SparkSession) -> bool:
    """Return whether the workers run on this machine and therefore have its packages and its files."""
    # The session's own settings also contain the master, but reading one of them makes Java load Spark SQL.
    return not is_connect(spark) and is_local_mode(spark.sparkContext.master)


def is_temporary(warehouse: str) -> bool:
    """Return whether a warehouse is in the temporary directory of a session that this module has created."""
    return Path(warehouse).parent.name.startswith(_SCRATCH)


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
        # Otherwise, PySpark reports the caller's line to Java for each column expression, in several messages.
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
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # one arena for each of Java's threads would need more memory
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


# Loggers


def silence_state_server(spark: SparkSession) -> None:
    """Set the logger of the state server to ``error`` in the JVM of the session.

    A Spark Connect server and the executors of a cluster have their own configuration, which is left as it is.
    """
    if is_connect(spark):
        return
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel(STATE_SERVER, log4j.Level.ERROR)


# Temporary directories


def _lock(scratch: Path) -> int | None:
    """Lock a directory until the process ends.  Return a descriptor, or None if that is impossible, or if another
    process has the lock.
    """
    try:
        import fcntl

        descriptor = os.open(scratch / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories of this user's processes that were killed: their locks are free.

    A directory without a lock file is left alone, and so is a new one, whose process may not have locked it yet.
    """
    for scratch in parent.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            file, directory = os.lstat(scratch / _LOCK), os.lstat(scratch)
            own = stat.S_ISDIR(directory.st_mode) and directory.st_uid == os.getuid()
            if not own or time.time() - file.st_mtime < _NEW_S:
                continue
            descriptor = _lock(scratch)
            if descriptor is not None:
                shutil.rmtree(scratch, ignore_errors=True)
                os.close(descriptor)


# The end of a session


@contextmanager
def _started() -> Iterator[None]:
    """Raise SparkEnded if the block, which starts Spark, fails."""
    loggers = {logger: logger.level for logger in map(logging.getLogger, ("py4j", "pyspark"))}
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # these loggers would report each call that fails
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Unable to cleanly shutdown Spark JVM process")
            yield
    except (PySparkException, Py4JError, OSError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        status = _status_of(getattr(SparkContext._gateway, "proc", None), error)
        reason = _first_reason(error) if status is None else f"its Java process has ended: {_reason(status)}"
        raise SparkEnded(f"Spark did not start: {reason}") from error
    finally:
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            _forget(SparkContext._active_spark_context)
        for logger, level in loggers.items():
            logger.setLevel(level)


def _first_reason(error: Exception) -> str:
    """Return the line of an error from Java that has the Java exception, or the first line of another error."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0])


@contextmanager
def stopped_at_end(session: SparkSession, scratch: Path) -> Iterator[None]:
    """Stop the session at the end.  Raises SparkEnded if Java has ended before that, or if its disk is full.

    ``scratch``: the directory with Spark's temporary files, for the error message.
    """
    process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    interrupted = False
    loggers = [logging.getLogger(name) for name in ("py4j", "pyspark")]
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    except Exception as error:
        interrupted = isinstance(error.__context__, KeyboardInterrupt)
        status = _status_of(process, error)
        if status is not None and not isinstance(error, PurgatoryError):
            raise SparkEnded(f"Spark's Java process has ended: {_reason(status)}") from error
        if isinstance(error, Py4JError) and NO_SPACE in str(error):
            raise SparkEnded(f"Spark cannot write {_unwritable(str(error), scratch)}: {NO_SPACE}") from error
        raise
    finally:
        ended = process is not None and process.poll() is not None
        for logger in loggers if ended else ():
            logger.setLevel(logging.CRITICAL)  # these loggers would report each call that fails
        stopping = threading.Thread(
            target=_stop, args=(session, ended, interrupted), name="purgatory-stop-spark", daemon=True
        )
        stopping.start()
        stopping.join(_STOP_S)
        if stopping.is_alive() and process is not None:
            process.kill()


def _unwritable(error: str, scratch: Path) -> str:
    """Return what Spark cannot write, and where, according to an error about a full disk."""
    if _NO_SPACE_FOR_RESULTS not in error:
        return f"its temporary files to {scratch}"
    results = _RESULTS.search(error)  # absent if the disk was full only at the end, when Spark commits the results
    return "the results" if results is None else f"the results to {results['place']}"


def _stop(session: SparkSession, ended: bool, interrupted: bool) -> None:
    if ended:
        _forget(session.sparkContext)
        return
    with suppress(Exception):
        if interrupted:
            session.sparkContext.setLogLevel("OFF")  # Spark logs errors for the tasks that end with the session
        session.stop()


def _forget(context: Any) -> None:
    """Reset PySpark's state after a session's Java process has ended, so that a new session can be created."""
    gateway: Any = SparkContext
    with suppress(Exception):
        context._accumulatorServer.shutdown()
    gateway._gateway = gateway._jvm = gateway._active_spark_context = None
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None


def _status_of(process: "Popen[bytes] | None", error: Exception) -> int | None:
    """Return the exit status of Java if it has ended, or None if it is running or the error has another cause."""
    if process is None:
        return None
    lost = isinstance(error, (Py4JNetworkError, ConnectionError, EOFError))
    if lost and not isinstance(error.__context__, KeyboardInterrupt):
        with suppress(TimeoutExpired):
            return process.wait(_REAP_S)
    return process.poll()


def _reason(status: int) -> str:
    if status in _OUT_OF_MEMORY:
        return "it ran out of memory; --conf spark.driver.memory=2g gives it more than 1 GB"
    if status < 0:
        name = signal.Signals(-status).name
        return f"{name} ended it" + (", as Linux does if the machine runs out of memory" if status == -9 else "")
    return f"its exit status is {status}"
