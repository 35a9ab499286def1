"""Errors are reported to the loop's exception handler or to the log, even if the ``repr`` of an object raises."""

import asyncio
import logging

import pytest

from purgatory.aio.error_reporting import report
from tests.helpers import Boom


class Mute:
    def __repr__(self) -> str:
        raise Boom


async def test_the_default_handler_prints_an_object_whose_repr_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A placeholder replaces an object whose ``repr`` raises, so the error is logged; other objects are unchanged."""
    asyncio.get_running_loop().set_exception_handler(None)
    with caplog.at_level(logging.ERROR):
        report("it raised", Boom("why"), operation=Mute(), key="orders")
    assert "it raised" in caplog.text
    assert "Mute whose repr raised Boom" in caplog.text
    assert "'orders'" in caplog.text
    caplog.clear()


def test_without_a_loop_the_log_has_the_report(caplog: pytest.LogCaptureFixture) -> None:
    """Without a running event loop, the log gets the same report."""
    with caplog.at_level(logging.ERROR, logger="purgatory"):
        report("it raised", Boom("why"), operation=Mute(), attempt=3)
    assert "it raised: {'operation': " in caplog.text
    assert ", 'attempt': 3}" in caplog.text
    assert "Mute whose repr raised Boom" in caplog.text
    caplog.clear()
