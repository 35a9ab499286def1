"""The directory that a command writes its results into."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from purgatory.errors import PurgatoryError

__all__ = ["BadOutput", "check_out", "replace_files"]


class BadOutput(PurgatoryError):
    """The results cannot be written to a path.  The message contains the path."""


def check_out(out: Path, name: str = "out") -> None:
    """Raise BadOutput unless ``out`` is a writable directory or can be created.  Nothing is left behind."""
    try:
        if out.exists() and not out.is_dir():
            raise BadOutput(f"{name} must be a directory, got {out}, which is a file")
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
        with tempfile.NamedTemporaryFile(prefix=".probe-", dir=existing):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadOutput(f"{name} must be a directory that can be written, got {out}: {reason}") from error


@contextmanager
def replace_files(out: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``out``, and move its files into ``out`` at the end.

    If the block raises, ``out`` is unchanged.  BadOutput if ``out`` is a file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and not out.is_dir():
        raise BadOutput(f"out must be a directory, got {out}, which is a file")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield unfinished
        out.mkdir(exist_ok=True)
        for file in unfinished.iterdir():
            file.replace(out / file.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
