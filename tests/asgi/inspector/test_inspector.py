"""The inspector without a browser: what it answers, what it refuses, and what it costs."""

import asyncio
import contextlib
import gc
import json
import os
import re
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from purgatory import Outcome, Purgatory, PurgatoryError, SystemTimer
from purgatory.asgi import InspectorAction, inspector
from purgatory.asgi.types import ASGIApp
from purgatory.locks import KeyedLock
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call, http_scope, websocket_scope
from tests.helpers import Boom, Op

JSON = ("content-type", "application/json")


async def call(
    app: ASGIApp, target: str = "/", method: str = "GET", *headers: tuple[str, str], body: bytes = b""
) -> Call:
    """Return the completed call of the application."""
    scope = http_scope(target, method)
    given = dict(headers)
    pairs = {"host": "127.0.0.1", **given}
    scope["headers"] = [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()]
    made = Call(app, scope, {"type": "http.request", "body": body, "more_body": False})
    await made.task
    return made


async def state(app: ASGIApp, query: str = "") -> Any:
    """Return the parsed answer of ``/state.json``."""
    made = await call(app, f"/state.json{query}")
    assert made.status == 200, made.json
    return made.json


async def act(app: ASGIApp, verb: str, order: Any) -> Call:
    """Return the completed call of an action."""
    return await call(app, f"/{verb}", "POST", JSON, body=json.dumps(order).encode())


@contextlib.asynccontextmanager
async def looking(app: ASGIApp) -> AsyncIterator[Call]:
    """Look at the page: a call of ``/events`` that stays open in the block."""
    stream = Call.get(app, "/events")
    try:
        yield stream
    finally:
        stream.hang_up()
        await asyncio.wait([stream.task], timeout=5)
        assert stream.task.done()


async def frames(stream: Call, number: int) -> list[Any]:
    """Wait for that many frames, and return them."""
    while True:
        found = [line[6:] for line in stream.body.split(b"\n") if line.startswith(b"data: ")]
        if len(found) >= number or stream.task.done():
            return [json.loads(line) for line in found]
        await asyncio.sleep(0.01)


# What it shows


async def test_a_frame_shows_what_waits(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Kinds, keys, ages, limits, deadlines and the longest waiting are those of the purgatory."""
    app = inspector(purgatory)
    purgatory.try_complete_else_watch(Op(None), ["a", "b"])
    await clock.advance(20.0)
    purgatory.try_complete_else_watch(Op(60.0), {"a": 7})
    frame = await state(app)
    room = frame["rooms"][0]
    assert (room["name"], room["parked"], room["watched"], room["keys"]) == (purgatory.name, 2, 3, 2)
    assert (room["delayed"], room["endless"]) == (1, 1)
    assert room["kinds"] == [{"kind": "Op", "parked": 2, "endless": 1, "unawaited": 2, "oldest": 20.0}]
    assert room["ages"]["parked"] == [1, 0, 1, 0, 0]
    hot = room["hot"]["watchers"][0]
    assert (hot["key"], hot["type"], hot["watchers"], hot["total_wait"], hot["oldest"]) == ("a", "str", 2, 20.0, 20.0)
    first, second = room["longest"]
    assert ([key["key"] for key in first["keys"]], first["waited"], first["left"]) == (["a", "b"], 20.0, None)
    assert ([key["threshold"] for key in second["keys"]], second["waited"], second["left"]) == ([7], 0.0, 60.0)
    assert room["survey"]["complete"] is True
    assert sum(level["tasks"] for level in frame["timers"][0]["levels"]) == 1
    assert frame["worker"]["pid"] > 0
    assert frame["findings"] == []


async def test_outcomes_are_those_of_the_last_minute(clock: VirtualClock) -> None:
    """Rates and quantiles cover a window before the frame, also without a viewer, not the lifetime."""
    async with Purgatory[Any]("room", clock=clock) as room:
        app = inspector(room)
        for _ in range(50):
            room.try_complete_else_watch(Op(5.0), ["old"])
        await clock.advance(100.0)
        for _ in range(10):
            room.try_complete_else_watch(Op(1.0), ["new"])
        room.try_complete_else_watch(slow := Op(60.0), ["new"])
        await clock.advance(4.0)
        slow.force_complete()
        seen = (await state(app))["rooms"][0]
        assert (seen["totals"]["expired"], seen["totals"]["completed"]) == (60, 1)
        assert (seen["minute"]["expired"], seen["minute"]["completed"]) == (10, 1)
        assert 60.0 <= seen["minute"]["seconds"] <= 70.0
        assert (seen["minute"]["wait"]["count"], seen["minute"]["wait"]["p50"]) == (11, pytest.approx(1.0, rel=0.032))
        assert seen["window"]["expired"] == 60
        assert seen["rates"]["expired"] == 10 / 4.0
        assert sum(seen["lines"]["expired"]) * 10 == pytest.approx(60, rel=0.5)


async def test_expired_keys_and_failures_are_sampled_while_somebody_looks(clock: VirtualClock) -> None:
    """The keys on which operations expire, and the error of what fails, appear in the next frame."""
    async with Purgatory[Any]("room", clock=clock) as room:
        app = inspector(room)
        await state(app)

        def fail(_: Any) -> None:
            raise Boom("<b>no\x1b[31m total")

        room.try_complete_else_watch(Op(1.0), ["late"])
        room.try_complete_else_watch(Op(1.0), ["late"])
        room.try_complete_else_watch(done := Op(1.0), ["late"])
        done.force_complete()
        failing = Op(9.0)
        room.try_complete_else_watch(failing, ["bad"])
        failing._on_try = fail
        waiter = asyncio.ensure_future(failing)  # so that the error has a receiver
        room.check_and_complete("bad")
        with pytest.raises(Boom):
            await waiter
        await clock.advance(2.0)
        await asyncio.sleep(1.05)  # the frame before is a second old
        seen = await state(app)
        expired = seen["rooms"][0]["hot"]["expired"]
        assert [(key["key"], key["ended"], key["expired"]) for key in expired] == [("late", 3, 2)]
        failure = seen["rooms"][0]["failures"][0]
        assert (failure["kind"], failure["key"], failure["error"]) == ("Op", "bad", "Boom: <b>no\\x1b[31m total")
        assert seen["findings"][0]["level"] == "critical"
        assert "1 operation failed" in seen["findings"][0]["text"]


async def test_the_trace_of_the_request_is_shown(clock: VirtualClock) -> None:
    """With the observer of the traces, each operation has the trace of the request that parked it."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra 'otel' is not installed")
    from purgatory.otel import tracing

    provider = trace.TracerProvider()
    async with Purgatory[Any]("room", clock=clock, observers=[tracing(provider)]) as room:
        app = inspector(room)
        with provider.get_tracer("test").start_as_current_span("GET /orders") as span:
            room.try_complete_else_watch(Op(None), ["a"])
        room.try_complete_else_watch(Op(None), ["b"])
        first, second = (await state(app))["rooms"][0]["longest"]
        assert first["trace_id"] == format(span.get_span_context().trace_id, "032x")
        assert second["trace_id"] not in (None, first["trace_id"])
    provider.shutdown()


async def test_several_purgatories_and_relays(clock: VirtualClock) -> None:
    """A relay stands for its purgatory and itself; purgatories on one timer show it once."""
    async with (
        SystemTimer(clock=clock) as timer,
        Purgatory[Any]("one", timer=timer) as one,
        Purgatory[Any]("two", timer=timer) as two,
        Relay(one, MemoryTransport()) as relay,
    ):
        for app in (inspector(relay, two), inspector(two, relay=relay), inspector(one, two, relay=[relay, relay])):
            frame = await state(app)
            assert {room["name"] for room in frame["rooms"]} == {"one", "two"}
            assert [(found["purgatory"], found["connected"]) for found in frame["relays"]] == [("one", True)]
            assert [sorted(found["rooms"]) for found in frame["timers"]] == [["one", "two"]]


async def test_the_other_workers_are_listed_through_the_relay(clock: VirtualClock) -> None:
    """The page names the processes of the other relays on the channel, and when they were heard of."""
    broker = MemoryTransport()
    async with (
        Purgatory[Any]("here", clock=clock) as here,
        Purgatory[Any]("there", clock=clock) as there,
        Relay(here, broker) as relay,
        Relay(there, broker),
    ):
        for _ in range(25):
            await clock.advance(1.0)
        (worker,) = (await state(inspector(relay)))["workers"]
    assert re.fullmatch(rf"{os.getpid()}@[\w.-]+", worker["name"])
    assert (worker["purgatory"], worker["ago"] <= 10.0) == ("here", True)


class _Raises:
    def __repr__(self) -> str:
        raise Boom


class _Huge:
    def __repr__(self) -> str:
        return "h" * 10_000_000


HOSTILE = [
    "<script>alert(1)</script>", "k" * 5_000_000, "\u202eesrever\x00\x1b[2J", "\ud800", "", 7, "7", 10**5000,
    b"\xff" * 1_000_000, ("t",) * 100_000, (("deep",),) * 3, None, True, 1.5, frozenset(range(100_000)),
]  # fmt: skip


async def test_hostile_keys_are_short_printable_texts(purgatory: Purgatory[Any]) -> None:
    """Keys of any class and size appear, escaped and cut, and each can be looked up by its id."""
    app = inspector(purgatory)
    keys = [*HOSTILE, _Raises(), _Huge()]
    for key in keys:
        purgatory.try_complete_else_watch(Op(None), [key])
    made = await call(app, "/state.json")
    assert len(made.body) < 60_000
    shown = [row["keys"][0] for row in made.json["rooms"][0]["longest"]]
    assert len(shown) == len(keys)
    for place, key in zip(shown, keys, strict=True):
        assert len(place["key"]) <= 120
        assert place["key"].isprintable()
        assert place["type"] == type(key).__name__
        found = await state(app, f"?id={place['id']}")
        assert [row["op_id"] for row in found["operations"]] == [keys.index(key) + 1 if key is not True else 13]
    assert [place["key"] for place in shown[5:7]] == ["7", "7"]
    assert shown[-2]["key"] == "<_Raises whose repr raised Boom>"


async def test_a_search_finds_the_exact_key_first(purgatory: Purgatory[Any]) -> None:
    """A search matches a part of a key in either case; operations are those of the best match; none is an answer."""
    app = inspector(purgatory)
    for key in ("order-7", "ORDER-77", "x", ("order-7", 1), 7):
        purgatory.try_complete_else_watch(Op(None), [key])
    found = await state(app, "?key=order-7")
    assert found["keys"][0]["key"] == "order-7"
    assert {key["key"] for key in found["keys"]} == {"order-7", "ORDER-77", "('order-7', 1)"}
    assert [row["op_id"] for row in found["operations"]] == [1]
    assert found["complete"] is True
    assert (await state(app, "?key=7"))["keys"][0]["type"] == "int"
    assert (await state(app, "?key=nowhere"))["keys"] == []
    assert (await state(app, "?kind=Op&rows=2"))["operations"][1]["op_id"] == 2
    assert (await state(app, "?kind=Other"))["operations"] == []


async def test_the_cost_of_a_request_is_bounded_whatever_it_asks(purgatory: Purgatory[Any]) -> None:
    """However many rows are asked for, at most 500 come, and no turn of the loop is long."""
    app = inspector(purgatory)
    for number in range(3000):
        purgatory.try_complete_else_watch(Op(None), [number % 100, "all"])
    for query in ("?rows=999999", "?rows=99999999999999999999", f"?key={'a' * 5000}", "?key=all&rows=700"):
        found = await state(app, query)
        assert found["rows"] <= 500
        assert len(found["operations"]) == (0 if "aaa" in query else 500)
    frame = await state(app)
    assert frame["cost"]["busy"] > 0
    assert len(frame["rooms"][0]["longest"]) == 30


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/state.json?rows=-1", 400),
        ("/state.json?rows=x", 400),
        ("/state.json?row=1", 400),
        ("/state.json?rows=1&rows=2", 400),
        ("/state.json?room=other", 404),
        ("/state.json?key=" + "a" * 9000, 414),
        ("/etc/passwd", 404),
        ("/../app.py", 404),
    ],
)
async def test_bad_requests_are_answered(purgatory: Purgatory[Any], target: str, status: int) -> None:
    """The response is a status and a reason, and has the headers of all responses."""
    made = await call(inspector(purgatory), target)
    assert made.status == status
    assert made.json["detail"]
    assert made.headers["x-content-type-options"] == "nosniff"


async def test_the_waiters_of_a_lock_are_shown_and_cannot_be_ended(purgatory: Purgatory[Any]) -> None:
    """A lock is shown with the user's key; its waiters are found, but not withdrawn."""
    lock = KeyedLock(purgatory)
    app = inspector(purgatory, authorize=lambda action: True)

    async def hold() -> None:
        async with lock("order-7"):
            await asyncio.sleep(3600)

    tasks = [asyncio.ensure_future(hold()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = await state(app, "?key=order-7")
    ((key,), (row,)) = found["keys"], found["operations"]
    assert (key["key"], key["type"], key["watchers"], row["awaited"]) == ("order-7", "lock", 1, True)
    made = await act(app, "withdraw", {"id": key["id"]})
    assert (made.status, len(purgatory)) == (404, 1)
    assert "lock" in made.json["detail"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Where it is mounted, and what it serves


@pytest.mark.parametrize("make", [FastAPI, Starlette])
async def test_it_is_mounted_in_an_application(purgatory: Purgatory[Any], make: Any) -> None:
    """A mount serves the page and its files below its path, and redirects to the slash that relative links need."""
    app = make()
    app.mount("/ops/purgatory", inspector(purgatory))
    for name, kind in (("", "text/html"), ("page.css", "text/css"), ("page.js", "text/javascript")):
        made = await call(app, f"/ops/purgatory/{name}")
        assert (made.status, made.headers["content-type"].split(";")[0]) == (200, kind)
        assert "default-src 'none'" in made.headers["content-security-policy"]
        assert b"://" not in made.body.replace(b"http://www.w3.org/2000/svg", b"")
    assert (await call(app, "/ops/purgatory")).headers["location"].endswith("/ops/purgatory/")
    assert (await call(app, "/ops/purgatory/state.json")).json["rooms"][0]["name"] == purgatory.name


def test_each_event_loop_has_its_own_desk() -> None:
    """Requests may come in one event loop after another, as in a test client that makes a loop for each of them."""
    app = inspector(Purgatory[Any]("orders"))
    for _ in range(3):
        assert asyncio.run(state(app))["rooms"][0]["name"] == "orders"


@pytest.mark.parametrize(
    ("root", "path", "status"), [("", "/", 200), ("/p", "/p/", 200), ("/p", "/", 200), ("/p", "/p", 307), ("", "", 307)]
)
async def test_servers_differ_in_the_path(purgatory: Purgatory[Any], root: str, path: str, status: int) -> None:
    """The path may contain the root path or not; without its slash it is redirected, never to another host."""
    scope = {**http_scope(), "root_path": root, "path": path}
    made = Call(inspector(purgatory), scope)
    await made.task
    assert made.status == status
    scope = {**http_scope(), "root_path": "//evil.example", "path": "//evil.example"}
    made = Call(inspector(purgatory), scope)
    await made.task
    assert made.headers["location"] == "/evil.example/"


async def test_methods_and_kinds_of_scopes(purgatory: Purgatory[Any]) -> None:
    """HEAD has no body; other methods get 405 with the allowed ones; a WebSocket is refused."""
    app = inspector(purgatory)
    made = await call(app, "/", "HEAD")
    assert (made.status, made.body) == (200, b"")
    assert int(made.headers["content-length"]) > 1000
    assert (await call(app, "/", "POST")).headers["allow"] == "GET, HEAD"
    assert (await call(app, "/withdraw")).headers["allow"] == "POST"
    socket = Call(app, websocket_scope("/events", denial=True))
    await socket.task
    assert socket.status == 404
    with pytest.raises(RuntimeError, match="got a scope of type 'lifespan'"):
        await Call(app, {"type": "lifespan"}).task


# Hosts and origins


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("10.1.2.3:80", 200), ("orders", 200),
        ("testserver", 200), ("ops.localhost", 200), ("attacker.example", 400), ("127.0.0.1.attacker.example", 400),
        ("", 400), ("localhost:x", 400), ("[::1", 400), ("[evil]", 400),
    ],
)  # fmt: skip
async def test_a_host_that_a_foreign_site_can_have_is_refused(
    purgatory: Purgatory[Any], host: str, status: int
) -> None:
    """By default, addresses and names that cannot be registered are served, so DNS rebinding reads nothing."""
    app = inspector(purgatory)
    assert (await call(app, "/state.json", "GET", ("host", host))).status == status


async def test_hosts_can_be_given(purgatory: Purgatory[Any]) -> None:
    """``allowed_hosts`` are exactly these; None allows every host."""
    only = inspector(purgatory, allowed_hosts=["ops.example.com"])
    assert (await call(only, "/", "GET", ("host", "OPS.example.com:8443"))).status == 200
    assert (await call(only, "/", "GET", ("host", "localhost"))).status == 400
    assert (await call(inspector(purgatory, allowed_hosts=None), "/", "GET", ("host", "any.example"))).status == 200


async def test_pages_of_other_origins_read_and_write_nothing(purgatory: Purgatory[Any]) -> None:
    """A browser's request for another site gets 403, except that others may link to the page."""
    app = inspector(purgatory, authorize=lambda action: True)
    purgatory.try_complete_else_watch(Op(None), ["a"])
    for site in ("cross-site", "same-site"):
        for target in ("/state.json", "/events", "/page.js", "/"):
            assert (await call(app, target, "GET", ("sec-fetch-site", site))).status == 403
    link = (("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"))
    assert (await call(app, "/", "GET", *link)).status == 200
    assert (await call(app, "/state.json", "GET", *link)).status == 403
    body = b'{"key": "a"}'
    for header in (("sec-fetch-site", "cross-site"), ("origin", "https://attacker.example"), ("origin", "null")):
        assert (await call(app, "/withdraw", "POST", JSON, header, body=body)).status == 403
    assert (await call(app, "/withdraw", "POST", ("content-type", "text/plain"), body=body)).status == 415
    assert len(purgatory) == 1
    made = await call(app, "/state.json")
    assert "access-control-allow-origin" not in made.headers
    assert made.headers["cross-origin-resource-policy"] == "same-origin"


# Actions


async def test_without_authorize_nothing_can_be_changed(purgatory: Purgatory[Any]) -> None:
    """The page offers no action, and a request for one gets 403."""
    app = inspector(purgatory)
    purgatory.try_complete_else_watch(Op(None), ["a"])
    assert (await state(app))["authorize"] is False
    for verb in ("withdraw", "fail"):
        assert (await act(app, verb, {"key": "a"})).status == 403
    assert len(purgatory) == 1


class Ticket:
    """A key whose ``repr`` does not show all of it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ticket) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return "<Ticket>"


@pytest.mark.parametrize(
    "keys",
    [
        (500 * "x" + "a", 500 * "x" + "b"),
        (tuple(range(20)), (*range(19), 0)),
        (Ticket(1), Ticket(2)),
    ],
    ids=["str", "tuple", "object"],
)
async def test_keys_that_look_alike_are_ended_apart(purgatory: Purgatory[Any], keys: tuple[Any, Any]) -> None:
    """Each has its own id, although the page shows the same text for both, so no other operation is withdrawn."""
    app = inspector(purgatory, authorize=lambda action: True)
    operations = [Op(None), Op(None)]
    for operation, key in zip(operations, keys, strict=True):
        purgatory.try_complete_else_watch(operation, [key])
    (room,) = (await state(app))["rooms"]
    shown = [row["keys"][0] for row in sorted(room["longest"], key=lambda row: row["op_id"])]
    assert shown[0]["key"] == shown[1]["key"]
    assert (await act(app, "withdraw", {"id": shown[0]["id"]})).json == {"ended": 1}
    assert [operation.outcome for operation in operations] == [Outcome.CANCELLED, Outcome.PENDING]


async def test_one_key_is_withdrawn_or_failed_if_authorize_allows_it(
    purgatory: Purgatory[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """``authorize`` gets the action with its key; only True allows it, also from a coroutine function."""
    asked: list[InspectorAction] = []
    allow: Any = True

    async def authorize(action: InspectorAction) -> Any:
        asked.append(action)
        return allow

    app = inspector(purgatory, authorize=authorize)
    operations = [Op(None) for _ in range(4)]
    for operation, key in zip(operations, ("a", "a", ("t", 1), 5), strict=True):
        purgatory.try_complete_else_watch(operation, [key])
    made = await act(app, "withdraw", {"room": purgatory.name, "key": "a", "reason": "stuck"})
    assert (made.status, made.json) == (200, {"ended": 2})
    assert (asked[0].verb, asked[0].room, asked[0].key, asked[0].headers["host"]) == (
        "withdraw", purgatory.name, "a", "127.0.0.1",
    )  # fmt: skip
    shown = {place["key"]: place["id"] for row in (await state(app))["rooms"][0]["longest"] for place in row["keys"]}
    for refusal in (False, None, 1, "yes"):
        allow = refusal
        assert (await act(app, "fail", {"id": shown["('t', 1)"]})).status == 403
    allow = True
    assert (await act(app, "fail", {"id": shown["('t', 1)"], "reason": "no data"})).json == {"ended": 1}
    with pytest.raises(PurgatoryError, match="no data"):
        operations[2].result()
    assert (await act(app, "fail", {"key": 5})).json == {"ended": 1}
    assert len(purgatory) == 0
    assert "stuck" in caplog.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"[]", 400), (b"{}", 400), (b"\xff", 400), (b"[" * 5000, 400), (b'{"key": "a", "id": "b"}', 400),
        (b'{"key": [1]}', 400), (b'{"key": true}', 400), (b'{"key": "a", "reason": 1}', 400),
        (b'{"key": "a", "x": 1}', 400),
        (b'{"key": "nowhere"}', 404), (b'{"id": "unknown"}', 404), (b'{"key": "a", "room": "other"}', 404),
        (b'{"key": "' + b"a" * 20_000 + b'"}', 413),
    ],
)  # fmt: skip
async def test_a_bad_order_changes_nothing(purgatory: Purgatory[Any], body: bytes, status: int) -> None:
    """The response states the reason, and ``authorize`` is not called."""

    def never(_: InspectorAction) -> bool:
        raise AssertionError

    purgatory.try_complete_else_watch(Op(None), ["a"])
    made = await call(inspector(purgatory, authorize=never), "/withdraw", "POST", JSON, body=body)
    assert (made.status, len(purgatory)) == (status, 1)


# Watching


async def test_frames_are_taken_only_while_somebody_looks(purgatory: Purgatory[Any]) -> None:
    """Two viewers share the frames; without viewers no task runs, and the observer is detached after a while."""
    app: Any = inspector(purgatory)
    before = asyncio.all_tasks()
    async with looking(app) as one, looking(app) as two:
        first, second = await frames(one, 2), await frames(two, 2)
        assert [frame["number"] for frame in first[:2]] == [frame["number"] for frame in second[:2]] == [1, 2]
        assert second[1]["viewers"] == 2
        assert one.headers["content-type"].startswith("text/event-stream")
        assert one.headers["cache-control"] == "no-store"
        assert purgatory._core._notifier.active
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    ((_, desk),) = app._desks.values()
    assert desk.viewers == 0
    app._rest(desk)
    assert not purgatory._core._notifier.active


async def test_too_many_viewers_are_refused(purgatory: Purgatory[Any]) -> None:
    """Above the limit the response is 503 with Retry-After, and a place that was left is free again."""
    app = inspector(purgatory, max_viewers=1)
    async with looking(app) as stream:
        await frames(stream, 1)
        made = await call(app, "/events")
        assert (made.status, made.headers["retry-after"]) == (503, "5")
    async with looking(app) as stream:
        assert len(await frames(stream, 1)) == 1


async def test_viewers_that_do_not_read_are_counted(purgatory: Purgatory[Any]) -> None:
    """A viewer has its place from the request on, also if not even the beginning of the response can be sent."""
    app = inspector(purgatory, max_viewers=2)
    statuses: list[int] = []

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            if message["status"] == 200:
                await asyncio.Event().wait()

    async def silent() -> Any:
        return await asyncio.Event().wait()

    scope = http_scope("/events")
    scope["headers"] = [(b"host", b"127.0.0.1")]
    viewers = [asyncio.ensure_future(app(scope, silent, stuck)) for _ in range(5)]  # type: ignore[arg-type]
    await asyncio.wait(viewers[2:], timeout=5)
    assert sorted(statuses) == [200, 200, 503, 503, 503]
    for viewer in viewers:
        viewer.cancel()
    await asyncio.wait(viewers)
    async with looking(app) as stream:
        assert len(await frames(stream, 1)) == 1


async def test_the_stream_ends_when_the_purgatories_close() -> None:
    """A page that is open does not delay the shutdown of a server: after a last frame, the stream ends."""
    room = Purgatory[Any]("room")
    async with room:
        stream = Call.get(inspector(room), "/events")
        await frames(stream, 1)
    await asyncio.wait_for(stream.task, 5)
    assert (await frames(stream, 9))[-1]["rooms"][0]["closed"] is True
    stream.hang_up()


async def test_too_many_waiting_requests_are_refused(purgatory: Purgatory[Any]) -> None:
    """Requests are served one after another; with too many of them the response is 503."""
    app: Any = inspector(purgatory)
    for number in range(2000):
        purgatory.try_complete_else_watch(Op(None), [number])
    calls = [asyncio.ensure_future(call(app, "/state.json?rows=1")) for _ in range(20)]
    statuses = [made.status for made in await asyncio.gather(*calls)]
    assert statuses.count(503) == 4
    assert statuses.count(200) == 16


async def test_a_purgatory_in_the_loop_of_another_thread() -> None:
    """The purgatory is read and changed in its own loop."""
    started = threading.Event()
    rooms: list[Purgatory[Any]] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def other() -> None:
        stop = asyncio.Event()
        async with Purgatory[Any]("elsewhere") as room:
            room.try_complete_else_watch(Op(None), ["a"])
            rooms.append(room)
            loops.append((asyncio.get_running_loop(), stop))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=[other()])
    thread.start()
    try:
        await asyncio.to_thread(started.wait)
        app = inspector(rooms[0], authorize=lambda action: True)
        assert (await state(app))["rooms"][0]["parked"] == 1
        assert (await state(app, "?key=a"))["operations"][0]["op_id"] == 1
        assert (await act(app, "withdraw", {"key": "a"})).json == {"ended": 1}
        assert len(rooms[0]) == 0
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join)


async def test_it_keeps_nothing_alive(clock: VirtualClock) -> None:
    """An inspector that is no longer used is freed, and its samples end."""
    async with Purgatory[Any]("room", clock=clock) as room:
        app: Any = inspector(room)
        await state(app)
        ((_, desk),) = app._desks.values()
        app._rest(desk)
        history = weakref.ref(app._collector._views[0].history)
        assert room.timer.size == 1
        del app, desk
        gc.collect()
        assert history() is None
        await clock.advance(30.0)
        assert room.timer.size == 0


async def test_without_history_nothing_runs_while_nobody_looks(clock: VirtualClock) -> None:
    """``history=0`` puts nothing on the timer."""
    async with Purgatory[Any]("room", clock=clock) as room:
        app = inspector(room, history=0)
        assert room.timer.size == 0
        assert (await state(app))["rooms"][0]["parked"] == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda room: inspector(), ValueError, "at least one purgatory"),
        (lambda room: inspector(3), TypeError, "room must be a Purgatory or a Relay, got 3"),
        (lambda room: inspector(room, relay=3), TypeError, "relay must be a Relay, got 3"),
        (lambda room: inspector(room, Purgatory(room.name)), ValueError, "different names"),
        (lambda room: inspector(room, authorize=True), TypeError, "authorize must be callable"),
        (lambda room: inspector(room, allowed_hosts="localhost"), TypeError, "allowed_hosts must be"),
        (lambda room: inspector(room, history=-1), ValueError, "history must be"),
        (lambda room: inspector(room, history=7200.0), ValueError, "history must be at most 3600 seconds"),
        (lambda room: inspector(room, max_viewers=0), ValueError, "max_viewers must be"),
        (lambda room: inspector(room, title=3), TypeError, "title must be a str"),
    ],
)
async def test_bad_arguments_are_explained(purgatory: Purgatory[Any], make: Any, error: Any, message: str) -> None:
    """The error states what was expected and what was passed."""
    with pytest.raises(error, match=message):
        make(purgatory)
