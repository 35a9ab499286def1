"""The server that is measured: ``python -m benchmarks.server.app FORM FD`` serves on a socket that it inherits.

It ends when its standard input ends, so it does not outlive the process that started it.

It serves a long poll in Starlette, on uvicorn with uvloop and httptools.  The handlers are the same in every form; only
the wait and the wake-up differ.

==========================  ========================================================================================
``GET /topics/{key}``       waits until there is an entry after ``after``; returns the end of the topic
``POST /topics/{key}``      appends an entry, and wakes the waiting requests; returns the end of the topic
``GET /entered/{number}``   answers once that many requests have begun to wait since the start
``GET /collector``          returns the seconds of CPU time in the garbage collector since the start
==========================  ========================================================================================
"""

import asyncio
import gc
import importlib
import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from purgatory import DelayedOperation, Purgatory
from purgatory.asgi import Wait, purgatory_lifespan
from purgatory.asgi.connection import Connection

__all__ = ["FORMS", "Collector", "Topic", "WithThresholds", "make_app"]

TIMEOUT = 600.0  # seconds; no request may reach its deadline, even in a slow run


class Topic:
    """A topic that keeps only its number of entries, and the object on which an asyncio form waits."""

    def __init__(self) -> None:
        self.end = 0
        self.event = asyncio.Event()
        self.condition = asyncio.Condition()


class Form:
    """One way to write the wait."""

    lifespan: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None

    def __init__(self) -> None:
        self.topics: defaultdict[str, Topic] = defaultdict(Topic)

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        """Wait until the topic has an entry after ``after``.  Return False after the timeout."""
        raise NotImplementedError

    async def wake(self, key: str, topic: Topic) -> None:
        """Wake the requests that the new entry of the topic completes."""
        raise NotImplementedError


class WithWait(Form):
    """``purgatory.asgi.Wait``.  A client that hangs up withdraws its wait, and SIGTERM answers every request."""

    def __init__(self) -> None:
        super().__init__()
        self.room: Purgatory[Any] = Purgatory("topics")
        self.lifespan = purgatory_lifespan(self.room)

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        return await Wait(self.room, request).until(lambda: topic.end > after, keys=(key,), timeout=TIMEOUT)

    async def wake(self, key: str, topic: Topic) -> None:
        self.room.check_and_complete(key)


class WithoutDetection(WithWait):
    """The same, but nothing reads from the connection, so a client that hangs up is not noticed."""

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        request._receive = _NeverRead(request.scope, request.receive)
        return await super().wait(request, key, topic, after)


class _NeverRead(Connection):
    __slots__ = ()

    def watch(self, operation: DelayedOperation[Any]) -> bool:
        return False


class WithThresholds(WithWait):
    """The wait of the program in the README: each request waits for a value, the end of the topic that it needs."""

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        wait = Wait(self.room, request)
        end = await wait.value(lambda: topic.end if topic.end > after else None, keys={key: after + 1}, timeout=TIMEOUT)
        return end is not None

    async def wake(self, key: str, topic: Topic) -> None:
        self.room.check_and_complete(key, topic.end)


class WithEvent(Form):
    """``asyncio.timeout`` and an ``asyncio.Event`` for each key.  A client that hangs up is not noticed."""

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT):
                while topic.end <= after:
                    await topic.event.wait()
        except TimeoutError:
            return False
        return True

    async def wake(self, key: str, topic: Topic) -> None:
        topic.event.set()
        topic.event.clear()


class WithEventAndReader(WithEvent):
    """The same, plus a task that reads from the connection and cancels the handler when the client hangs up."""

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        if topic.end > after:
            return True
        handler = asyncio.current_task()
        assert handler is not None
        reader = asyncio.create_task(_cancel_when_disconnected(handler, request))
        try:
            return await super().wait(request, key, topic, after)
        finally:
            reader.cancel()


async def _cancel_when_disconnected(handler: asyncio.Task[Any], request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    handler.cancel()


class WithCondition(Form):
    """``asyncio.timeout`` and an ``asyncio.Condition`` for each key.  A client that hangs up is not noticed."""

    async def wait(self, request: Request, key: str, topic: Topic, after: int) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT), topic.condition:
                await topic.condition.wait_for(lambda: topic.end > after)
        except TimeoutError:
            return False
        return True

    async def wake(self, key: str, topic: Topic) -> None:
        async with topic.condition:
            topic.condition.notify_all()


FORMS: dict[str, type[Form]] = {
    "wait": WithWait,
    "undetected": WithoutDetection,
    "thresholds": WithThresholds,
    "event": WithEvent,
    "event-reader": WithEventAndReader,
    "condition": WithCondition,
}


class _Entered:
    """The number of requests that have begun to wait."""

    def __init__(self) -> None:
        self.number = 0
        self.wanted = 0
        self.reached = asyncio.Event()

    def one(self) -> None:
        self.number += 1
        if self.number == self.wanted:
            self.reached.set()

    async def until(self, number: int) -> None:
        if self.number < number:
            self.wanted = number
            self.reached.clear()
            await self.reached.wait()


class Collector:
    """The CPU time of the garbage collector since the creation of this object."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._began = now
        else:
            self.seconds += now - self._began


def make_app(form: Form) -> Starlette:
    """Return the application."""
    entered, collector = _Entered(), Collector()

    async def poll(request: Request) -> Response:
        key = request.path_params["key"]
        topic = form.topics[key]
        entered.one()
        if not await form.wait(request, key, topic, int(request.query_params["after"])):
            return Response(status_code=204)
        return Response(str(topic.end))

    async def publish(request: Request) -> Response:
        key = request.path_params["key"]
        topic = form.topics[key]
        topic.end += 1
        await form.wake(key, topic)
        return Response(str(topic.end))

    async def until_entered(request: Request) -> Response:
        await entered.until(request.path_params["number"])
        return Response(str(entered.number))

    async def collected(_: Request) -> Response:
        return Response(repr(collector.seconds))

    routes = [
        Route("/topics/{key}", poll, methods=["GET"]),
        Route("/topics/{key}", publish, methods=["POST"]),
        Route("/entered/{number:int}", until_entered),
        Route("/collector", collected),
    ]
    return Starlette(routes=routes, lifespan=form.lifespan)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Serve until the standard input ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    name, descriptor = sys.argv[1:]
    config = uvicorn.Config(
        make_app(FORMS[name]()),
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        backlog=4096,
        timeout_keep_alive=3600,
    )
    importlib.import_module("uvloop")  # fail here rather than silently use another loop
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main()
