"""Directories by path or by URI.  A URI is opened with the settings of a Spark session, through Hadoop's FileSystem."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import Location, local_path

from .session import is_connect

__all__ = ["Directory", "HadoopDirectory", "LocalDirectory", "StoreError", "directory_at"]

# In these stores, a file becomes visible only when it is complete, and a rename is a copy.
_COMPLETE_WHEN_VISIBLE: Final = ("s3a", "s3", "gs")


class StoreError(PurgatoryError):
    """A store cannot be read or written.  The message contains the URI and the reason."""


class Directory(Protocol):
    """A directory that may not exist yet.  Names are relative to it."""

    @property
    def renames_folders(self) -> bool:
        """Whether a folder can be renamed in one step."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, or an empty list if no folder has this name."""

    def read_text(self, name: str) -> str | None:
        """Return the content of a file; None if it does not exist."""

    def write_text(self, name: str, text: str) -> None:
        """Write a file, and create the directory if it does not exist.

        On this machine, an earlier file is replaced only when the new one is complete.
        """

    def replace(self, name: str, target: str) -> None:
        """Rename a file, replacing a file that has the new name, and create the folder if it does not exist."""

    def rename_folder(self, name: str, target: str) -> bool:
        """Rename a folder in one step, and return True.  Return False if a folder has the new name and is not empty.

        An empty folder of the new name is replaced; a file of the new name is an error.
        """

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all its files, if it exists."""


class LocalDirectory:
    """A directory on this machine."""

    renames_folders = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self.path / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_text(self, name: str) -> str | None:
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def write_text(self, name: str, text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        unfinished = self.path / f".{name}-{uuid.uuid4().hex}"
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(self.path / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def replace(self, name: str, target: str) -> None:
        (self.path / target).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).replace(self.path / target)

    def rename_folder(self, name: str, target: str) -> bool:
        try:
            (self.path / name).rename(self.path / target)
        except OSError:
            if not self.names(target):
                raise
            return False
        return True

    def remove(self, name: str) -> None:
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return str(self.path)


class HadoopDirectory:
    """A directory in a store.

    Every method raises StoreError if the store refuses the request.  The constructor raises it if the session belongs
    to Spark Connect, which has no interface to a file system.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri
        if is_connect(spark):
            raise StoreError(f"{uri} cannot be opened: a session of Spark Connect has no file system")
        self._jvm: Any = spark._jvm
        with self._errors("opened"):
            settings = spark._jsparkSession.sessionState().newHadoopConf()
            self._files = self._path().getFileSystem(settings)

    def names(self, folder: str = "") -> list[str]:
        path = self._path(folder)
        with self._errors("listed"):
            if not self._is_folder(path):
                return []
            return sorted(each.getPath().getName() for each in self._files.listStatus(path))

    def is_directory(self) -> bool:
        """Return whether the directory exists.  In an object store, it exists if an object is in it."""
        with self._errors("read"):
            return self._is_folder(self._path())

    def check_writable(self) -> None:
        """Write an empty file, and remove it."""
        probe = self._path(f".probe-{uuid.uuid4().hex}")
        with self._errors("written"):
            self._files.create(probe, True).close()
            self._files.delete(probe, False)

    def read_text(self, name: str) -> str | None:
        path = self._path(name)
        with self._errors("read"):
            if not self._exists(path):
                return None
            source = self._files.open(path)
            try:
                return bytes(source.readAllBytes()).decode("utf-8")
            finally:
                source.close()

    def write_text(self, name: str, text: str) -> None:
        with self._errors("written"):
            target = self._files.create(self._path(name), True)
            target.write(bytearray(text.encode("utf-8")))
            target.close()

    def replace(self, name: str, target: str) -> None:
        source, renamed = self._path(name), self._path(target)
        with self._errors("written"):
            self._files.mkdirs(renamed.getParent())
            self._move(source, renamed)

    @property
    def renames_folders(self) -> bool:
        return not self._is_complete_when_visible()

    def rename_folder(self, name: str, target: str) -> bool:
        source, renamed = self._path(name), self._path(target)
        with self._errors("written"):
            try:
                self._rename(source, renamed, self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE)
            except Py4JJavaError:
                if not self.names(target):
                    raise
                return False
        return True

    def remove(self, name: str) -> None:
        with self._errors("written"):
            self._files.delete(self._path(name), True)

    def upload(self, directory: Path) -> None:
        """Copy the files of a local directory in the order of their names, replacing files with the same names.

        A reader sees each file complete or not at all.
        """
        for file in sorted(directory.iterdir()):
            target = self._path(file.name)
            with self._errors("written"):
                if self._is_complete_when_visible():
                    self._write(file, target)
                    continue
                unfinished = self._path(f".{file.name}-{uuid.uuid4().hex}")
                self._write(file, unfinished)
                self._move(unfinished, target)

    def _move(self, source: Any, target: Any) -> None:
        """Move a file, and replace a file of the target's name; at no moment is the target missing.

        Otherwise, a process that ends between two steps would lose the earlier file, which may be another process's.
        """
        fs, settings = self._jvm.org.apache.hadoop.fs, self._files.getConf()
        if self._is_complete_when_visible():  # such a store renames by copying, and replaces nothing when it renames
            fs.FileUtil.copy(self._files, source, self._files, target, True, True, settings)
            return
        self._rename(source, target, fs.Options.Rename.OVERWRITE)

    def _rename(self, source: Any, target: Any, *wanted: Any) -> None:
        fs, java = self._jvm.org.apache.hadoop.fs, self._jvm.java
        options = java.lang.reflect.Array.newInstance(fs.Options.Rename.NONE.getClass(), len(wanted))
        for number, option in enumerate(wanted):
            options[number] = option
        fs.FileContext.getFileContext(self._files.getUri(), self._files.getConf()).rename(source, target, options)

    def _is_complete_when_visible(self) -> bool:
        return self.uri.partition(":")[0].lower() in _COMPLETE_WHEN_VISIBLE

    def _write(self, file: Path, target: Any) -> None:
        # S3A's copyFromLocalFile needs parts of the AWS SDK that nothing else needs and that bring their own Netty.
        source = self._jvm.java.io.FileInputStream(str(file))
        self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, self._files.create(target, True), 65_536, True)

    def _exists(self, path: Any) -> bool:
        return bool(self._files.exists(path))

    def _is_folder(self, path: Any) -> bool:
        return self._exists(path) and bool(self._files.getFileStatus(path).isDirectory())

    def _path(self, name: str = "") -> Any:
        # A bucket without a path needs the slash of its root directory.
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri.rstrip('/')}/{name}")

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            reason = str(error.java_exception.toString()).splitlines()[0]
            raise StoreError(f"{self.uri} cannot be {action}: {reason}") from error

    def __repr__(self) -> str:
        return self.uri


def directory_at(location: Location, spark: SparkSession | None = None) -> Directory:
    """Return the directory at a location.  ``spark``: the session for a URI; by default, the active one.

    Raises StoreError if there is no session.
    """
    path = local_path(location)
    if path is not None:
        return LocalDirectory(path)
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise StoreError(f"{location} cannot be opened without a Spark session")
    return HadoopDirectory(session, str(location))
