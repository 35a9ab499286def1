"""Serve orders from several workers: ``python -m examples.orders --workers 4``."""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fastapi  # noqa: F401 - for the workers
    import uvicorn
except ImportError as missing:
    sys.exit(f"this example needs {missing.name!r}: pip install aiopurgatory fastapi uvicorn")

from purgatory.asgi import LOCAL_HOSTS


@contextlib.contextmanager
def _in_postgres(dsn: str) -> Iterator[None]:
    """Let the workers use the Postgres server."""
    try:
        from psycopg import Error

        from .postgres_store import PostgresStore
    except ImportError as missing:
        command = "pip install 'aiopurgatory[postgres]' 'psycopg[binary,pool]'"
        sys.exit(f"this example needs {missing.name!r} for --dsn: {command}")
    try:
        asyncio.run(PostgresStore(dsn).create())
    except (Error, ValueError) as error:
        sys.exit(f"the Postgres server of --dsn cannot be used: {' '.join(str(error).split())}")
    os.environ["ORDERS_DSN"] = dsn
    yield


@contextlib.contextmanager
def _in_folder() -> Iterator[None]:
    """Let the workers use a file in a temporary folder."""
    from .sqlite_store import SqliteStore

    with tempfile.TemporaryDirectory(prefix="orders-", ignore_cleanup_errors=True) as folder:
        os.environ.pop("ORDERS_DSN", None)
        os.environ["ORDERS_FOLDER"] = folder
        asyncio.run(SqliteStore(Path(folder)).create())
        yield


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--dsn", help="address of a Postgres server (default: SQLite, in a temporary folder)")
    parser.add_argument("--workers", type=int, default=4, help="number of processes (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (%(default)s)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="also serve requests for this host name"
    )
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    if not 0 <= options.port <= 65535:
        parser.error(f"--port must be from 0 to 65535, got {options.port}")
    os.environ["ORDERS_HOSTS"] = " ".join([*LOCAL_HOSTS, options.host, *options.allow_host])
    if not options.dsn and not hasattr(socket, "AF_UNIX"):
        parser.error("this system has no Unix sockets: specify a Postgres server with --dsn")
    # uvicorn raises the signal again after its shutdown; the handler lets the folder be removed before the process
    # exits.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _in_postgres(options.dsn) if options.dsn else _in_folder():
        print(f"live page: http://{options.host}:{options.port}/", flush=True)
        uvicorn.run(
            "examples.orders.app:app",
            host=options.host,
            port=options.port,
            workers=options.workers,
            log_level="warning",
            timeout_graceful_shutdown=10,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
