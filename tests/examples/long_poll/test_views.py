"""The debug endpoints of the long poll: statistics, topics with the most readers, and waiting operations."""

import pytest

from tests.examples.long_poll.harness import AppHarness


async def test_the_books_can_be_read(harness: AppHarness) -> None:
    """The statistics contain all gauges and totals, as JSON."""
    await harness.get("/topics/a")
    await harness.post("b", b"hello")
    stats = (await harness.get("/stats")).answer
    assert (stats["parked"], stats["watched"], stats["keys"], stats["num_delayed"]) == (1, 1, 1, 1)
    assert (stats["submitted"], stats["topics"]) == (1, 1)


async def test_the_topics_with_the_most_readers_can_be_seen(harness: AppHarness) -> None:
    """The topics with the most readers come first, with as many rows as requested."""
    for topic in "abbccc":
        await harness.get(f"/topics/{topic}")
    seen = (await harness.get("/debug/parked?rows=2")).answer
    assert (seen["parked"], len(seen["operations"]), seen["omitted"]) == (6, 2, 4)
    assert list(seen["hot_topics"].items()) == [("c", 3), ("b", 2)]


async def test_who_waits_on_what_can_be_seen(harness: AppHarness) -> None:
    """The view shows start, deadline and position of each operation, as JSON and as a table."""
    await harness.post("a", b"12345")
    await harness.get("/topics/a?offset=1&min_bytes=10&max_wait=30")
    await harness.clock.advance(2)
    (row,) = (await harness.get("/debug/parked")).answer["operations"]
    assert (row["kind"], row["keys"]) == ("Fetch", [{"key": "a", "threshold": 15}])
    assert (row["waited"], row["left"]) == (2.0, 28.0)
    table = await harness.get("/debug/parked?format=text")
    assert table.headers["content-type"].startswith("text/plain")
    assert "a >= 15" in table.text
    assert table.text.endswith("  1 on a\n")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("rows=x", "rows must be an integer"),
        ("rows=-1", "rows must be an integer"),
        ("rows=1001", "rows must be an integer from 0 to 1000"),
        ("rows=1000000", "rows must be an integer"),
        ("rows=%C2%B2", "rows must be an integer"),
        ("format=xml", "format must be json or text, got 'xml'"),
    ],
)
async def test_a_bad_view_of_the_debug_page_gets_422(harness: AppHarness, query: str, reason: str) -> None:
    """The response contains the reason."""
    call = await harness.get(f"/debug/parked?{query}")
    assert call.status == 422
    assert reason in call.answer["error"]
