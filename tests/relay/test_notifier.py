"""The notifier on real engines: without an event loop, in threads, and in processes that are forked."""

import asyncio
import contextlib
import contextvars
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self
from uuid import uuid4

import pytest

from purgatory import Purgatory, PurgatoryClosed
from purgatory.relay import MemoryTransport, Notifier, Relay, Transport
from purgatory.relay import notifier as notifier_module
from purgatory.relay.codec import decode
from purgatory.relay.notices import entries_of
from tests.parts import missing
from tests.relay.engines import ENGINES, SERVERS, Engine, NatsServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Yield a running server of each kind, or skip the test with the reason."""
    kind = ENGINES[request.param]
    reason = kind.missing()
    if reason:
        missing(reason)
    server = kind()
    server.start()
    yield server
    server.close()


ON_SERVERS = pytest.mark.parametrize("engine", SERVERS, indirect=True)


class Listening:
    """A relay in the event loop of another thread, and the notices that it receives."""

    def __init__(self, transport: Transport) -> None:
        self.received: list[tuple[Hashable, float | None]] = []
        self._arrived = threading.Condition()
        self._transport = transport
        self._stop: Callable[[], object] = lambda: None
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._listen(ready)])
        self._thread.start()
        assert ready.wait(30.0)

    async def _listen(self, ready: threading.Event) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        room = Purgatory[Any]("test")
        async with room, Relay(room, self._transport, heartbeat=30.0, resync_every=3600.0) as relay:
            assert relay.connected, relay.statistics().last_loss
            mark = relay._refresher.mark

            def marked(key: Hashable, value: float | None) -> None:
                mark(key, value)
                with self._arrived:
                    self.received.append((key, value))
                    self._arrived.notify_all()

            relay._refresher.mark = marked  # type: ignore[method-assign]
            ready.set()
            await stopped.wait()

    def wait_for(self, number: int) -> list[tuple[Hashable, float | None]]:
        """Return the notices when there are so many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.received) >= number, 30.0), self.received
            return list(self.received)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()


@pytest.fixture
def channel() -> str:
    """The name of a channel that no other test uses."""
    return f"channel_{uuid4().hex}"


def test_a_check_arrives(engine: Engine, channel: str) -> None:
    """Each kind of key arrives once ``check`` has returned, with its value."""
    with Listening(engine.transport(channel)) as listening, Notifier(engine.transport(channel)) as notifier:
        entries: list[tuple[Hashable, float | None]] = [("o-1", None), (17, 3), (("o", ("x", -1)), 2.5), ("ü\0😀", 0)]
        for key, value in entries:
            notifier.check(key, value)
        assert listening.wait_for(len(entries)) == entries
    gc.collect()  # a connection or a loop that was left open warns


def test_it_uses_a_copy(engine: Engine, channel: str) -> None:
    """The transport of a relay that is connected in another thread can be given to a notifier as well."""
    transport = engine.transport(channel)
    with Listening(transport) as listening:
        for number in range(2):
            with Notifier(transport) as notifier:
                notifier.check(number)
        assert listening.wait_for(2) == [(0, None), (1, None)]


def test_threads_share_a_notifier(engine: Engine, channel: str) -> None:
    """Eight threads check at the same time; everything arrives."""
    with Listening(engine.transport(channel)) as listening, Notifier(engine.transport(channel)) as notifier:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(notifier.check, range(80)))
        assert sorted(key for key, _ in listening.wait_for(80)) == list(range(80))  # type: ignore[type-var]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_processes_that_are_forked(engine: Engine, channel: str) -> None:
    """A child makes a connection of its own, also if the parent has one, and ends without harm to the parent's."""
    with Listening(engine.transport(channel)) as listening, Notifier(engine.transport(channel)) as notifier:
        notifier.check("parent")
        for number in range(2):
            pid = os.fork()
            if not pid:
                try:
                    notifier.check(f"child {number}")
                    notifier.close()
                    gc.collect()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            notifier.check(f"parent {number}")
        received = [str(key) for key, _ in listening.wait_for(5)]
        assert sorted(received) == ["child 0", "child 1", "parent", "parent 0", "parent 1"]
        # only the notices of one connection arrive in order
        assert [key for key in received if key.startswith("parent")] == ["parent", "parent 0", "parent 1"]
        assert notifier._has_published


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_while_another_thread_checks() -> None:
    """The child does not inherit the lock of a thread that it does not have."""
    with Notifier(MemoryTransport()) as notifier:
        notifier._lock.acquire()
        pid = os.fork()
        if not pid:
            try:
                notifier.check("child")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        notifier._lock.release()


@ON_SERVERS
def test_the_engine_was_restarted(engine: Engine, channel: str) -> None:
    """A connection that the engine has closed meanwhile is replaced; while the engine is away, ``check`` raises."""
    if engine.given:
        pytest.skip(f"{engine.variable} names a server that is not killed")
    with Notifier(engine.transport(channel)) as notifier:
        notifier.check("a")
        engine.kill()
        try:
            with pytest.raises(Exception, match=r".") as refused:
                notifier.check("b")
            assert not isinstance(refused.value, TimeoutError)
        finally:
            engine.start()
        notifier.check("c")
        engine.kill()
        engine.start()
        with Listening(engine.transport(channel)) as listening:
            notifier.check("d")
            assert listening.wait_for(1) == [("d", None)]


@ON_SERVERS
def test_an_engine_that_stands_still(engine: Engine, channel: str) -> None:
    """``check`` raises TimeoutError, soon after the timeout, and works again when the engine continues."""
    if engine.given:
        pytest.skip(f"{engine.variable} names a server that is not stopped")
    with Notifier(engine.transport(channel), timeout=0.5) as notifier:
        notifier.check("a")
        engine.stop()
        try:
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=r"the engine has not accepted the notice within 0\.5 s"):
                notifier.check("b")
            assert 0.5 <= time.monotonic() - began < 10.0
        finally:
            engine.go_on()
        notifier._timeout = 10.0
        notifier.check("c")


def test_no_engine_at_all() -> None:
    """The error of the client library reaches the caller."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for kind in SERVERS.values():
        if kind.missing() is None:
            server = kind()
            server.given = None
            with (
                Notifier(server.transport("c", server.own_url(port))) as notifier,
                pytest.raises(Exception, match=r"."),
            ):
                notifier.check("a")
    with (
        Notifier(ENGINES["unix"]().transport("c", "/nowhere")) as notifier,
        pytest.raises(ConnectionRefusedError, match="no worker has created the directory"),
    ):
        notifier.check("a")


def test_memory_reaches_the_relays_of_the_same_process() -> None:
    """A MemoryTransport is served: the relay is in the loop of another thread."""
    transport = MemoryTransport()
    with Listening(transport) as listening, Notifier(transport) as notifier:
        notifier.check("a", 3)
        assert listening.wait_for(1) == [("a", 3)]


async def test_in_a_running_loop() -> None:
    """It would block the loop, so it raises RuntimeError that names the relay, and sends nothing."""
    notifier = Notifier(MemoryTransport())
    with pytest.raises(RuntimeError, match=r"use relay\.check, or asyncio\.to_thread"):
        notifier.check("a")
    with pytest.raises(RuntimeError, match=r"use relay\.check_in, or asyncio\.to_thread"):
        notifier.check_in(None, ["a"])
    await asyncio.to_thread(notifier.check, "a")
    await asyncio.to_thread(notifier.close)


async def test_it_can_be_closed_in_a_running_loop() -> None:
    """``close`` ends the transport and the notifier's own loop; the loop of the caller keeps running."""

    class Closing(MemoryTransport):
        closed = False

        def __copy__(self) -> "Closing":
            return self

        async def aclose(self) -> None:
            await asyncio.sleep(0)
            self.closed = True

    transport = Closing()
    with Notifier(transport) as notifier:
        await asyncio.to_thread(notifier.check, "a")
    assert transport.closed
    assert notifier._runner is None
    gc.collect()  # a coroutine or a loop that was left warns
    await asyncio.sleep(0)


# Notifiers that nothing closes


PROGRAM = """
import asyncio, atexit, gc, os, sys, threading
from purgatory.relay import {kind}, Notifier

# "-X dev" makes every loop report slow callbacks, which a busy machine causes.
def patient(loop, init=asyncio.BaseEventLoop.__init__):
    init(loop)
    loop.slow_callback_duration = 60.0

asyncio.BaseEventLoop.__init__ = patient

def checks():
    notifier = Notifier({kind}({url!r}))
    notifier.check("a")
    return notifier

def used_in_a_loop():
    async def main():
        notifier = await asyncio.to_thread(checks)
        del notifier
        gc.collect()
    asyncio.run(main())

def forks():
    notifier = checks()
    pid = os.fork()
    if not pid:
        notifier.check("child")
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    notifier.check("b")
    assert notifier._has_published
    return notifier

def waits():
    notifier = checks()
    print("checked", flush=True)
    sys.stdin.readline()
    return notifier

def checks_at_exit():
    atexit.register(lambda: notifier.check("b"))
    notifier = checks()
    return notifier

*others, last = sys.argv[1:]
for case in others:
    pid = os.fork()
    if not pid:
        break  # the child has the imports already, and ends as a program does
    print(case, os.waitpid(pid, 0)[1], file=sys.stderr, flush=True)
else:
    case = last
match case:
    case "global":
        notifier = checks()
    case "freed":
        checks()
    case "cycle":
        cycle = [checks()]
        cycle.append(cycle)
        del cycle
        gc.collect()
    case "thread":
        thread = threading.Thread(target=checks)
        thread.start()
        thread.join()
    case "loop":
        used_in_a_loop()
    case "fork":
        notifier = forks()
    case "waits":
        notifier = waits()
    case "exit":
        notifier = checks_at_exit()
"""


def program(engine: Engine, *cases: str) -> "subprocess.Popen[str]":
    """Start the program, which uses a notifier and does not close it; it prints every warning about what is left.

    All cases but the last run in children, whose names and exit statuses it prints on standard error.
    """
    transport = engine.transport("c")
    source = PROGRAM.format(kind=type(transport).__name__, url=engine.url)
    arguments = [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", source, *cases]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@ON_SERVERS
def test_a_program_that_does_not_close_its_notifier(engine: Engine) -> None:
    """The connection is closed when the notifier is freed or the program ends, so nothing is reported."""
    cases = ["freed", "cycle", "thread", "loop", "fork", "exit", "global"]
    with program(engine, *cases) as running:
        assert running.communicate(timeout=60.0) == ("", "".join(f"{case} 0\n" for case in cases[:-1]))
        assert running.returncode == 0


@ON_SERVERS
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_program_that_ends_while_the_engine_is_away(engine: Engine, fault: str) -> None:
    """The program ends nevertheless, and nothing is reported."""
    if engine.given:
        pytest.skip(f"{engine.variable} names a server that is not stopped")
    with program(engine, "waits") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "checked\n"
        if fault == "killed":
            engine.kill()
        else:
            engine.stop()
        try:
            assert running.communicate("\n", timeout=60.0) == ("", "")
            assert running.returncode == 0
        finally:
            if fault == "killed":
                engine.start()
            else:
                engine.go_on()


class Closing(MemoryTransport):
    """A transport that records the threads in which it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[int] = []
        self.fails = False

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed.append(threading.get_ident())
        if self.fails:
            raise OSError("it does not close")

    def __copy__(self) -> "Closing":
        return self


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("fails", [False, True])
def test_a_notifier_that_is_freed(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Reference counting frees it, although the context of a call refers to it; its connection is closed at once.

    If that fails, nothing is reported.
    """
    transport = Closing()
    transport.fails = fails
    notifier = Notifier(transport)
    context = contextvars.Context()
    context.run(contextvars.ContextVar[object]("variable").set, notifier)
    context.run(notifier.check, "a")
    gone, runner = weakref.ref(notifier), notifier._runner
    assert runner is not None
    del notifier, context
    assert gone() is None
    assert transport.closed == [threading.get_ident()]
    assert runner.get_loop().is_closed()
    assert caplog.messages == []


def test_a_notifier_that_is_freed_after_an_error() -> None:
    """The error, which refers to its frames, does not keep the notifier alive."""

    class Denying(NatsServer):
        def settings(self) -> list[str]:
            return ['authorization { users = [{user: app, password: x, permissions: {publish: {deny: "denied"}}}] }']

    reason = Denying.missing()
    if reason:
        missing(reason)
    server = Denying()
    if server.given:
        pytest.skip(f"{server.variable} names a server with other settings")
    server.start()
    try:
        notifier = Notifier(server.transport("denied", f"nats://app:x@127.0.0.1:{server.port}"))
        with contextlib.suppress(Exception):
            notifier.check("a")
        assert notifier._runner is not None
        gone = weakref.ref(notifier)
        del notifier
        gc.collect()
        assert gone() is None
    finally:
        server.close()


def check_in_a_thread(notifier: Notifier) -> None:
    """Check a key in a thread that has ended, with its reference to the notifier, when the function returns."""
    thread = threading.Thread(target=notifier.check, args=["a"])
    thread.start()
    thread.join()


async def test_a_notifier_that_is_freed_in_a_running_loop() -> None:
    """Another thread closes the connection, so the loop is not blocked."""
    transport = Closing()
    notifier = Notifier(transport)
    check_in_a_thread(notifier)
    del notifier
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "purgatory-notifier-close":
            thread.join()
    assert len(transport.closed) == 1
    assert transport.closed != [threading.get_ident()]


async def test_a_notifier_that_is_freed_in_a_running_loop_while_the_program_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no thread can be started any longer, the connection is left."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    transport = Closing()
    notifier = Notifier(transport)
    check_in_a_thread(notifier)
    runner = notifier._runner
    assert runner is not None
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        del notifier
        gc.collect()
    assert transport.closed == []
    await asyncio.to_thread(runner.close)


def test_notifiers_at_the_end_of_the_program() -> None:
    """Each one is disconnected, except if a thread uses it; it connects again if it is used after that."""
    idle, busy = Closing(), Closing()
    notifiers = [Notifier(idle), Notifier(busy), Notifier(Closing())]
    for notifier in notifiers[:2]:
        notifier.check("a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(notifiers[1]._lock.acquire).result()
        notifier_module._close_at_exit()
        pool.submit(notifiers[1]._lock.release).result()
    assert (len(idle.closed), len(busy.closed)) == (1, 0)
    notifiers[0].check("b")
    for notifier in notifiers:
        notifier.close()
    assert (len(idle.closed), len(busy.closed)) == (2, 1)


def test_a_task_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``close`` leaves it behind."""
    monkeypatch.setattr(notifier_module, "_CANCEL_S", 0.01)

    class Leaving(MemoryTransport):
        async def publish(self, payload: str) -> None:
            tasks.append(asyncio.create_task(self._never_end()))

        async def _never_end(self) -> None:
            while not released:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()

        def __copy__(self) -> "Leaving":
            return self

    tasks: list[asyncio.Task[None]] = []
    released: list[bool] = []
    notifier = Notifier(Leaving())
    notifier.check("a")
    notifier.close()
    assert not tasks[0].done()
    released.append(True)
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]
    tasks.clear()
    gc.collect()


# Errors


def test_a_notifier_that_others_use_for_too_long() -> None:
    """A thread that cannot have its turn within the timeout gets TimeoutError."""
    notifier = Notifier(MemoryTransport(), timeout=0.05)
    with (
        ThreadPoolExecutor(1) as pool,
        notifier._lock,
        pytest.raises(TimeoutError, match=r"other threads have used the notifier for 0\.05 s"),
    ):
        pool.submit(notifier.check, "a").result()
    notifier.close()


def test_a_notifier_that_is_closed() -> None:
    """``check`` raises PurgatoryClosed; closing twice is allowed; a transport that does not close is left."""

    class Stubborn(MemoryTransport):
        async def aclose(self) -> None:
            raise OSError("it does not close")

        def __copy__(self) -> "Stubborn":
            return Stubborn()

    notifier = Notifier(Stubborn())
    assert repr(notifier).startswith("<Notifier new through ")
    notifier.check("a")
    assert repr(notifier).startswith("<Notifier used through ")
    notifier.close()
    notifier.close()
    assert repr(notifier).startswith("<Notifier closed through ")
    with pytest.raises(PurgatoryClosed, match="the notifier is closed"):
        notifier.check("a")


def test_an_interrupt() -> None:
    """Ctrl+C ends a check that waits for the engine, and the notifier works afterward."""

    class Slow(MemoryTransport):
        hangs = True

        async def publish(self, payload: str) -> None:
            if self.hangs:
                signal.raise_signal(signal.SIGINT)
                await asyncio.get_running_loop().create_future()

        def __copy__(self) -> "Slow":
            return Slow()

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
    with Notifier(Slow()) as notifier:
        try:
            with pytest.raises(KeyboardInterrupt):
                notifier.check("a")
        finally:
            signal.signal(signal.SIGINT, previous)
        notifier._transport.hangs = False  # type: ignore[attr-defined]
        notifier.check("a")


class Limited(MemoryTransport):
    """A transport that learns the limits of its engine when it connects."""

    def __init__(self, *limits: int) -> None:
        super().__init__()
        self.max_payload = 1_000
        self.published: list[str] = []
        self._limits = list(limits)

    async def publish(self, payload: str) -> None:
        if self._limits:
            self.max_payload = self._limits.pop(0)
        if len(payload) > self.max_payload:
            raise ValueError("the payload is too large")
        self.published.append(payload)

    def __copy__(self) -> "Limited":
        return self


@pytest.mark.parametrize("limits", [(100,), (500, 100), (500, 200, 100)])
def test_an_engine_whose_limit_is_known_only_after_connecting(limits: tuple[int, ...]) -> None:
    """The notice is divided again, and each key arrives; an oversized key becomes "check every key"."""
    transport = Limited(*limits)
    with Notifier(transport) as notifier:
        notifier._publish(entries_of([f"order-{number:04}" for number in range(60)]))
        keys = {key for payload in transport.published for key, _ in decode(payload).entries or ()}
        assert keys == {f"order-{number:04}" for number in range(60)}
        transport.published.clear()
        notifier.check("x" * 200)
        assert [decode(payload).entries for payload in transport.published] == [None]
    transport = Limited(50)
    with Notifier(transport) as notifier:
        notifier.check("x" * 200)
        assert [decode(payload).entries for payload in transport.published] == [None]


def test_a_nats_server_with_a_low_limit(channel: str) -> None:
    """The first notice of a notifier may be larger than the server allows."""

    class Small(NatsServer):
        def settings(self) -> list[str]:
            return ["max_payload: 1KB"]

    reason = Small.missing()
    if reason:
        missing(reason)
    server = Small()
    if server.given:
        pytest.skip(f"{server.variable} names a server with other settings")
    server.start()
    try:
        for keys in (["x" * 3_000], [f"order-{number:06}" for number in range(300)]):
            everything = len(keys) == 1
            with (
                Listening(server.transport(channel)) as listening,
                Notifier(server.transport(channel)) as notifier,
            ):
                notifier._publish(entries_of(keys))
                notifier.check("last")
                expected = ["last"] if everything else [*keys, "last"]
                assert [key for key, _ in listening.wait_for(len(expected))] == expected
    finally:
        server.close()


def test_a_payload_that_the_engine_refuses_for_another_reason() -> None:
    """The error reaches the caller; the notice is not sent again without end."""

    class Refusing(Limited):
        async def publish(self, payload: str) -> None:
            self.published.append(payload)
            raise ValueError("no")

    transport = Refusing()
    with Notifier(transport) as notifier, pytest.raises(ValueError, match="no"):
        notifier.check("a")
    assert len(transport.published) == 1


class Signalled(MemoryTransport):
    """A transport during whose ``publish`` the process receives SIGTERM."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.published: list[str] = []
        self.closed = 0
        self._hangs = hangs
        self._sending: asyncio.Lock | None = None  # created in the loop of the notifier

    async def publish(self, payload: str) -> None:
        self._sending = self._sending or asyncio.Lock()
        async with self._sending:
            signal.raise_signal(signal.SIGTERM)
            await (asyncio.get_running_loop().create_future() if self._hangs else asyncio.sleep(0))
            self.published.append(payload)

    async def aclose(self) -> None:
        async with self._sending or asyncio.Lock():
            self.closed += 1

    def __copy__(self) -> "Signalled":
        return self


@contextlib.contextmanager
def on_sigterm(handler: Callable[[], object]) -> Iterator[None]:
    """Call the function when this process receives SIGTERM."""
    previous = signal.signal(signal.SIGTERM, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@pytest.mark.timeout(20)
def test_closing_in_a_signal_handler() -> None:
    """``close`` in a handler that interrupts ``check`` returns; the check ends, and closes the transport."""
    transport = Signalled()
    notifier = Notifier(transport)
    with on_sigterm(notifier.close):
        notifier.check("a")
    assert (len(transport.published), transport.closed) == (1, 1)
    assert repr(notifier).startswith("<Notifier closed through ")
    assert notifier._runner is None
    with pytest.raises(PurgatoryClosed):
        notifier.check("b")
    notifier.close()
    assert transport.closed == 1
    gc.collect()  # a coroutine or a loop that was left warns


@pytest.mark.timeout(20)
def test_a_signal_handler_that_closes_and_exits() -> None:
    """SystemExit ends the check at once, also if the engine does not answer, and the transport is closed."""
    transport = Signalled(hangs=True)
    notifier = Notifier(transport, timeout=60.0)

    def leave() -> None:
        notifier.close()
        sys.exit(3)

    with on_sigterm(leave), pytest.raises(SystemExit):
        notifier.check("a")
    assert (transport.published, transport.closed) == ([], 1)
    assert notifier._runner is None
    gc.collect()


@pytest.mark.timeout(20)
def test_checking_in_a_signal_handler() -> None:
    """``check`` in a handler that interrupts ``check`` raises, even between two runs of the notifier's loop."""
    refused: list[RuntimeError] = []

    def check() -> None:
        try:
            notifier.check("b")
        except RuntimeError as error:
            refused.append(error)

    transport = Signalled()
    with Notifier(transport) as notifier, on_sigterm(check):
        notifier.check("a")
        transport.publish = lambda _: signal.raise_signal(signal.SIGTERM)  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(TypeError):  # publish has returned no coroutine
            notifier.check("a")
    assert len(transport.published) == 1
    assert "an event loop runs in this thread" in str(refused[0])
    assert "a call to the notifier that this signal handler has interrupted" in str(refused[1])


def test_bad_arguments() -> None:
    """The error states the expected and the passed value, and nothing is sent."""
    with pytest.raises(TypeError, match="transport must have listen, publish, aclose, and max_payload, got 3"):
        Notifier(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0, got 0"):
        Notifier(MemoryTransport(), timeout=0)
    sent: list[str] = []

    class Recording(MemoryTransport):
        async def publish(self, payload: str) -> None:
            sent.append(payload)

        def publish_in_sync(self, connection: Any, payload: str) -> None:
            sent.append(payload)

        def __copy__(self) -> "Recording":
            return Recording()

    notifier = Notifier(Recording())
    calls: list[tuple[Callable[[], None], type[Exception], str]] = [
        (lambda: notifier.check(1.5), TypeError, "a key to relay must be "),
        (lambda: notifier.check("a", float("nan")), ValueError, "a value to relay must be "),
        (lambda: notifier.check("a", "b"), TypeError, "a value to relay must be "),  # type: ignore[arg-type]
        (lambda: notifier.check_in(None, "a"), TypeError, "keys must be an iterable of keys"),
        (lambda: notifier.check_in(None, [True]), TypeError, "a key to relay must be "),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()
    assert sent == []
    notifier.close()
