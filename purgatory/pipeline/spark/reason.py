"""The cause of an error of Spark, in one line."""

import re
from typing import Final

from .session import NO_SPACE
from .workers import missing_in_workers

__all__ = ["reason_of"]

# A traceback of Python in the text of an error: all of its lines are indented, except the last one.
_PYTHON: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
# py4j shows an exception of Java with its causes; the last ones often have no message.
_JAVA: Final = re.compile(r"^(?:Caused by)?: (\S+: .*)", re.MULTILINE)


def reason_of(error: BaseException) -> str:
    """Return the last line of the worker's traceback, the last cause in Java that has a message, or the first line."""
    text = str(error)
    missing = missing_in_workers(error)
    if missing is not None:
        return missing
    if NO_SPACE in text:
        return f"{NO_SPACE}, for the results, the checkpoint, or Spark's temporary files"
    for pattern in (_PYTHON, _JAVA):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
