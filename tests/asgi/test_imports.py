"""The package needs only the types of ASGI, and nothing that must be installed."""

import subprocess
import sys
from pathlib import Path

import purgatory
from purgatory import asgi

_HEAVY = ("anyio", "fastapi", "gunicorn", "hypercorn", "sse_starlette", "starlette", "uvicorn", "uvloop")


def test_it_imports_no_framework_and_no_server() -> None:
    """The package imports none of them, even if they are installed, and not the relay; ``purgatory`` does not import
    the package.
    """
    code = (
        "import sys, purgatory; print('purgatory.asgi' in sys.modules); import purgatory.asgi;"
        f"print([name for name in {(*_HEAVY, 'purgatory.relay')!r} if name in sys.modules])"
    )
    top = Path(purgatory.__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", code], cwd=top, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n[]\n"


def test_its_public_names_are_what_is_promised() -> None:
    """The public names are those in the documentation, sorted, and each has a docstring."""
    assert asgi.__all__ == [
        "LOCAL_HOSTS",
        "ClientDisconnected",
        "ErrorResponse",
        "EventSourceResponse",
        "InspectorAction",
        "InvalidWait",
        "OriginCheckMiddleware",
        "PurgatoryErrorMiddleware",
        "TooManyWaits",
        "Wait",
        "error_response",
        "health",
        "inspector",
        "install_errors",
        "purgatory_lifespan",
        "waiting",
    ]
    assert all(getattr(asgi, name).__doc__ for name in asgi.__all__)
