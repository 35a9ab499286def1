"""``python -m asyncio pstree`` of Python 3.14 shows what parked requests wait for, with the observer ``TaskNames``."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mypy_extensions
import pytest

import purgatory
from purgatory import Purgatory
from purgatory.testing import parked
from purgatory.types import TaskNames
from tests.project.packaging.install import find

PROGRAM = """
import asyncio, sys
from purgatory import Purgatory
from purgatory.types import TaskNames

async def main():
    async with Purgatory("orders", observers=[TaskNames()]) as room:
        async def handler(key):
            await room.wait_until(lambda: False, key=key, timeout=600.0, kind="GET /orders/{id}")

        tasks = [asyncio.create_task(handler(key)) for key in ("order-7", ("tenant", 8))]
        while len(room) < 2:
            await asyncio.sleep(0)
        print("parked", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for task in tasks:
            task.cancel()

asyncio.run(main())
"""
NAMES = ("orders: GET /orders/{id} on order-7", "orders: GET /orders/{id} on ('tenant', 8)")


class Interpreter(NamedTuple):
    """A Python 3.14 or later: the words of its command, and variables of its environment."""

    command: tuple[str, ...]
    variables: dict[str, str]


def interpreters() -> Iterator[Interpreter]:
    """Yield the Pythons of this machine that have the command: this one, an installed one, and Debian's in a folder."""
    if sys.version_info >= (3, 14):
        yield Interpreter((sys.executable,), {})
    for version in ("3.14", "3.15"):
        if (found := find(version, os.environ)) is not None:
            yield Interpreter((str(found),), {})
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    system = cache / "purgatory-pythons" / "sid"  # where .ci/pythons keeps it
    loader, program = system / "lib64" / "ld-linux-x86-64.so.2", system / "usr" / "bin" / "python3.14"
    if loader.exists() and program.exists():  # it runs with its own C library, without chroot
        libraries = system / "usr" / "lib" / "x86_64-linux-gnu"
        command = (str(loader), "--library-path", str(libraries), str(program))
        yield Interpreter(command, {"PYTHONHOME": str(system / "usr")})


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, reading another process needs more rights")
@pytest.mark.timeout(120)
def test_pstree_shows_the_kind_and_the_key_of_parked_requests() -> None:
    """The command reads a running process from outside, and the name of each task has purgatory, kind, and key."""
    interpreter = next(interpreters(), None)
    if interpreter is None:
        pytest.skip("this machine has no Python 3.14")
    if not Path("/proc/self/maps").exists():
        pytest.skip("the command needs /proc, which is not mounted")
    folders = [
        str(Path(file).parents[level]) for file, level in ((purgatory.__file__, 1), (mypy_extensions.__file__, 0))
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **interpreter.variables}
    with subprocess.Popen(
        [*interpreter.command, "-B", "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "parked\n"
        command = [*interpreter.command, "-B", "-m", "asyncio", "pstree", str(process.pid)]
        seen = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        process.communicate("\n", timeout=60)
    if "PermissionError" in seen.stderr:
        pytest.skip("this user must not read the memory of another process")
    assert seen.returncode == 0, seen.stderr
    for name in NAMES:
        assert f"(T) {name}\n" in seen.stdout
    assert process.returncode == 0


@pytest.mark.skipif(sys.version_info < (3, 14), reason="asyncio has call graphs since Python 3.14")
async def test_the_call_graph_shows_the_kind_and_the_key() -> None:
    """``asyncio.print_call_graph`` prints the name that the task has while it waits."""
    async with Purgatory[Any]("orders", observers=[TaskNames()]) as room:
        task = asyncio.ensure_future(
            room.wait_until(lambda: False, key="order-7", timeout=600.0, kind="GET /orders/{id}")
        )
        await parked(room)
        graph: str = asyncio.format_call_graph(task)  # type: ignore[attr-defined,unused-ignore]
        assert f"name={NAMES[0]!r}" in graph
        assert "wait_until" in graph
        task.cancel()
