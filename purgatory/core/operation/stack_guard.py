"""A guard against the interpreter's recursion limit.

The interpreter does not count calls between compiled functions, so this module stays interpreted.
"""

__all__ = ["ensure_stack"]


def ensure_stack(frames: int) -> None:
    """Raise RecursionError unless ``frames`` more calls fit under the interpreter's recursion limit."""
    if frames > 0:
        ensure_stack(frames - 1)
