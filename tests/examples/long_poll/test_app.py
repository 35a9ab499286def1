"""Readers of the long poll: how long they wait, what completes them, and that they may disconnect at any time."""

import asyncio
from collections.abc import Callable

import pytest

from examples.long_poll.fetch import Fetch
from tests.examples.long_poll.harness import AppHarness, Call

# Waiting


async def test_a_reader_is_answered_by_the_message_he_waits_for(harness: AppHarness) -> None:
    """A reader waits until a POST of its message completes it, without time passing."""
    reader = await harness.get("/topics/a?offset=0&max_wait=30")
    assert not reader.sent
    assert (len(harness.purgatory), harness.purgatory.watched) == (1, 1)
    writer = await harness.post("a", b"hello")
    assert (writer.status, writer.answer) == (201, {"topic": "a", "offset": 0})
    assert (reader.status, reader.answer) == (
        200,
        {"topic": "a", "messages": [{"offset": 0, "value": "hello"}], "next_offset": 1},
    )
    assert len(harness.purgatory) == harness.purgatory.num_delayed == 0


async def test_a_reader_waits_for_min_bytes_beyond_his_offset(harness: AppHarness) -> None:
    """Bytes before the offset do not count; the message that reaches ``min_bytes`` completes the reader with all
    bytes.
    """
    await harness.post("a", b"x" * 50)
    reader = await harness.get("/topics/a?offset=1&min_bytes=10")
    await harness.post("a", b"12345")
    await harness.post("a", b"6789")
    assert not reader.sent
    await harness.post("a", b"0")
    assert [message["value"] for message in reader.answer["messages"]] == ["12345", "6789", "0"]
    assert reader.answer["next_offset"] == 4


async def test_only_readers_whose_bytes_are_there_are_tried(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred readers wait for more bytes; a message that is enough for one reader tries only that reader."""
    tried: list[int] = []

    def try_complete(fetch: Fetch) -> bool:
        tried.append(fetch.request.min_bytes)
        return unpatched(fetch)

    unpatched = Fetch.try_complete
    for number in range(100):
        await harness.get(f"/topics/a?min_bytes={100 + number}")
    monkeypatch.setattr(Fetch, "try_complete", try_complete)
    await harness.post("a", b"x" * 100)
    assert tried == [100]
    assert len(harness.purgatory) == 99


async def test_readers_of_other_topics_go_on_waiting(harness: AppHarness) -> None:
    """A message affects only the readers of its topic."""
    reader = await harness.get("/topics/a")
    await harness.post("b", b"hello")
    assert not reader.sent
    assert harness.purgatory.hot_keys() == [("a", 1)]


async def test_a_reader_is_answered_with_an_empty_list_when_time_is_up(harness: AppHarness) -> None:
    """The response is sent exactly after ``max_wait``, with status 200."""
    reader = await harness.get("/topics/a?max_wait=2.5")
    await harness.clock.advance(2.499)
    assert not reader.sent
    await harness.clock.advance(0.002)
    assert (reader.status, reader.answer) == (200, {"topic": "a", "messages": [], "next_offset": 0})
    assert harness.purgatory.statistics().expired == 1


async def test_a_reader_gets_what_there_is_when_time_is_up(harness: AppHarness) -> None:
    """At the deadline, the response contains the available messages."""
    reader = await harness.get("/topics/a?min_bytes=100&max_wait=2.5")
    await harness.post("a", b"little")
    await harness.clock.advance(3)
    assert [message["value"] for message in reader.answer["messages"]] == ["little"]


@pytest.mark.parametrize("query", ["max_wait=0", "min_bytes=0"])
async def test_a_reader_who_does_not_want_to_wait_is_answered_at_once(harness: AppHarness, query: str) -> None:
    """With ``min_bytes=0`` or no time, the request is a plain read."""
    reader = await harness.get(f"/topics/a?{query}")
    await harness.clock.settle()
    assert (reader.status, reader.answer["messages"]) == (200, [])


async def test_a_reader_with_enough_to_read_never_parks(harness: AppHarness) -> None:
    """The available messages are returned in order, at most ``max_bytes`` of them."""
    for body in (b"a" * 10, b"b" * 10, b"c" * 10):
        await harness.post("a", body)
    reader = await harness.get("/topics/a?offset=1&max_bytes=10")
    assert [message["offset"] for message in reader.answer["messages"]] == [1]
    assert harness.purgatory.statistics().immediate == 1
    assert "connection" not in reader.headers


async def test_trimming_never_takes_what_a_reader_waits_for(make_harness: Callable[..., AppHarness]) -> None:
    """If a large message would delete all earlier ones, the waiting readers first get all messages."""
    harness = make_harness(retain_bytes=100)
    reader = await harness.get("/topics/a?offset=0&min_bytes=100")
    await harness.post("a", b"x" * 50)
    await harness.post("a", b"y" * 500)
    assert [len(message["value"]) for message in reader.answer["messages"]] == [50, 500]
    assert harness.room.topics.get("a").start == 1


async def test_json_stays_json(harness: AppHarness) -> None:
    """A JSON message stays JSON, also under another JSON content type."""
    await harness.call("POST", "/topics/a", b'{"n": 1}', content_type="application/vnd.order+json")
    assert (await harness.get("/topics/a")).answer["messages"] == [{"offset": 0, "value": {"n": 1}}]


# Leaving


async def test_a_reader_who_hangs_up_is_withdrawn_at_once(harness: AppHarness) -> None:
    """The operation is withdrawn without time passing; others are not affected, and nothing is sent to the client."""
    leaver, stayer = await harness.get("/topics/a"), await harness.get("/topics/a")
    leaver.hang_up()
    await harness.clock.settle()
    assert leaver.task.done()
    assert leaver.status == 499
    assert (len(harness.purgatory), harness.purgatory.statistics().cancelled) == (1, 1)
    await harness.post("a", b"hello")
    assert stayer.status == 200


@pytest.mark.parametrize(
    "error", [OSError("reset"), RuntimeError("unable to perform operation; the handler is closed")]
)
async def test_a_reader_who_has_left_when_the_answer_is_sent_is_no_defect(
    harness: AppHarness, error: Exception
) -> None:
    """After a second request on the connection, a server does not notice the hang-up and raises an error of its own."""
    reader = await harness.get("/topics/a")
    reader.send_error = error
    await harness.post("a", b"hello")
    await reader.task
    assert reader.sent == []


async def test_a_reader_whose_task_is_cancelled_is_withdrawn(harness: AppHarness) -> None:
    """If the server cancels the task of a request, its operation is withdrawn."""
    reader = await harness.get("/topics/a")
    reader.task.cancel()
    await harness.clock.settle()
    assert reader.task.cancelled()
    assert (len(harness.purgatory), harness.purgatory.statistics().cancelled) == (0, 1)
    assert len(asyncio.all_tasks()) <= 2, "the one who listens for the hang-up is gone"


async def test_a_writer_who_leaves_in_the_middle_appends_nothing(harness: AppHarness) -> None:
    """A message that is received only partially is not appended."""
    writer = await harness.call("POST", "/topics/a", b"half", b"")
    assert writer.status == 201
    writer = Call(harness.app, "POST", "/topics/a", (b"half", b"never read"), "text/plain")
    writer._left.set()
    await harness.clock.settle()
    assert writer.task.done()
    assert harness.room.topics.get("a").end == 1


# Closing


async def test_everyone_is_answered_when_it_closes(harness: AppHarness) -> None:
    """Waiting readers get the available messages; later requests are refused, and nothing is appended."""
    readers = [await harness.get(f"/topics/{topic}?min_bytes=9&max_wait=300") for topic in "aab"]
    await harness.post("b", b"little")
    await harness.purgatory.aclose()
    await harness.clock.settle()
    assert [reader.status for reader in readers] == [200] * 3
    assert [len(reader.answer["messages"]) for reader in readers] == [0, 0, 1]
    assert [reader.headers["connection"] for reader in readers] == ["close"] * 3
    for late in (await harness.get("/topics/a"), await harness.post("a", b"late")):
        assert (late.status, late.headers["retry-after"], late.headers["connection"]) == (503, "7", "close")
    assert harness.room.topics.get("a").end == 0
