"""The documentation: every Python block runs as written, and prints the text block below it."""

import asyncio
import contextlib
import inspect
import io
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
_ROOMS = {  # texts in blocks, and the optional packages that these blocks need
    "purgatory.otel": "opentelemetry.metrics",
    "purgatory.journal": "pyarrow",
    "fastapi": "fastapi",
    "httpx": "httpx",
    "import anyio": "anyio",
    "from aiohttp": "aiohttp",
    "import grpc": "grpc",
    "from redis": "redis",
    "sqlite+aiosqlite": "aiosqlite",
    "from sqlalchemy": "sqlalchemy",
}
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)


@dataclass
class Block:
    """A Python block and its expected output.  The fence is ``python``; ``py`` is an excerpt that does not run."""

    path: Path
    line: int
    text: str
    prints: str | None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def _blocks(path: Path) -> Iterator[Block]:
    page = path.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(page))
    for number, fence in enumerate(fences):
        if fence["language"] != "python":
            continue
        prints = None
        if number + 1 < len(fences):
            after = fences[number + 1]
            if after["language"] == "text" and not page[fence.end() : after.start()].strip():
                prints = after["text"]
        yield Block(path, page.count("\n", 0, fence.start()) + 1, fence["text"], prints)


BLOCKS = [block for path in PAGES for block in _blocks(path)]


@contextlib.contextmanager
def _module(name: str) -> Iterator[types.ModuleType]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        yield module
    finally:
        del sys.modules[name]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs_as_it_is_written(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs independently; a text block below it is its output."""
    for room, needs in _ROOMS.items():
        if room in block.text:
            pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)
    padding = "\n" * block.line  # so that a traceback names the line of the page
    code = compile(padding + block.text, str(block.path), "exec", dont_inherit=True)
    printed = io.StringIO()
    with _module(f"docs_{block.path.stem.replace('-', '_')}_{block.line}") as module:
        with contextlib.redirect_stdout(printed):
            exec(code, module.__dict__)
        for name, value in list(vars(module).items()):
            if (
                name.startswith("test_")
                and inspect.iscoroutinefunction(value)
                and not inspect.signature(value).parameters
            ):
                asyncio.run(value())
    if block.prints is not None:
        assert printed.getvalue() == block.prints


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_no_conflict_markers(path: Path) -> None:
    """No page contains a marker of a merge or rebase conflict."""
    assert re.findall(r"<{7} |>{7} ", path.read_text(encoding="utf-8")) == []


def test_there_are_pages_and_blocks() -> None:
    """The search finds a page for each feature, with an example that prints something."""
    features = {block.path.stem for block in BLOCKS if block.path.parent.name == "how-to" and block.prints}
    assert features >= {
        "check-soon",
        "extend",
        "introspection",
        "limits",
        "observers",
        "thresholds",
        "timeouts",
        "when-all",
    }


def test_the_page_of_the_relay_requires_the_versions_of_the_extras() -> None:
    """The page lists the oldest version of each client library that the extra for its engine accepts."""
    page = (ROOT / "docs" / "how-to" / "several-workers.md").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra, client in (("postgres", "psycopg"), ("redis", "redis-py"), ("nats", "nats-py")):
        (requirement,) = extras[extra]
        assert f"| {client} {requirement.partition('>=')[2]} or later |" in page
