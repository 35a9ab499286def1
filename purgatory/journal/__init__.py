"""A journal of what happened to every operation, as Parquet files.  A room of its own: ``aiopurgatory[journal]``.

``schema`` says what is in it, ``journal`` is the observer that notes it down, ``batch``, ``writer`` and ``files`` bring
it to disk.
"""

from purgatory.extras import need

need(__name__, "journal", "pyarrow")

from .errors import JournalError  # noqa: E402 - the line above reports the missing package
from .journal import Journal, JournalStatistics  # noqa: E402
from .schema import SCHEMA_VERSION  # noqa: E402

__all__ = ["SCHEMA_VERSION", "Journal", "JournalError", "JournalStatistics"]
