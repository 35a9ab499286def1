"""Spark's Python workers: the package that is sent to them, and the setup that tasks perform in them.

Spark sends the package to the workers of a cluster as a ZIP file.  The functions that run in the tasks are imported by
their names, so the workers need the package.  They also need pyarrow, numpy, and pandas, which cannot be sent this way.
"""

import atexit
import functools
import gc
import importlib.util
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import purgatory

from .session import has_local_workers, is_connect

__all__ = [
    "freeze_modules",
    "missing_in_workers",
    "package_file",
    "ship_package",
]

_SUFFIXES: Final = (".py", ".typed", ".html", ".properties")
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_shipped: set[str] = set()


def ship_package(spark: SparkSession) -> None:
    """Send the package once to the workers of the session, unless they run on this machine.

    The sent package comes before an installed one, so all workers run the release of this process.
    """
    if has_local_workers(spark):
        return
    either: Any = spark  # the two kinds of session have no common type
    session: str = either.session_id if is_connect(spark) else either.sparkContext.applicationId
    if session in _shipped:
        return
    folder = Path(tempfile.mkdtemp(prefix="purgatory-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # Spark reads the file until the session ends
    file = package_file(folder)
    if file is not None:
        if is_connect(spark):
            spark.addArtifacts(str(file), pyfile=True)
        else:
            spark.sparkContext.addPyFile(str(file))
    _shipped.add(session)


def package_file(folder: Path) -> Path | None:
    """Write the package, and the module that it needs, as a ZIP file.  Return None if the package itself is zipped.

    The workers run the sources, because Python cannot import a compiled module from a ZIP file.
    """
    package = Path(purgatory.__file__).parent
    if not package.is_dir():  # sent by ``--py-files``
        return None
    file = folder / f"purgatory-{purgatory.__version__}.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(package.rglob("*")):
            if source.suffix in _SUFFIXES:
                _add(archive, source, (Path(package.name) / source.relative_to(package)).as_posix())
        needed = importlib.util.find_spec("mypy_extensions")
        assert needed is not None
        assert needed.origin is not None
        _add(archive, Path(needed.origin), "mypy_extensions.py")
    return file


def missing_in_workers(error: BaseException) -> str | None:
    """Return a line that names the module that the workers lack, or None if Spark's error has another cause."""
    match = _NO_MODULE.search(str(error)) if isinstance(error, PySparkException) else None
    if match is None:
        return None
    return (
        f"the Python of Spark's workers has no module {match[1]!r}:"
        " install pyarrow, numpy, pandas, and protobuf for all workers"
    )


def _add(archive: zipfile.ZipFile, source: Path, name: str) -> None:
    """Add a file without its modification time, so that the same package always gives the same bytes."""
    archive.writestr(zipfile.ZipInfo(name), source.read_bytes(), zipfile.ZIP_DEFLATED)


def freeze_modules() -> None:
    """Keep everything that this worker has loaded out of Python's garbage collection.  Other processes are left alone.

    Spark's workers collect all garbage after each task.  With pandas and PyArrow loaded, this collection takes 50 ms,
    longer than a short task takes.  A worker runs many tasks, and only the first one freezes anything.
    """
    if TaskContext.get() is not None:
        _freeze()


@functools.cache  # asking the collector takes 8 ms, because it counts the frozen objects
def _freeze() -> None:
    gc.freeze()
