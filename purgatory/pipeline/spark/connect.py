"""A session on a Spark Connect server: how it begins, how long it waits for the server, and how it ends.

PySpark repeats each call to a server that cannot be reached for more than ten minutes without a message, also the call
that ends the session.  Here, the first connection must succeed within a few seconds, and later calls are repeated for
about a minute.  At the end of the session, no call is repeated, and after a signal, the command does not wait for the
server.  Error messages do not contain the URL, which may have a token.
"""

import atexit
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import without_secrets
from purgatory.pipeline.signals import raise_received

from .ended import SparkEnded

__all__ = ["connected_session"]

_CONNECT_S: Final = 10.0
# About a minute.  The waits are in milliseconds.
_RETRIES: Final[dict[str, Any]] = {"max_retries": 16, "max_backoff": 5_000, "max_server_retry_delay": 5_000}
_STOP_S: Final = 10.0
_STOP_AFTER_SIGNAL_S: Final = 1.0


@contextmanager
def connected_session(remote: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a session on the server at the URL ``remote``, and release it at the end.

    Raises ValueError if the URL is invalid, and SparkEnded if the server cannot be reached, or cannot be reached any
    longer.
    """
    server = _reach(remote)
    ending = threading.Event()
    policies = [_retry_policy(ending)]
    session: Any = None  # the two kinds of session have no common type
    interrupted = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
            for options in ({}, settings):  # the second builder sets the options, which is a call to the server
                builder = SparkSession.builder.remote(remote)
                for name, value in options.items():
                    builder = builder.config(name, value)
                session = builder.getOrCreate()
                session.client.set_retry_policies(policies)
            yield session
    except KeyboardInterrupt:
        interrupted = True
        raise
    except Exception as error:
        interrupted = isinstance(error.__context__, KeyboardInterrupt)
        if _is_unavailable(error) and not isinstance(error, PurgatoryError):
            raise SparkEnded(f"the Spark Connect server {server} can no longer be reached") from error
        raise
    finally:
        ending.set()
        if session is not None:
            if interrupted:
                _forget_exit_call(session.client)
            stopping = threading.Thread(target=_stop, args=(session,), name="purgatory-stop-spark", daemon=True)
            stopping.start()
            stopping.join(_STOP_AFTER_SIGNAL_S if interrupted else _STOP_S)


def _reach(remote: str) -> str:
    """Connect to the server once.  Return its host and port."""
    from grpc import ChannelConnectivity
    from pyspark.sql.connect.client import DefaultChannelBuilder

    ready = ChannelConnectivity.READY
    try:
        builder = DefaultChannelBuilder(remote)
    except ValueError:  # its message may contain the token
        raise ValueError(
            f"remote must be a URL such as sc://host:15002/;NAME=VALUE, got {without_secrets(remote)}"
        ) from None
    settled = threading.Event()

    def connect() -> None:
        channel = builder.toChannel()
        channel.subscribe(lambda state: settled.set() if state is ready else None, try_to_connect=True)
        settled.wait(_CONNECT_S)
        channel.close()

    # In the main thread, a signal could interrupt gRPC's code, which can discard its exception or keep a lock.
    connecting = threading.Thread(target=connect, name="purgatory-connect", daemon=True)
    connecting.start()
    try:
        if not settled.wait(_CONNECT_S):
            raise SparkEnded(f"the Spark Connect server {builder.endpoint} cannot be reached within {_CONNECT_S:g} s")
    finally:
        settled.set()
        connecting.join(_STOP_AFTER_SIGNAL_S)
    return str(builder.endpoint)


def _retry_policy(ending: threading.Event) -> Any:
    """Return a policy that repeats calls for about a minute, and no call after the event or after a signal."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    def can_retry(error: BaseException) -> bool:
        raise_received()  # gRPC may have discarded its exception
        return not ending.is_set() and repeated(error)

    policy: Any = DefaultPolicy(**_RETRIES)
    repeated = policy.can_retry
    policy.can_retry = can_retry
    return policy


def _is_unavailable(error: Exception) -> bool:
    return isinstance(error, PySparkException) and "StatusCode.UNAVAILABLE" in str(error)


def _forget_exit_call(client: Any) -> None:
    """Leave out the call that PySpark makes when Python ends: if the signal interrupted gRPC's code, its locks may be
    taken for ever.
    """
    call = getattr(client, "_on_exit", None)
    if call is not None:
        atexit.unregister(call)


def _stop(session: SparkSession) -> None:
    with suppress(Exception):
        session.stop()
