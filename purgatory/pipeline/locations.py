"""Where data is: a path of this machine, or a URI of a store that Spark reads and writes, such as ``s3a://bucket/dir``.

A plain path and a ``file:///`` URI are paths of this machine.  Any other URI is passed to Spark unchanged: it is never
converted to a :class:`~pathlib.Path`, which would merge its two slashes.
"""

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["Location", "file_at", "is_local_mode", "is_uri", "local_path", "location_for_spark"]

Location = str | Path
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # one letter is a drive


def is_uri(location: Location) -> bool:
    """Return whether the location is a URI of a store, and not a path of this machine."""
    return local_path(location) is None


def local_path(location: Location) -> Path | None:
    """Return the path on this machine; None for a URI of a store.

    ValueError for a ``file:`` URI that names a host.
    """
    if isinstance(location, Path):
        return location
    scheme = _URI.match(location)
    if scheme is None:
        return Path(location)
    if scheme[1].lower() != "file":
        return None
    uri = urlsplit(location)
    if uri.netloc not in ("", "localhost"):
        raise ValueError(f"a file URI must begin with file:///, got {location}")
    return Path(unquote(uri.path))


def file_at(location: Location, name: str) -> Location:
    """Return the location of a file in a directory."""
    path = local_path(location)
    return f"{str(location).rstrip('/')}/{name}" if path is None else path / name


def location_for_spark(location: Location) -> str:
    """Return the location as Spark expects it: Spark does not decode ``%20`` in a ``file:`` URI."""
    path = local_path(location)
    if path is None or isinstance(location, Path) or _URI.match(location) is None:
        return str(location)
    return f"file://{path}"


def is_local_mode(master: str | None) -> bool:
    """Return whether Spark runs everything in one process of this machine.  None is the default of the commands."""
    return master is None or master == "local" or master.startswith("local[")
