"""Closing the broker answers every waiting request."""

import asyncio

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from examples.broker.broker import Broker
from examples.broker.protocol.error_codes import Code
from examples.broker.settings import Settings
from examples.group import ErrorCode
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import RequestHarness, join_request, make_batch, settled


async def test_closing_the_broker_answers_everyone(clock: VirtualClock) -> None:
    """Parked requests get the response of a timeout, and a parked join gets NOT_COORDINATOR."""
    async with Broker(Settings(), clock=clock) as broker:
        harness = RequestHarness(broker)
        broker.topics.create("stalled")
        produce = asyncio.create_task(harness.produce("stalled", make_batch([b"a"]), acks=-1))
        fetch = asyncio.create_task(harness.fetch(("stalled", 0, 0)))
        told = await harness.ask(join_request("g"))
        parked = asyncio.create_task(harness.ask(join_request("g", told.member_id)))
        await settled()
        await broker.answer_all()
        assert (await produce).error_code == Code.REQUEST_TIMED_OUT
        assert (await fetch)[0].records == b""
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
