"""The long poll's application, called as a server would call it, in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from examples.long_poll.app import LongPoll, make_app
from examples.long_poll.fetch import Fetch
from examples.long_poll.parameters import Limits
from examples.long_poll.topics import Topics
from purgatory import Purgatory
from purgatory.testing import VirtualClock


class Call:
    """One request, and what came back."""

    def __init__(self, app: ASGIApp, method: str, target: str, chunks: tuple[bytes, ...], content_type: str) -> None:
        path, _, query = target.partition("?")
        self.sent: list[Message] = []
        self.read = 0
        self._chunks = chunks
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"content-type", content_type.encode())],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self.read < len(self._chunks) and not self._left.is_set():
            self.read += 1
            body = self._chunks[self.read - 1]
            return {"type": "http.request", "body": body, "more_body": body != b"" and self.read < len(self._chunks)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def hang_up(self) -> None:
        self._left.set()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent[1:]).decode()

    @property
    def answer(self) -> Any:
        return json.loads(self.text)


class House:
    """The application and what is behind it."""

    def __init__(self, clock: VirtualClock, room: LongPoll) -> None:
        self.clock = clock
        self.room = room
        self.purgatory = room.purgatory
        self.app = make_app(room)

    async def call(self, method: str, target: str, *chunks: bytes, content_type: str = "text/plain") -> Call:
        """Make a request, and return when nothing more happens at this moment."""
        call = Call(self.app, method, target, chunks or (b"",), content_type)
        await self.clock.settle()
        return call

    async def get(self, target: str) -> Call:
        return await self.call("GET", target)

    async def post(self, topic: str, body: bytes) -> Call:
        return await self.call("POST", f"/topics/{topic}", body)


@pytest.fixture
async def make_house(clock: VirtualClock) -> AsyncIterator[Callable[..., House]]:
    """Makes houses with limits of one's choice; closes them."""
    houses: list[House] = []

    def make(
        *,
        retain_bytes: int = 10_000,
        max_topics: int = 10,
        limits: Limits | None = None,
        max_parked: int | None = None,
        max_parked_per_key: int | None = None,
    ) -> House:
        purgatory = Purgatory[Fetch]("test", clock=clock, max_parked=max_parked, max_parked_per_key=max_parked_per_key)
        topics = Topics(retain_bytes=retain_bytes, max_topics=max_topics)
        houses.append(House(clock, LongPoll(purgatory, topics, limits=limits, retry_after=7)))
        return houses[-1]

    yield make
    for house in houses:
        house.purgatory._check()
        await house.purgatory.aclose()


@pytest.fixture
def house(make_house: Callable[..., House]) -> House:
    """One without limits."""
    return make_house()


# Waiting


async def test_a_reader_is_answered_by_the_message_he_waits_for(house: House) -> None:
    """He waits while there is nothing, and the POST that brings it answers him without time passing."""
    reader = await house.get("/topics/a?offset=0&max_wait=30")
    assert not reader.sent
    assert (len(house.purgatory), house.purgatory.watched) == (1, 1)
    writer = await house.post("a", b"hello")
    assert (writer.status, writer.answer) == (201, {"topic": "a", "offset": 0})
    assert (reader.status, reader.answer) == (
        200,
        {"topic": "a", "messages": [{"offset": 0, "value": "hello"}], "next_offset": 1},
    )
    assert len(house.purgatory) == house.purgatory.num_delayed == 0


async def test_a_reader_waits_for_min_bytes_beyond_his_offset(house: House) -> None:
    """Bytes before the offset do not count; the message that makes it enough brings all of them."""
    await house.post("a", b"x" * 50)
    reader = await house.get("/topics/a?offset=1&min_bytes=10")
    await house.post("a", b"12345")
    await house.post("a", b"6789")
    assert not reader.sent
    await house.post("a", b"0")
    assert [message["value"] for message in reader.answer["messages"]] == ["12345", "6789", "0"]
    assert reader.answer["next_offset"] == 4


async def test_only_readers_whose_bytes_are_there_are_tried(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred readers wait for more than there is: a message that is enough for one tries that one alone."""
    tried: list[int] = []

    def try_complete(fetch: Fetch) -> bool:
        tried.append(fetch.request.min_bytes)
        return unpatched(fetch)

    unpatched = Fetch.try_complete
    for number in range(100):
        await house.get(f"/topics/a?min_bytes={100 + number}")
    monkeypatch.setattr(Fetch, "try_complete", try_complete)
    await house.post("a", b"x" * 100)
    assert tried == [100]
    assert len(house.purgatory) == 99


async def test_readers_of_other_topics_go_on_waiting(house: House) -> None:
    """A message concerns its own topic."""
    reader = await house.get("/topics/a")
    await house.post("b", b"hello")
    assert not reader.sent
    assert house.purgatory.hot_keys() == [("a", 1)]


async def test_a_reader_is_answered_with_an_empty_list_when_time_is_up(house: House) -> None:
    """Not before max_wait, and with status 200."""
    reader = await house.get("/topics/a?max_wait=2.5")
    await house.clock.advance(2.499)
    assert not reader.sent
    await house.clock.advance(0.002)
    assert (reader.status, reader.answer) == (200, {"topic": "a", "messages": [], "next_offset": 0})
    assert house.purgatory.statistics().expired == 1


async def test_a_reader_gets_what_there_is_when_time_is_up(house: House) -> None:
    """Too little is better than nothing."""
    reader = await house.get("/topics/a?min_bytes=100&max_wait=2.5")
    await house.post("a", b"little")
    await house.clock.advance(3)
    assert [message["value"] for message in reader.answer["messages"]] == ["little"]


@pytest.mark.parametrize("query", ["max_wait=0", "min_bytes=0"])
async def test_a_reader_who_does_not_want_to_wait_is_answered_at_once(house: House, query: str) -> None:
    """Asking for nothing, or giving no time, is a plain read."""
    reader = await house.get(f"/topics/a?{query}")
    await house.clock.settle()
    assert (reader.status, reader.answer["messages"]) == (200, [])


async def test_a_reader_with_enough_to_read_never_parks(house: House) -> None:
    """What is there is given, in order, at most max_bytes of it."""
    for body in (b"a" * 10, b"b" * 10, b"c" * 10):
        await house.post("a", body)
    reader = await house.get("/topics/a?offset=1&max_bytes=10")
    assert [message["offset"] for message in reader.answer["messages"]] == [1]
    assert house.purgatory.statistics().immediate == 1
    assert "connection" not in reader.headers


async def test_trimming_never_takes_what_a_reader_waits_for(make_house: Callable[..., House]) -> None:
    """A message so large that everything before it goes answers those who wait with all of it first."""
    house = make_house(retain_bytes=100)
    reader = await house.get("/topics/a?offset=0&min_bytes=100")
    await house.post("a", b"x" * 50)
    await house.post("a", b"y" * 500)
    assert [len(message["value"]) for message in reader.answer["messages"]] == [50, 500]
    assert house.room.topics.get("a").start == 1


# Leaving


async def test_a_reader_who_hangs_up_is_withdrawn_at_once(house: House) -> None:
    """Without time passing; those who stay are not touched, and nothing is sent to the one who left."""
    leaver, stayer = await house.get("/topics/a"), await house.get("/topics/a")
    leaver.hang_up()
    await house.clock.settle()
    assert leaver.task.done()
    assert leaver.status == 499
    assert (len(house.purgatory), house.purgatory.statistics().cancelled) == (1, 1)
    await house.post("a", b"hello")
    assert stayer.status == 200


async def test_a_reader_whose_task_is_cancelled_is_withdrawn(house: House) -> None:
    """A server that gives up on a request leaves nobody parked."""
    reader = await house.get("/topics/a")
    reader.task.cancel()
    await house.clock.settle()
    assert reader.task.cancelled()
    assert (len(house.purgatory), house.purgatory.statistics().cancelled) == (0, 1)
    assert len(asyncio.all_tasks()) <= 2, "the one who listens for the hang-up is gone"


async def test_a_writer_who_leaves_in_the_middle_appends_nothing(house: House) -> None:
    """Half a message is none."""
    writer = await house.call("POST", "/topics/a", b"half", b"")
    assert writer.status == 201
    writer = Call(house.app, "POST", "/topics/a", (b"half", b"never read"), "text/plain")
    writer._left.set()
    await house.clock.settle()
    assert writer.task.done()
    assert house.room.topics.get("a").end == 1


# Limits


async def test_a_reader_too_many_on_a_topic_gets_429(make_house: Callable[..., House]) -> None:
    """With the time after which to come again; other topics are open, and so is the topic when one has gone."""
    house = make_house(max_parked_per_key=1)
    first = await house.get("/topics/a")
    second = await house.get("/topics/a")
    assert (second.status, second.headers["retry-after"]) == (429, "7")
    assert "max_parked_per_key=1" in second.answer["error"]
    assert (await house.get("/topics/b")).status is None
    first.hang_up()
    await house.clock.settle()
    assert (await house.get("/topics/a")).status is None


async def test_a_reader_too_many_altogether_gets_503(make_house: Callable[..., House]) -> None:
    """With the time after which to come again."""
    house = make_house(max_parked=1)
    await house.get("/topics/a")
    second = await house.get("/topics/b")
    assert (second.status, second.headers["retry-after"]) == (503, "7")
    assert "max_parked=1" in second.answer["error"]


async def test_a_reader_who_need_not_wait_is_answered_in_a_full_house(make_house: Callable[..., House]) -> None:
    """The limits are about waiting."""
    house = make_house(max_parked=1, max_parked_per_key=1)
    await house.post("a", b"hello")
    await house.get("/topics/a?offset=1")
    assert (await house.get("/topics/a?offset=0")).status == 200


# Closing


async def test_everyone_is_answered_when_it_closes(house: House) -> None:
    """Those who wait get what there is; whoever comes later is refused, and nothing is appended any more."""
    readers = [await house.get(f"/topics/{topic}?min_bytes=9&max_wait=300") for topic in "aab"]
    await house.post("b", b"little")
    await house.room.aclose()
    await house.clock.settle()
    assert [reader.status for reader in readers] == [200] * 3
    assert [len(reader.answer["messages"]) for reader in readers] == [0, 0, 1]
    assert [reader.headers["connection"] for reader in readers] == ["close"] * 3
    for late in (await house.get("/topics/a"), await house.post("a", b"late")):
        assert (late.status, late.headers["retry-after"], late.headers["connection"]) == (503, "7", "close")
    assert house.room.topics.get("a").end == 0


# Errors


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("a?offset=-1", "offset is a whole number, 0 or more, not '-1'"),
        ("a?offset=", "offset is a whole number, 0 or more, not ''"),
        ("a?offset=1.0", "offset is a whole number"),
        ("a?offset=%D9%A1", "offset is a whole number"),
        ("a?offset=1", "offset=1 is beyond the end of topic 'a': the next message will be 0"),
        ("a?min_bytes=x", "min_bytes is a whole number"),
        ("a?min_bytes=10001", "min_bytes=10001 is more than what a topic keeps (10000)"),
        ("a?min_bytes=9&max_bytes=8", "min_bytes=9 is more than max_bytes (8)"),
        ("a?max_bytes=0", "max_bytes is 1 to 4194304, not 0"),
        ("a?max_wait=nan", "max_wait is a number of seconds, 0 or more, such as 2.5, not 'nan'"),
        ("a?max_wait=-1", "max_wait is a number of seconds"),
        ("a?max_wait=1e9", "max_wait is a number of seconds"),
        ("a?max_wait=300.1", "max_wait is at most 300 seconds, not 300.1"),
        ("a?maxwait=1", "there is no parameter 'maxwait': offset, min_bytes, max_bytes, max_wait are known"),
        ("a?offset=0&offset=0", "offset is given twice"),
        ("a%20b", "topic is 1 to 249 of A-Z"),
        ("x" * 250, "topic is 1 to 249 of A-Z"),
    ],
)
async def test_a_bad_parameter_gets_422_and_the_reason(house: House, target: str, reason: str) -> None:
    """The reason names the parameter, what it was and what is meant; nobody is parked."""
    reader = await house.get(f"/topics/{target.replace('%20', ' ')}")
    assert reader.status == 422
    assert reason in reader.answer["error"]
    assert house.purgatory.statistics().submitted == 0


@pytest.mark.parametrize(("body", "content_type"), [(b"", "text/plain"), (b"{", "application/json; charset=utf-8")])
async def test_a_bad_message_gets_422_and_is_not_appended(house: House, body: bytes, content_type: str) -> None:
    """It takes no offset and wakes nobody."""
    reader = await house.get("/topics/a")
    writer = await house.call("POST", "/topics/a", body, content_type=content_type)
    assert writer.status == 422
    assert writer.answer["error"]
    assert not reader.sent
    assert house.room.topics.get("a").end == 0


async def test_json_stays_json(house: House) -> None:
    """Also under a content type of its own."""
    await house.call("POST", "/topics/a", b'{"n": 1}', content_type="application/vnd.order+json")
    assert (await house.get("/topics/a")).answer["messages"] == [{"offset": 0, "value": {"n": 1}}]


async def test_a_message_too_large_gets_413_before_it_is_all_read(make_house: Callable[..., House]) -> None:
    """The rest of it is not even asked for."""
    house = make_house(limits=Limits(max_message_bytes=10))
    writer = await house.call("POST", "/topics/a", b"123456", b"7890x", b"more", b"and more")
    assert (writer.status, writer.read) == (413, 2)
    assert writer.answer == {"error": "a message is at most 10 bytes"}
    assert (await house.call("POST", "/topics/a", b"123456", b"7890")).status == 201


async def test_a_topic_too_many_gets_507(make_house: Callable[..., House]) -> None:
    """Readers make no topics, writers only as many as allowed."""
    house = make_house(max_topics=1)
    await house.get("/topics/b")
    assert (await house.post("a", b"hello")).status == 201
    assert (await house.post("b", b"hello")).status == 507


async def test_an_offset_that_is_no_longer_kept_gets_410(make_house: Callable[..., House]) -> None:
    """With the offset at which the topic begins."""
    house = make_house(retain_bytes=10)
    for _ in range(5):
        await house.post("a", b"x" * 10)
    reader = await house.get("/topics/a?offset=0")
    assert (reader.status, reader.answer["start"]) == (410, 4)
    assert [message["offset"] for message in (await house.get("/topics/a?offset=4")).answer["messages"]] == [4]


@pytest.mark.parametrize(("method", "target", "status"), [("GET", "/nowhere", 404), ("PUT", "/topics/a", 405)])
async def test_every_error_is_json(house: House, method: str, target: str, status: int) -> None:
    """What the router refuses, too."""
    call = await house.call(method, target)
    assert call.status == status
    assert call.answer["error"]
    if status == 405:
        assert {"GET", "POST"} <= set(call.headers["allow"].split(", "))


async def test_a_defect_is_answered_and_harms_one_reader(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose answer cannot be made gets 500; the writer and the other topics do not notice."""
    reader, other = await house.get("/topics/a"), await house.get("/topics/b")

    def broken(_: Fetch) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Fetch, "on_complete", broken)
        assert (await house.post("a", b"hello")).status == 201
    assert (reader.status, reader.answer) == (500, {"error": "internal server error"})
    with pytest.raises(RuntimeError, match="on purpose"):
        await reader.task
    assert not other.sent
    assert house.purgatory.statistics().failed == 1


# Looking in


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
        ("rows=x", "rows is a whole number"),
        ("rows=-1", "rows is a whole number"),
        ("rows=1000000", "rows is a whole number"),
        ("rows=%C2%B2", "rows is a whole number"),
        ("format=xml", "format is json or text, not 'xml'"),
    ],
)
async def test_a_bad_view_of_the_debug_page_gets_422(house: House, query: str, reason: str) -> None:
    """With the reason."""
    call = await house.get(f"/debug/parked?{query}")
    assert call.status == 422
    assert reason in call.answer["error"]
