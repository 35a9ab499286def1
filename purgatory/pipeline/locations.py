"""Where the data is: a path on this machine, or a URI in a store that Spark can access, such as ``s3a://bucket/dir``.

A plain path and a ``file:///`` URI are paths on this machine.  Any other URI is passed to Spark unchanged: a conversion
to a :class:`~pathlib.Path` would merge its two slashes.
"""

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = [
    "TABLE",
    "TABLE_MARK",
    "Location",
    "file_at",
    "is_local_mode",
    "is_uri",
    "listed_file_to_read",
    "local_path",
    "location_for_spark",
    "location_to_read",
    "without_secrets",
]

Location = str | Path
TABLE: Final = "table:"  # before the name of a table in Spark's catalog
# In the directory of a table of Parquet files.  Another dataset with folders for dates does not have this file.
TABLE_MARK: Final = "_purgatory_table"
_SPECIAL: Final = re.compile(r"[\[\]{}*?\\]")  # in the patterns of Spark's readers
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # a single letter is a drive


def is_uri(location: Location) -> bool:
    """Return whether the location is a URI in a store, not a path on this machine."""
    return local_path(location) is None


def local_path(location: Location) -> Path | None:
    """Return the path on this machine, or None for a URI in a store.

    A relative path that begins like a URI, such as ``a:b``, is made absolute, because pyarrow and Hadoop would mistake
    it for a URI.  Two slashes at the beginning are reduced to one, because Spark would mistake the first name for a
    host.  Raises ValueError for a ``file:`` URI that names a host.
    """
    scheme = None if isinstance(location, Path) else _URI.match(location)
    if isinstance(location, Path) or scheme is None:
        path = _with_one_slash(Path(location))
        return path.absolute() if ":" in "".join(path.parts[:1]) else path
    if scheme[1].lower() != "file":
        return None
    uri = urlsplit(location)
    if uri.netloc not in ("", "localhost"):
        raise ValueError(f"a file URI must begin with file:///, got {location}")
    return _with_one_slash(Path(unquote(uri.path)))


def _with_one_slash(path: Path) -> Path:
    return Path("/", *path.parts[1:]) if path.root == "//" else path


def file_at(location: Location, name: str) -> Location:
    """Return the location of a file in a directory."""
    path = local_path(location)
    return f"{str(location).rstrip('/')}/{name}" if path is None else path / name


def location_for_spark(location: Location) -> str:
    """Return the location as Spark expects it: Spark does not decode ``%20`` in a ``file:`` URI."""
    path = local_path(location)
    if path is None:
        return str(location)
    if not isinstance(location, Path) and _URI.match(location) is not None:
        return f"file://{path}"
    return str(location if path == Path(location) else path)


def location_to_read(location: Location) -> str:
    """Return the location for Spark's readers, with the special characters of a path escaped: the readers expect a
    pattern.

    Spark's writers, checkpoints, and state stores take a path literally.
    """
    text = location_for_spark(location)
    return text if local_path(location) is None else _SPECIAL.sub(r"\\\g<0>", text)


def listed_file_to_read(uri: str) -> str:
    """Return a file for Spark's readers, which expect a pattern.  ``uri``: the file as Spark lists it, encoded."""
    return _SPECIAL.sub(r"\\\g<0>", unquote(uri))


def is_local_mode(master: str | None) -> bool:
    """Return whether Spark runs everything in one process on this machine.

    If ``master`` is None, Spark does so, because that is the default of the commands.
    """
    return master is None or master == "local" or master.startswith("local[")


def without_secrets(url: str) -> str:
    """Return the ``repr`` of the URL of a server for an error message, without a user, a password, or a token."""
    url, semicolon, _ = re.sub(r"//.*@", "//***@", url).partition(";")
    return repr(f"{url};***" if semicolon else url)
