"""Rejections of the long poll, with their status and reason; other clients are not affected."""

from collections.abc import Callable

import pytest

from examples.long_poll.fetch import Fetch
from examples.long_poll.parameters import Limits
from tests.examples.long_poll.harness import AppHarness

# Limits


async def test_a_reader_too_many_on_a_topic_gets_429(make_harness: Callable[..., AppHarness]) -> None:
    """The response has Retry-After; other topics are open, and so is the topic when a reader has left."""
    harness = make_harness(max_parked_per_key=1)
    first = await harness.get("/topics/a")
    second = await harness.get("/topics/a")
    assert (second.status, second.headers["retry-after"]) == (429, "7")
    assert "max_parked_per_key=1" in second.answer["error"]
    assert (await harness.get("/topics/b")).status is None
    first.hang_up()
    await harness.clock.settle()
    assert (await harness.get("/topics/a")).status is None


async def test_a_reader_too_many_altogether_gets_503(make_harness: Callable[..., AppHarness]) -> None:
    """The response has Retry-After."""
    harness = make_harness(max_parked=1)
    await harness.get("/topics/a")
    second = await harness.get("/topics/b")
    assert (second.status, second.headers["retry-after"]) == (503, "7")
    assert "max_parked=1" in second.answer["error"]


async def test_a_reader_who_need_not_wait_is_answered_even_if_it_is_full(
    make_harness: Callable[..., AppHarness],
) -> None:
    """The limits apply only to waiting."""
    harness = make_harness(max_parked=1, max_parked_per_key=1)
    await harness.post("a", b"hello")
    await harness.get("/topics/a?offset=1")
    assert (await harness.get("/topics/a?offset=0")).status == 200


async def test_a_message_too_large_gets_413_before_it_is_all_read(make_harness: Callable[..., AppHarness]) -> None:
    """The rest of the message is not read."""
    harness = make_harness(limits=Limits(max_message_bytes=10))
    writer = await harness.call("POST", "/topics/a", b"123456", b"7890x", b"more", b"and more")
    assert (writer.status, writer.read) == (413, 2)
    assert writer.answer == {"error": "message must have at most 10 bytes"}
    assert (await harness.call("POST", "/topics/a", b"123456", b"7890")).status == 201


async def test_a_topic_too_many_gets_507(make_harness: Callable[..., AppHarness]) -> None:
    """Readers create no topics, and writers only up to the limit."""
    harness = make_harness(max_topics=1)
    await harness.get("/topics/b")
    assert (await harness.post("a", b"hello")).status == 201
    assert (await harness.post("b", b"hello")).status == 507


async def test_an_offset_that_is_no_longer_kept_gets_410(make_harness: Callable[..., AppHarness]) -> None:
    """The response contains the first available offset of the topic."""
    harness = make_harness(retain_bytes=10)
    for _ in range(5):
        await harness.post("a", b"x" * 10)
    reader = await harness.get("/topics/a?offset=0")
    assert (reader.status, reader.answer["start"]) == (410, 4)
    assert [message["offset"] for message in (await harness.get("/topics/a?offset=4")).answer["messages"]] == [4]


# Errors


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("a?offset=-1", "offset must be an integer, at least 0, got '-1'"),
        ("a?offset=", "offset must be an integer, at least 0, got ''"),
        ("a?offset=1.0", "offset must be an integer"),
        ("a?offset=%D9%A1", "offset must be an integer"),
        ("a?offset=1", "offset must be at most 0, the end of topic 'a', got 1"),
        ("a?offset=" + "9" * 400, "offset must be "),
        ("a?min_bytes=x", "min_bytes must be an integer"),
        ("a?min_bytes=10001", "min_bytes must be at most the size of a topic, 10000, got 10001"),
        ("a?min_bytes=9&max_bytes=8", "min_bytes must be at most max_bytes, 8, got 9"),
        ("a?max_bytes=0", "max_bytes must be 1 to 4194304, got 0"),
        ("a?max_wait=nan", "max_wait must be a number of seconds, at least 0, got 'nan'"),
        ("a?max_wait=-1", "max_wait must be a number of seconds"),
        ("a?max_wait=1e9", "max_wait must be a number of seconds"),
        ("a?max_wait=300.1", "max_wait must be at most 300 seconds, got 300.1"),
        ("a?maxwait=1", "parameter must be one of offset, min_bytes, max_bytes, max_wait, got 'maxwait'"),
        ("a?offset=0&offset=0", "offset must be given once"),
        ("a%20b", "topic must be 1 to 249 of A-Z"),
        ("x" * 250, "topic must be 1 to 249 of A-Z"),
    ],
)
async def test_a_bad_parameter_gets_422_and_the_reason(harness: AppHarness, target: str, reason: str) -> None:
    """The reason contains the parameter, its value and the allowed values; nothing is parked."""
    reader = await harness.get(f"/topics/{target.replace('%20', ' ')}")
    assert reader.status == 422
    assert reason in reader.answer["error"]
    assert harness.purgatory.statistics().submitted == 0


@pytest.mark.parametrize(("body", "content_type"), [(b"", "text/plain"), (b"{", "application/json; charset=utf-8")])
async def test_a_bad_message_gets_422_and_is_not_appended(harness: AppHarness, body: bytes, content_type: str) -> None:
    """The message gets no offset and completes no reader."""
    reader = await harness.get("/topics/a")
    writer = await harness.call("POST", "/topics/a", body, content_type=content_type)
    assert writer.status == 422
    assert writer.answer["error"]
    assert not reader.sent
    assert harness.room.topics.get("a").end == 0


@pytest.mark.parametrize(("method", "target", "status"), [("GET", "/nowhere", 404), ("PUT", "/topics/a", 405)])
async def test_every_error_is_json(harness: AppHarness, method: str, target: str, status: int) -> None:
    """Errors of the router are JSON too."""
    call = await harness.call(method, target)
    assert call.status == status
    assert call.answer["error"]
    if status == 405:
        assert {"GET", "POST"} <= set(call.headers["allow"].split(", "))


async def test_a_defect_is_answered_and_harms_one_reader(harness: AppHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a response cannot be rendered, its reader gets 500; the writer and other topics are not affected."""
    reader, other = await harness.get("/topics/a"), await harness.get("/topics/b")

    def broken(_: Fetch) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Fetch, "on_complete", broken)
        assert (await harness.post("a", b"hello")).status == 201
    assert (reader.status, reader.answer) == (500, {"error": "internal server error"})
    with pytest.raises(RuntimeError, match="on purpose"):
        await reader.task
    assert not other.sent
    assert harness.purgatory.statistics().failed == 1
