"""Standard error without the messages that Spark always prints at its start."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["without_chatter"]

_CHATTER: Final = (
    b"Starting Streaming TransformWithState",
    b"Streaming TransformWithState",
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Using Spark's default log4j profile",
)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Filter everything that this process, Java, and the workers write to file descriptor 2 during the block.

    The known lines and the blank line after each are dropped.  All other lines are written in order.
    """
    kept = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    # A daemon thread, because the Java that the block starts keeps the pipe open until the program ends.
    passing = threading.Thread(target=_pass_on, args=(source, kept), name="stderr-filter", daemon=True)
    passing.start()
    try:
        yield
    finally:
        os.dup2(kept, 2)
        passing.join(timeout=0.2)


def _pass_on(source: int, kept: int) -> None:
    dropped = False
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if line.startswith(_CHATTER):
                dropped = True
            elif not dropped or line.strip():
                dropped = False
                os.write(kept, line)
