"""The how-to of the long poll: its commands, run with curl, print what the page shows."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import examples
from examples.long_poll.server_process import ServerProcess
from tests.parts import missing

_ROOT = Path(examples.__file__).resolve().parents[1]


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in this language."""
    page = (_ROOT / "docs" / "long-poll.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def console() -> list[tuple[str, list[str]]]:
    """Return the commands of the page, each with the lines that follow it."""
    commands: list[tuple[str, list[str]]] = []
    for block in blocks("console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            else:
                commands[-1][1].append(line)
    return commands


@pytest.mark.slow
async def test_the_commands_of_the_page_print_what_it_shows() -> None:
    """Every command of the page, in order, against a fresh server."""
    if shutil.which("curl") is None:
        missing("curl is not installed")
    commands = console()
    assert len(commands) >= 9
    async with ServerProcess("--port", "0") as server:
        for command, expected in commands:
            assert "localhost:8080" in command
            here = command.replace("localhost:8080", server.url)
            process = await asyncio.create_subprocess_shell(here, stdout=subprocess.PIPE)
            output, _ = await process.communicate()
            assert output.decode().rstrip("\n").split("\n") == expected, command


def test_the_code_of_the_page_is_the_code_of_the_example() -> None:
    """The code blocks are identical to the example, up to indentation."""
    source = [line.strip() for line in (_ROOT / "examples" / "long_poll" / "app.py").read_text().splitlines()]
    shown = [[line.strip() for line in block.splitlines()] for block in blocks("py")]
    assert len(shown) == 3
    for block in shown:
        assert any(source[start : start + len(block)] == block for start in range(len(source))), block
