"""The end of a session that this process has created: regular, interrupted, or because Java has ended.

A thread of Python has one connection to Java.  After an interrupt, the answer to the interrupted call still comes, and
the next call of the same thread would take it for its own.  The session is therefore stopped in another thread.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from purgatory.errors import PurgatoryError

__all__ = ["SparkEnded", "interruptible", "stopped_at_end"]

_OUT_OF_MEMORY: Final = (3, 52)  # the exit statuses of Java and of Spark
_NO_SPACE: Final = "No space left on device"
_REAP_S: Final = 5.0  # from the end of the connection to the end of the process
_STOP_S: Final = 30.0


class SparkEnded(PurgatoryError):
    """Spark cannot go on: its Java process has ended, or the disk of its temporary files is full."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Keep the handler of SIGINT while a session is created.

    Spark's own handler calls Java, in the middle of another call of the same thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def stopped_at_end(session: SparkSession, scratch: Path) -> Iterator[None]:
    """Stop the session at the end.  Raises SparkEnded if Java has ended before, or its disk is full.

    ``scratch``: the directory of Spark's temporary files, for the error.
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
        if isinstance(error, Py4JError) and _NO_SPACE in str(error):
            raise SparkEnded(f"Spark cannot write its temporary files to {scratch}: {_NO_SPACE}") from error
        raise
    finally:
        ended = process is not None and process.poll() is not None
        for logger in loggers if ended else ():
            logger.setLevel(logging.CRITICAL)  # they would log each call that fails
        stopping = threading.Thread(
            target=_stop, args=(session, ended, interrupted), name="purgatory-stop-spark", daemon=True
        )
        stopping.start()
        stopping.join(_STOP_S)
        if stopping.is_alive() and process is not None:
            process.kill()


def _stop(session: SparkSession, ended: bool, interrupted: bool) -> None:
    if ended:
        _forget(session.sparkContext)
        return
    with suppress(Exception):
        if interrupted:
            session.sparkContext.setLogLevel("OFF")  # Spark logs the tasks that end with it as errors
        session.stop()


def _forget(context: Any) -> None:
    """Reset what PySpark keeps of a session whose Java is gone, so that a new one can be created."""
    gateway: Any = SparkContext
    with suppress(Exception):
        context._accumulatorServer.shutdown()
    gateway._gateway = gateway._jvm = gateway._active_spark_context = None
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None


def _status_of(process: "Popen[bytes] | None", error: Exception) -> int | None:
    """Return the exit status of Java if it has ended, and None if it runs or the error has another reason."""
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
