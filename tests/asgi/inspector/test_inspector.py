"""The inspector without a browser: what it answers, what it refuses, and what it costs."""

import asyncio
import contextlib
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette

from benchmarks.shutdown import Client
from purgatory import Event, Observer, Outcome, Purgatory, PurgatoryError, SystemTimer
from purgatory.asgi import InspectorAction, TooManyWaits, Wait, inspector
from purgatory.asgi.inspector.collector import _relay
from purgatory.asgi.inspector.endings import place_of
from purgatory.asgi.inspector.findings import _of_checks
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


async def test_an_operation_has_the_clock_time_since_which_it_waits(clock: VirtualClock) -> None:
    """An operator compares it with the times of a log, whatever clock the purgatory has."""
    async with Purgatory[Any]("room", clock=clock) as room:
        room.try_complete_else_watch(Op(900.0), ["a"])
        await clock.advance(600.0)
        frame = await state(inspector(room))
    (row,) = frame["rooms"][0]["longest"]
    assert row["waited"] == 600.0
    assert abs(frame["time"] - 600.0 - row["since"]) < 1.0


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
        line = fail.__code__.co_firstlineno + 1
        assert failure["place"].endswith(f"asgi/inspector/test_inspector.py:{line} in fail")
        assert failure["ago"] == 2.0
        assert seen["findings"][0]["level"] == "critical"
        assert "1 operation failed" in seen["findings"][0]["text"]
        assert f"Boom: <b>no\\x1b[31m total at {failure['place']}." in seen["findings"][0]["text"]


def raised(code: str, path: str) -> Exception:
    """Return the error of the code, which is compiled as that file."""
    try:
        exec(compile(code, path, "exec"), {})
    except Exception as error:
        return error
    raise AssertionError


def test_the_place_of_an_error_is_in_the_application() -> None:
    """It is the last frame outside of installed packages, and its path is short; an error never raised has none."""
    here = f"{Path(__file__).parents[3]}{os.sep}"
    own = raised("import json\n\ndef read():\n    json.loads('[')\n\nread()", f"{here}shop/orders.py")
    assert place_of(own) == "shop/orders.py:4 in read"
    foreign = raised("import json\njson.loads('[')", "app.py")
    for _ in range(2):  # without the frames of this file and of the code
        assert foreign.__traceback__ is not None
        foreign.__traceback__ = foreign.__traceback__.tb_next
    assert re.fullmatch(r"json/decoder\.py:\d+ in raw_decode", place_of(foreign))
    assert place_of(raised("1 / 0", f"/{'d' * 200}/app.py")) == f"…{'d' * 72}/app.py:1 in <module>"
    assert place_of(raised("1 / 0", "\x1b[2J.py")) == "\\x1b[2J.py:1 in <module>"
    assert place_of(Boom()) == ""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each request take a frame, also within a second."""
    monkeypatch.setattr(import_module("purgatory.asgi.inspector.app"), "_INTERVAL", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_key_that_no_check_names_is_told_from_a_wrong_name(clock: VirtualClock) -> None:
    """The page lists the checks of keys without operations, and how often each watched key was checked."""
    async with Purgatory[Any]("room", clock=clock) as room:
        app = inspector(room)
        for number in range(3):
            room.try_complete_else_watch(Op(None), [f"order-{number}"])
        await clock.advance(70.0)
        room.check("before somebody looks")

        async def looks() -> tuple[Any, list[str]]:
            frame = await state(app)
            return frame["rooms"][0], [found["text"] for found in frame["findings"]]

        begun, found = await looks()
        assert found[0].endswith("whether their keys are checked is not known yet; look again in a few seconds.")
        begins = begun["checks"]
        assert (begins["total"], begins["watched"], begins["unwatched"]) == (0, 0, [])
        await clock.advance(5.0)
        seen, found = await looks()
        assert [key["checks"] for key in seen["hot"]["watchers"]] == [0, 0, 0]
        assert "3 operations wait: no key was checked in the last 5.0 s." in found[0]
        for key in ("order_1", ("order", 1), "order_1"):
            room.check(key)
        seen, found = await looks()
        (wrong, other) = seen["checks"]["unwatched"]
        assert ((wrong["key"], wrong["checks"]), (other["key"], other["type"])) == (
            ("order_1", 2), ("('order', 1)", "tuple"),
        )  # fmt: skip
        assert "was for a key on which none of them waits, such as order_1." in found[0]
        room.check("order-2")
        seen, found = await looks()
        assert {key["key"]: key["checks"] for key in seen["hot"]["watchers"]} == {
            "order-0": 0,
            "order-1": 0,
            "order-2": 1,
        }
        assert (seen["checks"]["total"], seen["checks"]["watched"]) == (4, 1)
        assert "1 check in the last 5.0 s met waiting operations and completed none" in found[0]
        assert (await state(app, "?key=order-2"))["keys"][0]["checks"] == 1


@pytest.mark.usefixtures("at_once")
async def test_the_checks_are_bounded_and_end_with_the_last_viewer(purgatory: Purgatory[Any]) -> None:
    """With too many checks, the counts are a lower bound; locks are left out; nothing is noted while nobody looks."""
    app: Any = inspector(purgatory)
    purgatory.try_complete_else_watch(Op(None), ["a"])
    lock = KeyedLock(purgatory)
    await state(app)
    async with lock("x"):
        pass
    for number in range(1500):
        purgatory.check(number)
    room = (await state(app))["rooms"][0]
    assert (room["checks"]["total"], room["checks"]["complete"]) == (1000, False)
    assert room["checks"]["unwatched"][0]["key"] == "999"
    assert room["hot"]["watchers"][0]["checks"] is None
    for number in range(1000, 1500):
        purgatory.check(number)
    assert (await state(app))["rooms"][0]["checks"]["total"] == 1500
    assert len(app._collector._views[0].checks._keys) == 1000
    other: Any = inspector(purgatory)
    assert (await state(other))["rooms"][0]["checks"] is None  # the first one counts them
    assert (
        _of_checks(None) == "whether their keys are checked is not known, because another inspector counts the checks."
    )
    partly = {"seconds": 5.0, "complete": False, "total": 1_000, "watched": 0, "unwatched": []}
    assert _of_checks(partly) == "is a check of their keys missing?"
    assert _of_checks(partly | {"watched": 7}).startswith("at least 7 checks in the last 5.0 s met waiting operations")
    for number in range(1500):
        purgatory.check(number)
    assert (await state(other))["rooms"][0]["checks"]["total"] == 0  # the list of the first one was full
    assert (await state(app))["rooms"][0]["checks"] is None
    for seen in (app, other):
        for desk in [desk for _, desk in seen._desks.values()]:
            seen._rest(desk)
    assert purgatory._core.queued.noted == []
    assert purgatory._core.queued.rest == 0
    assert (await state(other))["rooms"][0]["checks"]["total"] == 0


async def test_a_client_above_its_limit_is_not_a_full_purgatory(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A limit of the purgatory affects every client and is critical; the limit of one client affects only that one."""
    app = inspector(purgatory)
    await clock.advance(1.0)
    never = asyncio.Event()
    wait = Wait(purgatory, http_scope(), never.wait, per_client=1)  # type: ignore[arg-type]
    first = asyncio.ensure_future(wait.until(lambda: False, key="a", timeout=None))
    await clock.settle()
    for _ in range(3):
        with pytest.raises(TooManyWaits):
            await wait.until(lambda: False, key="a", timeout=None)
    frame = await state(app)
    assert (frame["rooms"][0]["minute"]["refused"], frame["rooms"][0]["minute"]["refused_by_client"]) == (3, 3)
    assert [(found["level"], found["text"]) for found in frame["findings"]] == [
        ("warning", "3 operations refused in the last 1.0 s: a client reached per_client.")
    ]
    first.cancel()
    await asyncio.wait([first])


@pytest.mark.usefixtures("at_once")
async def test_a_purgatory_that_closes_is_closed_in_the_end(clock: VirtualClock) -> None:
    """While operations have their grace period, the page says how many still wait."""
    room = Purgatory[Any]("room", clock=clock)
    app = inspector(room)
    room.try_complete_else_watch(Op(60.0), ["a"])
    closing = asyncio.create_task(room.aclose(grace=5.0))
    await clock.settle()
    said = [(await state(app))["findings"][0]["text"]]
    await clock.advance(5.0)
    await closing
    said.append((await state(app))["findings"][0]["text"])
    assert said == ["The purgatory is closing; 1 operation still waits.", "The purgatory is closed."]


async def test_completions_at_once_are_counted_apart(clock: VirtualClock) -> None:
    """An operation that did not wait does not hide that no waiting one completes."""
    async with Purgatory[Any]("room", clock=clock) as room:
        app = inspector(room)
        room.try_complete_else_watch(Op(None), ["a"])
        for _ in range(70):
            room.try_complete_else_watch(Op(None, ready=True), ["b"])
            await clock.advance(1.0)
        frame = await state(app)
        minute = frame["rooms"][0]["minute"]
        assert (minute["completed"], minute["immediate"], minute["waited"]) == (60, 60, 0)
        assert frame["findings"][0]["level"] == "warning"
        assert "No waiting operation has completed" in frame["findings"][0]["text"]


@pytest.mark.usefixtures("at_once")
async def test_streams_that_get_every_change_are_not_stuck(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Operations of subscriptions never complete and have no deadline, so the rules about such operations are only
    about the others.
    """
    app = inspector(purgatory)
    got = 0

    async def stream() -> None:
        nonlocal got
        async for _ in purgatory.changes(["orders"]):
            got += 1

    async def serious() -> list[str]:
        return [found["text"] for found in (await state(app))["findings"] if found["level"] != "note"]

    streams = [asyncio.ensure_future(stream()) for _ in range(150)]
    await clock.settle()
    await state(app)
    for _ in range(90):
        purgatory.check("orders")
        await clock.advance(1.0)
    assert got == 90 * 150
    assert await serious() == []
    kinds = (await state(app))["rooms"][0]["kinds"]
    assert kinds == [
        {"kind": "changes", "parked": 150, "endless": 150, "unawaited": 150, "oldest": 90.0, "subscribed": 150}
    ]
    polls = [asyncio.ensure_future(purgatory.wait_until(lambda: False, key="o-7", timeout=None)) for _ in range(100)]
    await clock.settle()
    endless = "100 operations of kind wait_until have no deadline."
    grown = "The number of parked operations grew from 0 to 100 in 90 s, and none expired."
    assert await serious() == [endless, grown]
    await clock.advance(60.0)
    stuck, *others = await serious()
    assert re.match(r"No waiting operation has completed in the last .*, and 100 operations wait: ", stuck)
    assert others == [endless, grown.replace("90 s", "150 s")]
    for task in (*streams, *polls):
        task.cancel()
    await asyncio.wait([*streams, *polls])


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


class _NoArguments(Observer):
    """An observer with a ``trace_id`` of its own."""

    def trace_id(self) -> str:
        return "own"

    def completed(self, event: Event) -> None:
        pass


class _NoText(_NoArguments):
    def trace_id(self, *_: object) -> Any:
        return 5j


class _Unreadable(_NoArguments):
    @property
    def trace_id(self) -> Any:
        raise Boom


def _tracing_with(trace_id: Any) -> Any:
    spans = pytest.importorskip("purgatory.otel", reason="the extra 'otel' is not installed")
    return type("Own", (spans.Tracing,), {"trace_id": trace_id})()


@pytest.mark.parametrize(
    "make",
    [
        _NoArguments,
        _NoText,
        _Unreadable,
        pytest.param(lambda: _tracing_with(lambda self: "own"), id="a subclass of Tracing, another signature"),
        pytest.param(lambda: _tracing_with(lambda *_: 5j), id="a subclass of Tracing, no text"),
    ],
)
async def test_an_observer_with_a_trace_id_of_its_own_does_no_harm(clock: VirtualClock, make: Any) -> None:
    """Only the trace IDs of ``tracing()`` are shown; no observer can make ``/state.json`` or the live stream fail."""
    async with Purgatory[Any]("room", clock=clock, observers=[make()]) as room:
        app = inspector(room)
        room.try_complete_else_watch(Op(None), ["a"])
        (row,) = (await state(app))["rooms"][0]["longest"]
        (found,) = (await state(app, "?key=a"))["operations"]
        assert (row["trace_id"], found["trace_id"]) == (None, None)
        async with looking(app) as stream:
            (frame,) = await frames(stream, 1)
            assert frame["rooms"][0]["longest"][0]["trace_id"] is None


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


async def test_the_last_loss_has_its_age(clock: VirtualClock) -> None:
    """A loss of an hour ago is no reason for the hang of now; without a loss, there is no age."""
    async with Purgatory[Any]("room", clock=clock) as room, Relay(room, MemoryTransport()) as relay:
        app = inspector(relay)
        assert (await state(app))["relays"][0]["last_loss_ago"] is None
        relay._lost(SimpleNamespace(reason=OSError("reset")))  # type: ignore[arg-type]
        await clock.advance(60.0)
        seen = _relay(relay)
    assert (seen["last_loss"], seen["last_loss_ago"]) == ("OSError: reset", 60.0)


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


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("history", [0.0, 300.0])
async def test_an_outage_that_is_over_is_not_a_finding(clock: VirtualClock, history: float) -> None:
    """A finding about a relay is about the last minute; with one loss or one operation, the sentence is singular."""
    broker = MemoryTransport(clock=clock)
    down = True

    async def load(keys: Any) -> dict[Any, int]:
        if down:
            raise OSError
        return dict.fromkeys(keys, 0)

    async with Purgatory[Any]("room", clock=clock) as room:
        relay = Relay(room, broker, refresh=load)
        app = inspector(relay, history=history)

        async def looks() -> list[str]:
            texts = [found["text"] for found in (await state(app))["findings"]]
            return [text for text in texts if re.match("The relay|refresh|No waiting", text)]

        broker.stop()
        async with relay:
            waiter = asyncio.ensure_future(relay.wait_until(lambda: relay.state.get("k"), key="k", timeout=1e6))
            await clock.advance(0.0)
            assert (await looks())[0].startswith("The relay is not connected")
            broker.start()
            await clock.advance(50.0)
            failed, _, lost = await looks()
            assert re.match(r"refresh failed \d+ times in the last 50 s\.", failed)
            assert lost.startswith("The relay lost its connection or could not connect 1 time in the last 50 s. ")
            down = False
            await clock.advance(600.0)
            (waits,) = await looks()
            assert "1 operation waits: " in waits
            waiter.cancel()


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


async def test_hostile_keys_are_short_printable_texts(
    purgatory: Purgatory[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of any class and size appear, escaped and cut, and each can be looked up by its id."""
    monkeypatch.setattr(import_module("purgatory.asgi.inspector.app"), "_PATIENCE", 60.0)  # seconds; for a busy machine
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
    assert (found["complete"], found["exact"]) == (True, True)
    assert (await state(app, "?key=7"))["keys"][0]["type"] == "int"
    assert (await state(app, "?key=nowhere"))["keys"] == []
    assert (await state(app, "?kind=Op&rows=2"))["operations"][1]["op_id"] == 2
    assert (await state(app, "?kind=Other"))["operations"] == []


async def test_a_search_for_a_key_without_operations_is_not_answered_with_another_key(
    purgatory: Purgatory[Any],
) -> None:
    """The answer says that no key is exactly the text; the keys that contain it are in the order of their numbers."""
    app = inspector(purgatory)
    for number in (155, 1500, 152, 150):
        purgatory.try_complete_else_watch(Op(None), [f"order-{number}"])
    found = await state(app, "?key=order-15")
    assert [key["key"] for key in found["keys"]] == ["order-150", "order-152", "order-155", "order-1500"]
    assert found["exact"] is False
    assert [row["op_id"] for row in found["operations"]] == [4]
    assert (await state(app, "?key=nowhere"))["exact"] is False


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
    made = await call(app, "/state.json", "HEAD")
    assert (made.status, made.body, "content-length" in made.headers) == (200, b"", False)
    assert app._desk().number == 0, "no frame was taken"  # type: ignore[attr-defined]
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


async def test_the_full_name_of_a_purgatory_selects_it(clock: VirtualClock) -> None:
    """An action takes the full name as well as the shown one, which is shorter and has no control characters."""
    names = ["x" * 130, "y" * 130, "a\nb"]
    rooms = [Purgatory[Any](name, clock=clock) for name in names]
    asked: list[str] = []
    app = inspector(*rooms, authorize=lambda action: asked.append(action.room) or True)
    shown = [room["name"] for room in (await state(app))["rooms"]]
    assert shown == ["x" * 119 + "…", "y" * 119 + "…", r"a\nb"]
    for texts in (names, shown):
        for text, room in zip(texts, rooms, strict=True):
            room.try_complete_else_watch(Op(None), ["k"])
            assert (await act(app, "withdraw", {"room": text, "key": "k"})).json == {"ended": 1}
            assert len(room) == 0
    assert asked == 2 * names
    assert (await act(app, "withdraw", {"room": "x" * 131, "key": "k"})).status == 404
    for room in rooms:
        await room.aclose()


@pytest.mark.parametrize("header", ["x-forwarded-user", "X-Forwarded-User"])
@pytest.mark.parametrize("users", [("intruder", "on-call"), ("on-call", "intruder")])
async def test_a_header_that_is_sent_twice_replaces_no_other(
    purgatory: Purgatory[Any], header: str, users: tuple[str, str]
) -> None:
    """``authorize`` sees both values of the header, as one list: a client cannot hide the value of a proxy."""
    seen: list[InspectorAction] = []
    app = inspector(purgatory, authorize=lambda action: seen.append(action) or True)
    purgatory.try_complete_else_watch(Op(None), ["a"])
    scope = http_scope("/fail", "POST")
    pairs = [("host", "127.0.0.1"), JSON, ("x-forwarded-user", users[0]), (header, users[1])]
    pairs += [("cookie", "a=1"), ("cookie", "b=2")]
    scope["headers"] = [(name.encode(), value.encode()) for name, value in pairs]
    made = Call(app, scope, {"type": "http.request", "body": b'{"key": "a"}', "more_body": False})
    await made.task
    assert seen[0].headers["x-forwarded-user"] == ", ".join(users)
    assert seen[0].headers["cookie"] == "a=1; b=2"


async def test_a_client_that_hangs_up_in_the_body_gets_no_answer(purgatory: Purgatory[Any]) -> None:
    """The application returns without an error, sends nothing, and changes nothing."""
    purgatory.try_complete_else_watch(Op(None), ["a"])
    scope = http_scope("/withdraw", "POST")
    scope["headers"] = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    part = {"type": "http.request", "body": b'{"key": ', "more_body": True}
    made = Call(inspector(purgatory, authorize=lambda action: True), scope, part, {"type": "http.disconnect"})
    await made.task
    assert (made.sent, len(purgatory)) == ([], 1)


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
    operations = [Op(None) for _ in range(5)]
    for operation, key in zip(operations, ("a", "a", ("t", 1), ("t", 1), 5), strict=True):
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
    assert (await act(app, "fail", {"id": shown["('t', 1)"], "reason": "no data"})).json == {"ended": 2}
    with pytest.raises(PurgatoryError, match="no data") as first:
        operations[2].result()
    with pytest.raises(PurgatoryError, match="no data") as second:
        operations[3].result()
    assert first.value is not second.value  # each task raises its own, so no report shows data of another request
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


def test_the_repr_of_an_action_is_short_and_on_one_line() -> None:
    """The log contains it, and a client may have chosen the key: a key must not forge lines of the log."""

    class Key:
        def __init__(self, name: str) -> None:
            self.name = name

        def __repr__(self) -> str:
            return f"Key({self.name})"

    assert repr(InspectorAction("fail", "room", Key("x\nWARNING \x1b[2J"), {})) == (
        r"<InspectorAction fail Key(x\nWARNING \x1b[2J) of 'room'>"
    )
    assert len(repr(InspectorAction("fail", "room", "x" * 100_000, {}))) < 200


@pytest.mark.parametrize("opened", ["by its own lifespan", "by nobody"])
async def test_the_streams_end_when_the_server_begins_to_stop(opened: str) -> None:
    """The server waits for its open requests before it ends the lifespan, so an open page must not wait for that."""
    room = Purgatory[Any]("room")

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with room:
            yield

    app = Starlette(lifespan=lifespan if opened == "by its own lifespan" else None)
    app.mount("/purgatory", inspector(room))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(listener):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        clients = [Client(*await asyncio.open_connection(*listener.getsockname())) for _ in range(2)]
        for client in clients:
            client.send("GET", "/purgatory/events")
            assert (await client.response())[0] == 200
        server.should_exit = True
        await asyncio.wait([serving], timeout=10)
        assert serving.done()
        for client in clients:
            client.hang_up()
        await serving
    assert "shutdown" not in vars(server), "the method of the server is restored"
    await room.aclose()


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a hundred frames a second."""
    monkeypatch.setattr(import_module("purgatory.asgi.inspector.app"), "_INTERVAL", 0.01)


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("restarted", [False, True], ids=["beside the first one", "at the address of the first one"])
async def test_a_server_that_starts_after_a_viewer_has_left_ends_its_streams(restarted: bool) -> None:
    """Servers are remembered, but a viewer at a new address, or after the end of a server, causes a new search."""
    async with Purgatory[Any]("room") as room:
        app = Starlette()
        app.mount("/purgatory", inspector(room))
        first, second = (uvicorn.Server(uvicorn.Config(app, log_config=None)) for _ in range(2))
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        address = listeners[0].getsockname()

        async def view(at: Any) -> Client:
            client = Client(*await asyncio.open_connection(*at))
            client.send("GET", "/purgatory/events")
            assert (await client.response())[0] == 200
            return client

        async def stop(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
            server.should_exit = True
            await asyncio.wait([serving], timeout=10)
            assert serving.done()

        serving = asyncio.create_task(first.serve(sockets=listeners[:1]))
        viewer = await view(address)
        if restarted:
            await stop(first, serving)
            listeners[1].close()
            listeners[1] = socket.create_server(address)
        viewer.hang_up()
        later = asyncio.create_task(second.serve(sockets=listeners[1:]))
        viewer = await view(listeners[1].getsockname())
        await stop(second, later)
        viewer.hang_up()
        if not restarted:
            await stop(first, serving)
        for listener in listeners:
            listener.close()


async def _request(depth: int) -> None:
    await (_request(depth - 1) if depth else asyncio.Event().wait())


@pytest.mark.usefixtures("brisk")
async def test_opening_the_page_does_not_stall_a_server_with_many_requests(
    purgatory: Purgatory[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks are visited in slices, and only by the first viewer; a page that is opened again visits none."""
    servers = import_module("purgatory.asgi.servers")
    monkeypatch.setattr(import_module("purgatory.asgi.inspector.slices"), "_TURN", 0.0)
    visited, turns, lists = 0, [0], 0
    server_of, all_tasks, loop = servers._server_of, asyncio.all_tasks, asyncio.get_running_loop()

    def counted(frame: Any) -> str:
        nonlocal visited
        visited += 1
        found: str = server_of(frame)
        return found

    def listed() -> Any:
        nonlocal lists
        lists += 1
        return all_tasks()

    def turn() -> None:
        nonlocal handle
        turns.append(visited)
        handle = loop.call_soon(turn)

    monkeypatch.setattr(servers, "_server_of", counted)
    monkeypatch.setattr(asyncio, "all_tasks", listed)
    requests = [asyncio.ensure_future(_request(30)) for _ in range(100)]
    await asyncio.sleep(0)
    handle = loop.call_soon(turn)
    app: Any = inspector(purgatory)
    for _ in range(3):
        async with looking(app) as stream:
            number = 2
            while app._desk().unsearched or app._desk().search is not None:
                await frames(stream, number)
                number += 1
    handle.cancel()
    assert max(after - before for before, after in pairwise(turns)) <= 2 * (16 + 31)
    assert 100 * 31 <= visited < 2 * 100 * 35
    assert lists == 1
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)


@pytest.mark.usefixtures("brisk")
async def test_a_turn_of_the_inspector_itself_is_not_blamed_on_the_application(
    purgatory: Purgatory[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing the tasks of the loop takes one turn; the page counts it as the inspector's cost."""
    monkeypatch.setattr(import_module("purgatory.asgi.inspector.slices"), "SHARE", 1.0)
    late, counter, all_tasks = 0.0, time.perf_counter, asyncio.all_tasks

    def listed() -> Any:
        nonlocal late
        late += 7.0
        return all_tasks()

    monkeypatch.setattr(time, "perf_counter", lambda: counter() + late)
    monkeypatch.setattr(asyncio, "all_tasks", listed)
    app = inspector(purgatory)
    await state(app)  # begins to measure the turns
    async with looking(app) as stream:
        seen = await frames(stream, 10)
    assert late == 7.0
    assert max(frame["loop"]["lag"] for frame in seen) < 7.0
    assert max(frame["cost"]["longest"] for frame in seen) >= 7.0


async def test_a_signal_ends_the_streams_of_all_inspectors(purgatory: Purgatory[Any]) -> None:
    """A last frame is sent, the server's own handler is called once, and it is restored in whatever order they end."""
    received: list[int] = []

    def handle(number: int, _: Any) -> None:
        received.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        streams = [Call.get(inspector(purgatory), "/events") for _ in range(2)]
        for stream in streams:
            await frames(stream, 1)
        for stream in streams:
            stream.hang_up()
            await asyncio.wait([stream.task], timeout=5)
        assert signal.getsignal(signal.SIGTERM) is handle
        streams = [Call.get(inspector(purgatory), "/events") for _ in range(2)]
        for stream in streams:
            await frames(stream, 1)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait([stream.task for stream in streams], timeout=5)
        assert [len(await frames(stream, 9)) for stream in streams] == [2, 2]
        assert (received, signal.getsignal(signal.SIGTERM)) == ([signal.SIGTERM], handle)
    finally:
        signal.signal(signal.SIGTERM, before)
    for stream in streams:
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


@contextlib.asynccontextmanager
async def elsewhere() -> AsyncIterator[tuple[Purgatory[Any], asyncio.AbstractEventLoop]]:
    """Yield a purgatory in another thread, on which an operation waits, and its loop."""
    made: asyncio.Queue[tuple[Purgatory[Any], asyncio.AbstractEventLoop, asyncio.Event]] = asyncio.Queue()
    here = asyncio.get_running_loop()

    async def other() -> None:
        stop = asyncio.Event()
        async with Purgatory[Any]("elsewhere") as room:
            room.try_complete_else_watch(Op(None), ["a"])
            here.call_soon_threadsafe(made.put_nowait, (room, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=[other()])
    thread.start()
    room, loop, stop = await made.get()
    try:
        yield room, loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join)


async def test_a_purgatory_in_the_loop_of_another_thread() -> None:
    """The purgatory is read and changed in its own loop."""
    async with elsewhere() as (room, _):
        app = inspector(room, authorize=lambda action: True)
        assert (await state(app))["rooms"][0]["parked"] == 1
        assert (await state(app, "?key=a"))["operations"][0]["op_id"] == 1
        assert (await act(app, "withdraw", {"key": "a"})).json == {"ended": 1}
        assert len(room) == 0


@pytest.mark.parametrize("patience", [5.0, 0.0])
async def test_a_timer_is_read_in_its_own_loop(monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    """Otherwise the timer could change in the meantime.  If its thread no longer answers, the frame leaves it out."""
    collector = import_module("purgatory.asgi.inspector.collector")
    timer_view = collector.timer_view
    loops = []

    def viewed(*arguments: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        monkeypatch.setattr(collector, "_PATIENCE", patience)
        return timer_view(*arguments)

    monkeypatch.setattr(collector, "timer_view", viewed)
    async with elsewhere() as (room, loop), Purgatory[Any]("here") as here:
        timers = (await state(inspector(here, room)))["timers"]
    if patience:
        assert loops == [asyncio.get_running_loop(), loop]
        assert [timer["rooms"] for timer in timers] == [["here"], ["elsewhere"]]
    else:
        assert [timer["rooms"] for timer in timers] == [["here"]]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other thread answer in time."""
    monkeypatch.setattr(import_module("purgatory.asgi.inspector.collector"), "_PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_what_a_busy_thread_was_asked_is_not_done_after_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The response is 504, and the operations still wait when the thread continues."""
    async with elsewhere() as (room, loop):
        app = inspector(room, authorize=lambda action: True, history=0)
        go_on = threading.Event()
        loop.call_soon_threadsafe(go_on.wait)
        try:
            for verb in ("withdraw", "fail"):
                made = await act(app, verb, {"key": "a"})
                assert (made.status, made.json["detail"]) == (
                    504, "the thread of the purgatory has not answered within 0 s, and nothing was done",
                )  # fmt: skip
            for query in ("?key=a", "?kind=Op"):
                assert (await call(app, f"/state.json{query}")).status == 504
            assert (await state(app))["rooms"] == [{"name": "elsewhere", "silent": True}]
        finally:
            go_on.set()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
        assert len(room) == 1
    assert "nothing was done" in caplog.text


@pytest.mark.usefixtures("impatient")
async def test_what_a_busy_thread_has_begun_is_not_called_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is 504 and states that the operations may have ended."""
    began, go_on = threading.Event(), threading.Event()
    submit = asyncio.run_coroutine_threadsafe

    async def withdraw(*_: Any, **__: Any) -> None:
        began.set()
        go_on.wait()

    def submitted(*arguments: Any) -> Any:
        future = submit(*arguments)
        began.wait()
        return future

    async with elsewhere() as (room, _):
        app = inspector(room, authorize=lambda action: True, history=0)
        monkeypatch.setattr(room, "acancel_for_key", withdraw)
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submitted)
        try:
            made = await act(app, "withdraw", {"key": "a"})
        finally:
            go_on.set()
        assert made.status == 504
        assert made.json["detail"].endswith("and the request may have been carried out in part")


@pytest.mark.usefixtures("at_once")
async def test_a_loop_without_viewers_leaves_the_data_of_the_others(purgatory: Purgatory[Any]) -> None:
    """The inspector rests when nobody has looked in any loop that runs."""
    app: Any = inspector(purgatory)
    await state(app)
    purgatory.check("a")

    async def look(rest: bool) -> None:
        await state(app)
        if rest:
            app._rest(app._desk())

    await asyncio.to_thread(asyncio.run, look(rest=True))
    assert (await state(app))["rooms"][0]["checks"]["total"] == 1
    await asyncio.to_thread(asyncio.run, look(rest=False))
    app._rest(app._desk())
    assert (await state(app))["rooms"][0]["checks"]["total"] == 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("late", [0.1, 14.0])
async def test_a_turn_longer_than_the_rest_is_seen(purgatory: Purgatory[Any], late: float) -> None:
    """The loop that was blocked runs its timers before it reads the request for the next frame."""
    app: Any = inspector(purgatory)
    await state(app)
    purgatory.check("a")
    desk = app._desk()
    app._unseen(desk, asyncio.get_running_loop().time() - late)
    assert (desk.resting is None) == (late < 1)
    assert (await state(app))["rooms"][0]["checks"]["total"] == (0 if late < 1 else 1)


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


FORK = """
import asyncio, os, sys
from purgatory import Purgatory
from purgatory.asgi import inspector
from purgatory.testing import VirtualClock

clock = VirtualClock()
room = Purgatory("room", clock=clock)

async def sampled(app):
    task = asyncio.create_task(room.wait_until(lambda: False, key="k", timeout=60))
    await clock.advance(60)
    print(await task, len(app._collector._views[0].history._samples), flush=True)

def fork(app):
    if pid := os.fork():
        return os.waitpid(pid, 0)
    asyncio._set_running_loop(None)
    try:
        asyncio.run(sampled(app))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(0)

async def serve():
    async with room:
        fork(inspector(room))

if sys.argv[1] == "at import":
    fork(inspector(room))
else:
    asyncio.run(serve())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork()")
@pytest.mark.parametrize("when", ["at import", "while the loop runs"])
def test_the_purgatory_of_an_inspector_is_usable_after_a_fork(when: str) -> None:
    """The inspector's own task on the timer is no work of the parent: the child waits, and takes its own samples."""
    script = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK, when]
    done = subprocess.run(script, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr) == ("False 7\n", "")


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
        (
            lambda room: inspector(Purgatory("x" * 130 + "a"), Purgatory("x" * 130 + "b")),
            ValueError,
            "different names in their first 119 characters, .* got two that are shown as 'x{119}…'",
        ),
        (lambda room: inspector(Purgatory("a\n"), Purgatory(r"a\n")), ValueError, "escaped, got two that are shown as"),
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
