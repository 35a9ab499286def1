"""``check``: ``check_and_complete`` under its everyday name."""

from collections.abc import Hashable
from typing import Any

import pytest

from purgatory import Purgatory
from tests.helpers import Op, park


async def test_check_is_check_and_complete(purgatory: Purgatory[Op]) -> None:
    """``check`` takes a key, a value and a limit, and returns how many operations it completed."""
    for name in "xyz":
        park(purgatory, "a", timeout=5, name=name).ready = True
    purgatory.try_complete_else_watch(high := Op(5), {"a": 10})
    high.ready = True
    assert purgatory.check("a", limit=1) == 1
    assert purgatory.check("a", 9) == 2
    assert purgatory.check("a", 9, limit=5) == 0
    assert purgatory.check("a", 10, limit=5) == 1
    assert purgatory.check("a") == 0
    with pytest.raises(ValueError, match="limit must be a positive int"):
        purgatory.check("a", limit=0)
    unhashable: Any = []
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.check(unhashable)


async def test_an_override_is_honoured() -> None:
    """``check`` calls an overridden ``check_and_complete``, also one without ``limit``."""

    class Sharded(Purgatory[Any]):
        def check_and_complete(  # type: ignore[override]
            self, key: Hashable, value: float | None = None
        ) -> int:
            return super().check_and_complete(key, value) + 100

    async with Sharded("test") as purgatory:
        assert purgatory.check("a") == 100
        assert purgatory.check("a", 5) == 100
