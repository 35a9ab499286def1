"""A journal that records the end of every operation in Parquet files.  An optional part: ``aiopurgatory[journal]``.

``schema`` defines the columns.  ``journal`` is the observer that records the rows; ``batch``, ``writer``, and ``files``
write them to disk.  ``compaction`` merges small files.
"""

from purgatory.extras import need
from purgatory.texts import names_of

need(__name__, "journal", "pyarrow")

from .compaction import Compacted, compact  # noqa: E402 - the line above reports the missing package
from .errors import JournalError  # noqa: E402
from .journal import Journal, JournalStatistics  # noqa: E402
from .schema import SCHEMA_VERSION  # noqa: E402

__all__ = ["SCHEMA_VERSION", "Compacted", "Journal", "JournalError", "JournalStatistics", "compact"]


def __dir__() -> list[str]:
    return names_of(globals())
