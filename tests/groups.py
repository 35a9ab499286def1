"""Which tests share a process of pytest-xdist, with ``--dist loadgroup``, and in which order they begin."""

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

__all__ = ["FileGroups", "group", "turn"]

_ROOT = Path(__file__).parents[1]
_ALONE = ("core", "aio", "testing", "proof")  # these files are independent, so any process may run each of them
_KAFKA = {"test_judge": "judge", "test_spark": "pipeline"}  # the judge waits most of the time; Spark has one session
# The longest groups begin first.  The tests of some groups mostly wait: for a timeout, for a server, for the end of an
# outage.  These groups alternate with others, so that the processes do not all wait at the same time, and none of them
# is the last: at the end are short files that compute.  A name with a slash at the end stands for a file, or for the
# files of a folder, that are groups of their own.
_ORDER = (
    "pipeline", "judge", "project", "cluster", "kafka", "relay", "examples/web", "examples/broker", "journal", "asgi",
    "examples/hangs", "pipeline/", "examples/long_poll", "benchmarks", "test_command.py/", "top", "examples/orders",
    "frameworks", "examples", "examples/tutorial", "testing/", "aio/", "core/",
)  # fmt: skip


@cache
def group(file: str) -> str | None:
    """Return the group of a file of tests; None if it is a group of its own, which any process may run.

    The tests of one group share servers and sessions.  Those of the pipeline that start a Spark of their own are a
    group; those without Spark are independent.  A file is never divided: each process would set up its fixtures again.
    """
    path = Path(file)
    folders = path.parts[1:-1]
    if not folders or folders[0] in _ALONE:
        return None
    match folders[0]:
        case "kafka":
            return _KAFKA.get(path.stem, "kafka")
        case "pipeline" if "cluster" in folders:
            return "cluster"
        case "pipeline" if "spark: Any" not in (_ROOT / path).read_text(encoding="utf-8"):
            return None
        case "examples":
            return "/".join(folders[:2])
    return folders[0]


def turn(file: str) -> int:
    """Return a number by which the tests are sorted, so that no process is without tests before the end."""
    name = group(file) or f"{Path(file).parts[1]}/"
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


class FileGroups(LoadScopeScheduling):  # type: ignore[misc]
    """Sends all tests of a group to one process.

    pytest-xdist has marks for this.  Its version 3.8 adds their names to the identifiers of the tests, which has no
    effect with pytest 9.2.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # the order by the number of tests would replace that of ``turn``
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return group(file) or file
