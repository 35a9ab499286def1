"""Looking into the long poll: the books, the topics with the most readers, who waits on what."""

import pytest

from tests.examples.long_poll.harness import House


async def test_the_books_can_be_read(house: House) -> None:
    """All gauges and totals, as JSON."""
    await house.get("/topics/a")
    await house.post("b", b"hello")
    stats = (await house.get("/stats")).answer
    assert (stats["parked"], stats["watched"], stats["keys"], stats["num_delayed"]) == (1, 1, 1, 1)
    assert (stats["submitted"], stats["topics"]) == (1, 1)


async def test_the_topics_with_the_most_readers_can_be_seen(house: House) -> None:
    """Most first, as many rows as one asks for."""
    for topic in "abbccc":
        await house.get(f"/topics/{topic}")
    seen = (await house.get("/debug/parked?rows=2")).answer
    assert (seen["parked"], len(seen["operations"]), seen["omitted"]) == (6, 2, 4)
    assert list(seen["hot_topics"].items()) == [("c", 3), ("b", 2)]


async def test_who_waits_on_what_can_be_seen(house: House) -> None:
    """Since when, until when, and for which byte; as JSON and as a table."""
    await house.post("a", b"12345")
    await house.get("/topics/a?offset=1&min_bytes=10&max_wait=30")
    await house.clock.advance(2)
    (row,) = (await house.get("/debug/parked")).answer["operations"]
    assert (row["kind"], row["keys"]) == ("Fetch", [{"key": "a", "threshold": 15}])
    assert (row["waited"], row["left"]) == (2.0, 28.0)
    table = await house.get("/debug/parked?format=text")
    assert table.headers["content-type"].startswith("text/plain")
    assert "a >= 15" in table.text
    assert table.text.endswith("  1 on a\n")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("rows=x", "rows must be an integer"),
        ("rows=-1", "rows must be an integer"),
        ("rows=1000000", "rows must be an integer"),
        ("rows=%C2%B2", "rows must be an integer"),
        ("format=xml", "format must be json or text, got 'xml'"),
    ],
)
async def test_a_bad_view_of_the_debug_page_gets_422(house: House, query: str, reason: str) -> None:
    """With the reason."""
    call = await house.get(f"/debug/parked?{query}")
    assert call.status == 422
    assert reason in call.answer["error"]
