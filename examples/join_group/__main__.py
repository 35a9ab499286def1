"""``python -m examples.join_group``: simulate consumer groups that rebalance."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from purgatory import PurgatoryError

from .cli import parse
from .loop_monitor import LoopMonitor

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulation and return the exit code."""
    options = parse(arguments)
    try:
        from .runner import run_options
        from .terminal import console
        from .timeline import new_canvas, write_picture
    except ImportError as error:
        print(f"the simulator needs {error.name!r}: pip install 'aiopurgatory[examples]'", file=sys.stderr)
        return 1
    meter = LoopMonitor()
    screen = console(options.plain)
    try:
        if options.picture is not None:
            new_canvas(options.picture, 1, 1, "")  # report a missing package before the run
        with asyncio.Runner(loop_factory=lambda: meter.new_loop(options.loop)) as runner:
            simulation = runner.run(run_options(options, meter, screen))
        if options.picture is not None:
            write_picture(options.picture, simulation)
            screen.print(f"picture: {options.picture}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ImportError, OSError, PurgatoryError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
