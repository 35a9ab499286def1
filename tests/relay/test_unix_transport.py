"""Workers of one machine without a server: real processes that are killed, stopped and flooded, and the directory."""

# ruff: noqa: ASYNC240 - a directory of sockets is in memory

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.relay import Notifier, Relay, Transport, UnixTransport
from tests.relay.kit import Worker
from tests.relay.nemesis import run

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system"),
]
ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield the path of a directory that does not exist yet; a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="unix-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "sockets"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the directory that is the shared state."""
    return tmp_path


@pytest.fixture
async def start(directory: Path, state: Path) -> AsyncIterator[Callable[[], Any]]:
    """Yield a function that starts another worker in a process of its own, on the same kind of loop."""
    started: list[Other] = []
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]

    async def launch() -> Other:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.relay.unix_worker", str(directory), str(state), loop,
            cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        other = Other(process)
        started.append(other)
        assert await other.line() == "ready"
        return other

    yield launch
    for other in started:
        await other.kill()


class Other:
    """Another worker."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(60.0):
            return (await self.process.stdout.readline()).decode().strip()

    async def waits(self, key: str) -> None:
        """Let it wait for the key."""
        self.say(f"wait {key}")
        assert await self.line() == f"waits {key}"

    async def statistics(self) -> dict[str, Any]:
        self.say("statistics")
        figures: dict[str, Any] = json.loads(await self.line())
        return figures

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.process._transport.close()  # type: ignore[attr-defined]  # at once, and not in a later turn


@contextlib.asynccontextmanager
async def here(directory: Path, **options: Any) -> AsyncIterator[Relay]:
    """Yield the relay of a worker in this process; only a notice or a reconnect changes anything."""
    options = {"heartbeat": 2.0, "resync_every": 3600.0, **options}
    async with Purgatory[Any]("test") as room, Relay(room, UnixTransport(directory), **options) as relay:
        yield relay


async def until(relay: Relay, predicate: Callable[[], bool]) -> None:
    """Wait until the predicate holds, at the latest after the next reconnect or "check every key"."""
    room = relay._purgatory
    async with asyncio.timeout(30.0):
        while not predicate():
            await room.wait_until(predicate, keys=[object()], timeout=0.05)


def change(state: Path, relay: Relay, key: str) -> None:
    """Change the shared state and check the key."""
    (state / key).touch()
    relay.check(key)


def sockets(directory: Path) -> list[str]:
    """Return the names in the directory."""
    return sorted(path.name for path in directory.iterdir())


# Real processes


async def test_a_check_reaches_every_process(directory: Path, state: Path, start: Callable[[], Any]) -> None:
    """A change in this process answers two others, and a change in one of those answers this one and the third."""
    async with here(directory) as relay:
        others = [await start(), await start()]
        for other in others:
            await other.waits("a")
        change(state, relay, "a")
        assert [await other.line() for other in others] == ["answered a"] * 2
        await others[1].waits("b")
        waiting = asyncio.create_task(relay.wait_until((state / "b").exists, keys=["b"], timeout=30.0))
        await asyncio.sleep(0)
        others[0].say("change b")
        assert await waiting is True
        assert await others[1].line() == "answered b"
        figures = await others[1].statistics()
        assert (figures["losses"], figures["everything_received"], figures["unreadable"]) == (0, 0, 0)
        assert len(sockets(directory)) == 3
        assert relay.statistics().losses == 0


async def test_a_killed_worker_disturbs_nobody(directory: Path, state: Path, start: Callable[[], Any]) -> None:
    """The socket that SIGKILL leaves is removed, no connection counts as lost, and its successor is found."""
    async with here(directory) as relay:
        first, second = await start(), await start()
        await second.waits("a")
        before = sockets(directory)
        await first.kill()
        await until(relay, lambda: len(sockets(directory)) == 2)
        assert set(sockets(directory)) < set(before)
        successor = await start()
        await successor.waits("a")
        change(state, relay, "a")
        assert [await second.line(), await successor.line()] == ["answered a"] * 2
        assert relay.statistics().losses == (await second.statistics())["losses"] == 0
        assert len(sockets(directory)) == 3


async def test_sockets_of_an_application_that_was_killed(directory: Path, start: Callable[[], Any]) -> None:
    """The first worker after a crash of all of them removes what they have left."""
    for other in [await start(), await start()]:
        await other.kill()
    assert len(sockets(directory)) == 2
    async with here(directory) as relay:
        assert relay.connected
        assert len(sockets(directory)) == 1
    assert sockets(directory) == []


async def test_a_process_that_a_killed_worker_has_forked(directory: Path, start: Callable[[], Any]) -> None:
    """It keeps no copy of the sockets, for example in a ProcessPoolExecutor, so the worker's socket refuses."""
    other = await start()
    other.say("fork")
    word, child = (await other.line()).split()
    assert word == "forked"
    try:
        await other.kill()
        async with here(directory):
            assert len(sockets(directory)) == 1
    finally:
        os.kill(int(child), signal.SIGKILL)


async def test_a_forked_process_closes_nothing_of_its_parent(
    directory: Path, state: Path, start: Callable[[], Any]
) -> None:
    """The parent's socket, its connections, and its waits stay as they were."""
    other = await start()
    async with here(directory) as relay:
        other.say("fork")
        _, child = (await other.line()).split()
        try:
            await other.waits("a")
            change(state, relay, "a")
            assert await other.line() == "answered a"
            assert relay.statistics().losses == (await other.statistics())["losses"] == 0
            assert len(sockets(directory)) == 2
        finally:
            os.kill(int(child), signal.SIGKILL)


async def test_a_stopped_worker_blocks_nobody(directory: Path, state: Path, start: Callable[[], Any]) -> None:
    """Megabytes of notices to a stopped worker are dropped, the others are answered meanwhile, and "check every key"
    answers the stopped one when it continues.
    """
    async with here(directory, max_keys=1_000_000) as relay:
        stopped, running = await start(), await start()
        await stopped.waits("a")
        await running.waits("b")
        stopped.process.send_signal(signal.SIGSTOP)
        for number in range(30_000):
            relay.check(f"{number:0100}")
        await until(relay, lambda: not relay._sender)
        change(state, relay, "a")
        change(state, relay, "b")
        assert await running.line() == "answered b"
        transport: Any = relay._transport
        links = transport._links.values()
        await until(relay, lambda: sum(link.behind for link in links) == 1)  # a busy machine reads the megabytes slowly
        assert max(len(link.rest) for link in links) <= transport.max_payload + 1
        stopped.process.send_signal(signal.SIGCONT)
        assert await stopped.line() == "answered a"
        assert (await stopped.statistics())["everything_received"] >= 1
        assert relay.statistics().losses == 0
        await until(relay, lambda: not any(link.rest for link in links))


async def test_closing_while_a_worker_is_busy(directory: Path, state: Path, start: Callable[[], Any]) -> None:
    """What a full socket has not taken is written at the close, for a worker that reads again within a moment."""
    async with here(directory, max_keys=1_000_000) as relay:
        busy = await start()
        await busy.waits("a")
        busy.process.send_signal(signal.SIGSTOP)
        for number in range(30_000):
            relay.check(f"{number:0100}")
        await until(relay, lambda: not relay._sender)
        change(state, relay, "a")
        closing = asyncio.create_task(relay.aclose())
        transport: Any = relay._transport
        while transport._listeners:  # noqa: ASYNC110 - the relay has ended its subscription
            await asyncio.sleep(0)
        assert any(link.rest for link in transport._links.values())
        busy.process.send_signal(signal.SIGCONT)
        assert await busy.line() == "answered a"
        await closing
        assert not transport._links


async def test_a_worker_that_starts_while_another_is_stopped(
    directory: Path, state: Path, start: Callable[[], Any]
) -> None:
    """It is connected at once, and hears what the stopped worker says when it continues."""
    other = await start()
    other.process.send_signal(signal.SIGSTOP)
    async with here(directory) as relay:
        assert relay.connected
        waiting = asyncio.create_task(relay.wait_until((state / "a").exists, keys=["a"], timeout=30.0))
        await asyncio.sleep(0)
        other.say("change a")
        other.process.send_signal(signal.SIGCONT)
        assert await waiting is True
        assert relay.statistics().losses == 0


async def test_the_directory_is_removed(directory: Path, state: Path, start: Callable[[], Any]) -> None:
    """Workers notice it at a ping, begin again in a new directory, and a worker that started meanwhile is found."""
    async with here(directory, heartbeat=0.5) as relay:
        other = await start()
        shutil.rmtree(directory)
        change(state, relay, "a")
        newcomer = await start()
        await other.waits("b")
        await newcomer.waits("b")
        await until(relay, lambda: relay.statistics().losses == 1 and relay.connected)
        assert "was removed from" in str(relay.statistics().last_loss)
        change(state, relay, "b")
        assert [await other.line(), await newcomer.line()] == ["answered b"] * 2
        await until(relay, lambda: len(sockets(directory)) == 3)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert (await newcomer.statistics())["losses"] == 0


# The directory


async def test_only_the_owner_has_access(directory: Path) -> None:
    """The directory has mode 0700 and a socket 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        async with here(directory):
            (name,) = sockets(directory)
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    finally:
        os.umask(before)


async def test_a_directory_that_others_may_write(directory: Path) -> None:
    """The relay is not connected and says why; when the mode is mended, it connects."""
    directory.mkdir()
    directory.chmod(0o777)
    async with here(directory, heartbeat=0.2) as relay:
        assert not relay.connected
        assert "must be writable by its owner only, got mode 0777" in str(relay.statistics().last_loss)
        directory.chmod(0o755)
        await until(relay, lambda: relay.connected)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a directory away")
async def test_the_directory_of_another_user(directory: Path) -> None:
    """The relay is not connected and says why."""
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    async with here(directory) as relay:
        assert not relay.connected
        assert f"must belong to the user of this process (0), got one of user {NOBODY}" in str(
            relay.statistics().last_loss
        )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
async def test_a_process_of_another_user_is_refused(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Even if the modes let it connect, its notices are not read, and its socket is not used."""
    async with here(directory) as relay:
        (name,) = sockets(directory)
        directory.chmod(0o777)
        directory.parent.chmod(0o755)
        (directory / name).chmod(0o777)
        code = textwrap.dedent("""
            import contextlib, os, socket, sys
            os.setuid(65534)
            us, them = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
            us.bind(sys.argv[2])
            us.listen()
            os.chmod(sys.argv[2], 0o777)
            them.connect(sys.argv[1])
            with contextlib.suppress(ConnectionError):
                them.sendall(b'hello 0123456789.sock\\n[1,"","all"]\\n')
                assert them.recv(1) == b""
            print("refused", flush=True)
            sys.stdin.read()
        """)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(directory / name), str(directory / "0123456789.sock"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(30.0):
            printed = await process.stdout.readline()
        transport: Any = relay._transport
        transport._look()
        process.kill()
        await process.communicate()
        assert (relay.statistics().everything_received, list(transport._links)) == (0, [name])
        assert printed == b"refused\n"
        assert "a process of another user was refused" in caplog.text
        assert "is the socket of another user" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small file system")
async def test_a_full_disk(directory: Path) -> None:
    """While the file system has no room for a socket the relay is not connected and says why, and then it connects."""
    directory.mkdir()
    options = "nr_inodes=2,mode=0700"
    if not await asyncio.to_thread(run, "mount", "-t", "tmpfs", "-o", options, "none", str(directory)):
        pytest.skip("no file system can be mounted here")
    try:
        (directory / "full").touch()
        async with here(directory, heartbeat=0.2) as relay:
            assert not relay.connected
            assert "No space left on device" in str(relay.statistics().last_loss)
            (directory / "full").unlink()
            await until(relay, lambda: relay.connected)
    finally:
        await asyncio.to_thread(run, "umount", str(directory))


async def test_a_file_where_the_directory_should_be(directory: Path) -> None:
    """The relay is not connected and says why."""
    directory.touch()
    async with here(directory) as relay:
        assert not relay.connected
        assert "FileExistsError" in str(relay.statistics().last_loss)


async def test_other_files_in_the_directory_stay(directory: Path) -> None:
    """Files that are no sockets, and sockets of other names, are neither used nor removed."""
    directory.mkdir(0o700)
    (directory / "0123456789.sock").touch()
    (directory / "notes.txt").touch()
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(directory / "other.sock"))
    other.close()
    async with here(directory) as relay:
        assert relay.connected
    assert sockets(directory) == ["0123456789.sock", "notes.txt", "other.sock"]


async def test_a_file_of_another_program_with_the_name_of_a_socket(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket of another type, and links that lead nowhere, are ignored with one warning each, however often seen."""
    directory.mkdir(0o700)
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(directory / "0000000000.sock"))
    (directory / "1111111111.sock").symlink_to("1111111111.sock")
    (directory / "file").touch()
    (directory / "2222222222.sock").symlink_to("file/inside")
    sender = UnixTransport(directory)
    async with here(directory) as relay, here(directory) as other:
        assert relay.connected
        for _ in range(3):
            relay._transport._look()  # type: ignore[attr-defined]
            await sender.publish('[1,"","all"]')
        await until(other, lambda: other.statistics().everything_received >= 1)
        assert relay.statistics().losses == other.statistics().losses == 0
    await sender.aclose()
    datagrams.close()
    assert sockets(directory) == [*(f"{number}" * 10 + ".sock" for number in range(3)), "file"]
    warnings = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(warnings) == 3 * 3  # three transports


def test_a_notifier_names_the_worker_that_reads_nothing(directory: Path) -> None:
    """There is no engine: the worker whose socket is full is stopped or hangs."""
    directory.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as stopped, Notifier(UnixTransport(directory), timeout=0.2) as notifier:
        stopped.bind(str(directory / "0123456789.sock"))
        stopped.listen()

        def fill() -> None:
            while True:
                notifier.check("k" * 900)

        with pytest.raises(TimeoutError) as failure:
            fill()
        assert str(failure.value) == "within 0.2 s, these workers have not read the notice: 0123456789.sock"


async def test_a_socket_that_was_never_renamed(directory: Path) -> None:
    """A worker that was killed while it started has left a socket with a temporary name, which is removed later."""
    directory.mkdir(0o700)
    for name in ("0123456789.new", "abcdef0123.new"):
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(directory / name))
        left.close()
    hour_ago = time.time() - 3600
    os.utime(directory / "0123456789.new", (hour_ago, hour_ago))
    async with here(directory):
        assert "0123456789.new" not in sockets(directory)
        assert "abcdef0123.new" in sockets(directory)  # it may be about to be renamed


async def test_the_longest_path() -> None:
    """A directory with the longest path works; one more byte is a ValueError that says so."""
    with tempfile.TemporaryDirectory() as folder:
        longest = folder + "/" + "d" * (107 - 16 - len(folder) - 1)
        if sys.platform != "linux":
            longest = longest[:-4]
        async with here(Path(longest)) as relay:
            assert relay.connected
        with pytest.raises(ValueError, match=r"directory must have an absolute path of at most \d+ bytes, because"):
            UnixTransport(longest + "d")


# The protocol


async def test_a_worker_that_is_alone_is_connected(directory: Path) -> None:
    """There is no engine that could be away, and the ping returns through its own socket."""
    async with here(directory) as relay:
        connection = relay._connection
        assert connection is not None
        await until(relay, lambda: connection.proven)
        assert relay.connected
        assert relay.statistics().peers == 0


async def test_sixteen_workers(directory: Path) -> None:
    """Started together, each hears each, through one connection in each direction; at the end nothing is left."""
    table: dict[Any, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            Worker(None, UnixTransport(directory), table, refreshes=False, heartbeat=5.0, resync_every=3600.0)
            for _ in range(16)
        ]
        await asyncio.gather(*(stack.enter_async_context(worker) for worker in workers))
        transports: list[Any] = [worker.relay._transport for worker in workers]
        await until(workers[0].relay, lambda: all(len(transport._links) == 16 for transport in transports))
        for sender in workers:
            key = id(sender)
            waiting = [worker.waits(key) for worker in workers]
            await asyncio.sleep(0)
            sender.write(key, 1)
            sender.relay.check(key)
            assert all(await asyncio.gather(*waiting))
        for worker in workers:
            figures = worker.relay.statistics()
            assert (figures.losses, figures.everything_received, figures.received) == (0, 0, 15)
    assert sockets(directory) == []
    assert not any(transport._links or transport._listeners for transport in transports)


async def test_a_line_from_any_program(directory: Path, state: Path) -> None:
    """A program that connects and writes a line notifies; a line that cannot be read means "check every key"."""
    async with here(directory) as relay:
        (name,) = sockets(directory)
        for number, line in enumerate([b'[1,"","keys",[["a"]]]\n', b"nonsense\n", b"cut off"]):
            key = "a" if number == 0 else f"other {number}"
            waiting = asyncio.create_task(relay.wait_until((state / key).exists, keys=[key], timeout=30.0))
            await asyncio.sleep(0)
            (state / key).touch()
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(directory / name))
                other.sendall(line)
            assert await waiting is True
        figures = relay.statistics()
        assert (figures.received, figures.unreadable, figures.losses) == (1, 2, 0)


async def test_a_line_that_does_not_end(directory: Path) -> None:
    """A program that writes megabytes without the end of a line is disconnected, and everything is checked."""
    async with here(directory) as relay:
        (name,) = sockets(directory)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(directory / name))

            def write() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        other.sendall(b"x" * 65_536)

            await asyncio.to_thread(write)
        assert relay.statistics().unreadable == 1
        assert relay.connected


async def test_too_many_open_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot open a connection counts as not connected, says why, and connects later."""
    async with here(directory, heartbeat=0.2) as relay:
        transport: Any = relay._transport
        make = socket.socket

        def none_left(*arguments: Any, **options: Any) -> socket.socket:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(socket, "socket", none_left)
        transport._greeted("0123456789.sock")
        await until(relay, lambda: relay.statistics().losses >= 2)
        assert "Too many open files" in str(relay.statistics().last_loss)
        monkeypatch.setattr(socket, "socket", make)
        await until(relay, lambda: relay.connected)


@pytest.mark.parametrize("foreign", ["owner", "mode"])
async def test_publishing_to_the_workers_of_another_user(
    directory: Path, monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    """It raises, because they would refuse the notice; a worker of this user has the same rule."""
    directory.mkdir(0o700)
    (directory / "0123456789.sock").touch()
    if foreign == "mode":
        directory.chmod(0o777)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    said = "must belong to the user of this process" if foreign == "owner" else "must be writable by its owner only"
    sender = UnixTransport(directory)
    for _ in range(2):
        with pytest.raises(PermissionError, match=f"^directory {said}"):
            await sender.publish('[1,"","all"]')
    with Notifier(sender) as notifier, pytest.raises(PermissionError, match=said):
        await asyncio.to_thread(notifier.check, "a")


async def test_publishing_without_listening(directory: Path) -> None:
    """It raises if there has been no worker, succeeds if there is none at the moment, and finds each new worker."""
    sender = UnixTransport(directory)
    with pytest.raises(ConnectionRefusedError, match="no worker has created the directory"):
        await sender.publish('[1,"","all"]')
    for _ in range(2):
        async with here(directory) as first, here(directory) as second:
            await sender.publish('[1,"","all"]')
            for relay in (first, second):
                await until(relay, lambda relay=relay: relay.statistics().everything_received >= 1)  # type: ignore[misc]
        await sender.publish('[1,"","all"]')
    await sender.aclose()


async def test_publishing_without_listening_to_a_stopped_worker(directory: Path, start: Callable[[], Any]) -> None:
    """It returns when the worker has room for the payload again; then the worker has all of them."""
    other = await start()
    other.process.send_signal(signal.SIGSTOP)
    sender = UnixTransport(directory)
    payload = '[1,"","keys",[["' + "x" * 30_000 + '"]]]'
    published = 0

    async def publish() -> None:
        nonlocal published
        while True:
            await sender.publish(payload)
            published += 1

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(publish(), 1.0)
    assert published >= 2
    publishing = asyncio.create_task(sender.publish(payload))
    other.process.send_signal(signal.SIGCONT)
    await asyncio.wait_for(publishing, 30.0)
    await other.waits("a")
    figures = await other.statistics()
    assert figures["received"] + figures["everything_received"] >= published
    await sender.aclose()


async def test_one_transport_serves_one_loop(directory: Path) -> None:
    """A second loop that runs at the same time is refused; after the first has ended, the transport works there."""
    transport = UnixTransport(directory)

    async def publish() -> None:
        await transport.publish('[1,"","all"]')
        await transport.aclose()

    async with Purgatory[Any]("test") as room, Relay(room, transport):
        with pytest.raises(RuntimeError, match="serves one event loop at a time"):
            await asyncio.to_thread(asyncio.run, publish())
    await asyncio.to_thread(asyncio.run, publish())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_transport_whose_loop_was_closed_with_its_relay_running(directory: Path) -> None:
    """It connects at the first attempt in the next loop."""
    transport = UnixTransport(directory)

    async def start(room: Purgatory[Any]) -> Relay:
        return await Relay(room, transport).__aenter__()

    async def again() -> None:
        async with Purgatory[Any]("second") as room, Relay(room, transport) as relay:
            assert (relay.connected, relay.statistics().last_loss) == (True, None)

    loop = asyncio.new_event_loop()
    room = Purgatory[Any]("first")
    relay = loop.run_until_complete(start(room))
    assert relay.connected
    tasks = asyncio.all_tasks(loop)
    loop.close()
    asyncio.run(again())
    for task in tasks:  # otherwise, the destroyed tasks and their coroutines are reported
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, tasks, relay, room
    gc.collect()


async def test_nothing_is_left(directory: Path) -> None:
    """After the relays are closed there are no sockets, files, callbacks or tasks."""
    before = asyncio.all_tasks()
    async with here(directory), here(directory):
        pass
    assert sockets(directory) == []
    assert asyncio.all_tasks() == before
    gc.collect()  # a socket that was left open warns


def test_bad_arguments() -> None:
    """The error states the expected and the passed value."""
    for argument, kind, message in [
        (3, TypeError, "directory must be a str or a path, got 3"),
        (b"/tmp", TypeError, "directory must be a str or a path, got a value of type bytes"),
        ("", ValueError, "directory must be a path, got ''"),
        ("a\0b", ValueError, "directory must be a path, got 'a\\x00b'"),
    ]:
        with pytest.raises(kind) as refused:
            UnixTransport(argument)  # type: ignore[arg-type]
        assert str(refused.value) == message


def test_a_system_without_unix_sockets(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """The error is one line that names the other transports."""
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(RuntimeError) as refused:
        UnixTransport(directory)
    assert "\n" not in str(refused.value)
    assert "use PostgresTransport, RedisTransport, or NatsTransport" in str(refused.value)


def test_what_it_is(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a transport; a relative path is that of the directory at this moment; the repr shows the path."""
    monkeypatch.chdir(directory.parent)
    transport = UnixTransport("sockets")
    assert isinstance(transport, Transport)
    assert repr(transport) == f"<UnixTransport directory={str(directory.parent.resolve() / 'sockets')!r}>"
    assert repr(UnixTransport(directory)) == f"<UnixTransport directory={str(directory)!r}>"
