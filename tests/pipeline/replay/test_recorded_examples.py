"""Journals that the examples write come out of the replay as they were recorded."""

import asyncio
import pathlib
import random

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("rich", reason="the extra 'examples' is not installed")
pytest.importorskip("httpx", reason="the extra 'examples' is not installed")
pytest.importorskip("starlette", reason="the extra 'examples' is not installed")

import httpx

from examples.join_group.__main__ import main as join_group
from examples.long_poll.app import LongPoll, make_app
from examples.long_poll.fetch import Fetch
from examples.long_poll.topics import Topics
from purgatory import Purgatory
from purgatory.journal import Journal
from purgatory.pipeline.replay.simulation import replay

from .test_simulation import SETTINGS, recorded

pytestmark = pytest.mark.timeout(170)


def test_the_join_group_simulator_comes_out_as_it_was(tmp_path: pathlib.Path) -> None:
    """Joins, syncs and heartbeats, with sessions that are prolonged and members that crash."""
    scenario = ["--groups", "4", "--members", "8", "--duration", "10m", "--crash-rate", "3", "--speed", "max"]
    assert join_group([*scenario, "--plain", "--journal", str(tmp_path / "journal")]) == 0
    outcomes: set[int] = set()
    for purgatory in ("join", "sync", "heartbeat"):
        found = recorded(tmp_path / "journal", purgatory)
        outcomes |= set(found.outcomes.tolist())
        for tick_ms, wheel_size in SETTINGS:
            measured = replay(found, tick_ms, wheel_size)
            assert (measured.changed, measured.operations) == (0, len(found.waited)), purgatory
    assert {1, 2} <= outcomes


@pytest.mark.slow
async def test_the_long_poll_comes_out_as_it_was(tmp_path: pathlib.Path) -> None:
    """Clients that wait for events over HTTP, in real time: answered, timed out and gone, all as recorded."""
    draw = random.Random(5)
    async with Journal(tmp_path) as journal, Purgatory[Fetch]("fetch", observers=[journal]) as purgatory:
        transport = httpx.ASGITransport(app=make_app(LongPoll(purgatory, Topics(retain_bytes=10_000, max_topics=10))))
        async with httpx.AsyncClient(transport=transport, base_url="http://poll") as client:

            async def follow(topic: str) -> None:
                offset = 0
                for _ in range(10):
                    wait = draw.choice([0.002, 0.01, 0.05])
                    answer = await client.get(f"/topics/{topic}?offset={offset}&max_wait={wait}")
                    assert answer.status_code == 200
                    offset = answer.json()["next_offset"]

            async def publish() -> None:
                for _ in range(60):
                    answer = await client.post(f"/topics/t{draw.randrange(3)}", content=b"news")
                    assert answer.is_success
                    await asyncio.sleep(0)

            await asyncio.gather(publish(), *(follow(f"t{number % 4}") for number in range(12)))
    found = recorded(tmp_path)
    assert len(found.waited) == 120
    for tick_ms, wheel_size in SETTINGS:
        assert replay(found, tick_ms, wheel_size).changed == 0
