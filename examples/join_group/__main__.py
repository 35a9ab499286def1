"""``python -m examples.join_group``: consumer groups rebalance, and everything that waits does so in purgatories."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from purgatory import PurgatoryError

from .cli import parse
from .turns import TurnMeter

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; the exit status."""
    order = parse(arguments)
    try:
        from .drive import drive
        from .picture import new_canvas, write_picture
        from .show import console
    except ImportError as error:
        print(f"the simulator needs {error.name!r}: pip install 'aiopurgatory[examples]'", file=sys.stderr)
        return 1
    meter = TurnMeter()
    screen = console(order.plain)
    try:
        if order.picture is not None:
            new_canvas(order.picture, 1, 1, "")  # better told now than after the run
        with asyncio.Runner(loop_factory=lambda: meter.new_loop(order.loop)) as runner:
            simulation = runner.run(drive(order, meter, screen))
        if order.picture is not None:
            write_picture(order.picture, simulation)
            screen.print(f"picture: {order.picture}")
    except KeyboardInterrupt:
        print("stopped before its end", file=sys.stderr)
        return 130
    except (ImportError, OSError, PurgatoryError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
