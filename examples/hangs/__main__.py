"""``python -m examples.hangs SERVICE``: serve one of the broken services, with its inspector."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal arrives, and return the exit code."""
    try:
        import uvicorn

        from . import SERVICES
    except ImportError as error:
        print(f"the services need {error.name!r}: pip install 'aiopurgatory[examples]'", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(prog="python -m examples.hangs", description="Run a service that hangs.")
    parser.add_argument("service", choices=sorted(SERVICES), help="a number from 1 to 5")
    parser.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (8000)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write the journal of a night, instead of serving")
    options = parser.parse_args(arguments)
    if options.record is not None:
        from .night import record

        asyncio.run(record(options.record, SERVICES[options.service]))
        return 0
    print(f"inspector: http://127.0.0.1:{options.port}/purgatory/", flush=True)
    uvicorn.run(SERVICES[options.service](None, ()).app(), port=options.port, log_level="warning", ws="none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
