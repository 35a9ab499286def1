"""The pytest fixtures for users, tested in inner pytest runs."""

import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import purgatory
from purgatory import DelayedOperation

pytest_plugins = ["pytester"]

SERVER = """
    import asyncio
    import pytest
    from purgatory import DelayedOperation, Purgatory

    class Never(DelayedOperation[str]):
        def try_complete(self):
            return False
        def on_complete(self):
            return "timed out" if self.expired else "answered"
"""


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the inner tests import the tested package."""
    monkeypatch.setenv("PYTHONPATH", str(Path(purgatory.__file__).parent.parent))


def _run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makepyfile(textwrap.dedent(SERVER) + textwrap.dedent(body))
    plugins = [] if _installed() else ["-p", "purgatory.pytest_plugin"]
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *plugins, timeout=60)


def _installed() -> bool:
    return any(point.value == "purgatory.pytest_plugin" for point in entry_points(group="pytest11"))


@pytest.mark.slow
def test_a_timeout_is_tested_without_sleeping(pytester: pytest.Pytester) -> None:
    """``virtual_clock`` lets an hour pass at once."""
    result = _run(
        pytester,
        """
        def test_it(virtual_clock, purgatory_leak_check):
            async def main():
                async with Purgatory("server", clock=virtual_clock) as purgatory:
                    task = asyncio.create_task(purgatory.park(Never(3600), ["key"]))
                    await virtual_clock.advance(3599.9)
                    assert not task.done()
                    await virtual_clock.advance(0.1)
                    assert await task == "timed out"
            asyncio.run(main())
        """,
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_what_is_left_parked_fails_the_test(pytester: pytest.Pytester) -> None:
    """The message contains the purgatory and the keys, and only the test that leaves an operation fails."""
    result = _run(
        pytester,
        """
        kept = []

        def leave(clock):
            purgatory = Purgatory("server", clock=clock)
            purgatory.try_complete_else_watch(Never(None), ["orders-0", "orders-1"])
            kept.append(purgatory)

        def test_bad(virtual_clock, purgatory_leak_check):
            leave(virtual_clock)

        def test_innocent(purgatory_leak_check):
            pass

        def test_unchecked(virtual_clock):
            leave(virtual_clock)

        def test_tidy(virtual_clock, purgatory_leak_check):
            leave(virtual_clock)
            kept[-1].cancel_for_key("orders-0")
        """,
    )
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(
        ["*operations were left parked:*", "*<Purgatory 'server' open parked=1*'orders-0' (1)*"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("plugin", "fixture"), [("asyncio", "pytest_asyncio.fixture"), ("anyio", "pytest.fixture")])
def test_a_task_that_is_left_behind_fails_the_test(plugin: str, fixture: str, pytester: pytest.Pytester) -> None:
    """The plugin for asynchronous tests cancels it afterward; a fixture that closes the purgatory answers it."""
    result = _run(
        pytester,
        f"""
        import pytest_asyncio

        pytestmark = [pytest.mark.{plugin}, pytest.mark.usefixtures("purgatory_leak_check")]

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        kept = []

        async def forget(room):
            kept.append(asyncio.create_task(room.wait_until(lambda: False, key="orders-0", timeout=None)))
            await asyncio.sleep(0)
            assert len(room) == 1

        async def test_bad(virtual_clock):
            await forget(Purgatory("bad", clock=virtual_clock))

        async def test_failed(virtual_clock):
            await forget(Purgatory("failed", clock=virtual_clock))
            raise ValueError("this is the reason")

        async def test_tidy(virtual_clock):
            async with Purgatory("tidy", clock=virtual_clock) as room:
                await forget(room)

        @{fixture}
        async def room(virtual_clock):
            async with Purgatory("of a fixture", clock=virtual_clock) as room:
                yield room

        async def test_closed_by_a_fixture(room):
            await forget(room)
        """,
    )
    result.assert_outcomes(passed=3, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*<Purgatory 'bad' open parked=1*'orders-0' (1)*"])


@pytest.mark.slow
def test_the_check_ignores_what_only_looks_like_a_purgatory(pytester: pytest.Pytester) -> None:
    """Dead proxies, mocks and proxies that raise outside a request are no purgatories."""
    result = _run(
        pytester,
        """
        import weakref
        from unittest import mock

        class Lazy:
            @property
            def __class__(self):
                raise RuntimeError("working outside of a request")

        kept = [mock.Mock(spec=Purgatory), Lazy(), weakref.proxy(Lazy())]

        def test_it(purgatory_leak_check):
            kept.append(mock.Mock(spec=Purgatory))
        """,
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_check_sees_what_this_process_holds(pytester: pytest.Pytester) -> None:
    """In the process of the outer run, a purgatory that existed before is ignored."""
    before = purgatory.Purgatory[DelayedOperation[None]]("before")
    before.try_complete_else_watch(_Never(None), ["key"])
    pytester.makeini("[pytest]")
    pytester.makepyfile(
        textwrap.dedent(SERVER)
        + textwrap.dedent(
            """
            kept = []

            def test_bad(virtual_clock, purgatory_leak_check):
                kept.append(Purgatory("left", clock=virtual_clock))
                kept[0].try_complete_else_watch(Never(None), ["orders-0"])

            def test_tidy(virtual_clock, purgatory_leak_check):
                kept.append(Purgatory("tidy", clock=virtual_clock))
            """
        )
    )
    plugins = [] if _installed() else ["-p", "purgatory.pytest_plugin"]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio", *plugins)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*<Purgatory 'left' open parked=1*'orders-0' (1)*"])
    assert "before" not in result.stdout.str()
    before.cancel_for_key("key")


class _Never(DelayedOperation[None]):
    def try_complete(self) -> bool:
        return False
