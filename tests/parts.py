"""Real parts that a user's machine may lack: Maven, a JDK, a broker.

A test that needs one is skipped with the reason where it is missing.  With ``PURGATORY_REQUIRE_PARTS=1`` it fails
instead, so a run that should have had all parts cannot pass without them.
"""

import os
from typing import NoReturn

import pytest

__all__ = ["REQUIRED", "missing"]

REQUIRED = "PURGATORY_REQUIRE_PARTS"


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where every part is required."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, and {reason}")
    pytest.skip(reason)
