"""Standard error without what Spark says when it starts, so that errors and warnings can be seen on it."""

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
    """Within it everything that reaches file descriptor 2, from Java and the workers too, goes through a filter.

    It drops the known lines, with the blank line behind each, and passes everything else on in order.
    """
    kept = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    # A daemon: the Java that was started within holds the pipe until the program ends.
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
