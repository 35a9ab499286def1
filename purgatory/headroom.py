"""Whether the interpreter's stack has room for more.  Floor 0.

Calls between compiled functions are not counted by the interpreter, so this is a module that stays interpreted.
"""

__all__ = ["need_stack"]


def need_stack(frames: int) -> None:
    """Raise RecursionError unless that many more calls fit under the interpreter's limit of recursion."""
    if frames > 0:
        need_stack(frames - 1)
