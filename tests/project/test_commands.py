"""The commands in the documentation: each module accepts its command."""

import argparse
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.parts import missing

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_COMMAND = re.compile(r"(?P<quote>`?)(?:\.venv/bin/)?python3? (?P<words>(?:-m [\w.]+|\w+/\w+\.py)[^`\n]*)(?P=quote)")
_INSTALLED = re.compile(r"^(?:\$ )?purgatory (?P<words>[a-z]+ .*)", re.MULTILINE)  # in a block of code
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_OURS = re.compile(r"-m (?:examples|benchmarks|purgatory|tests)\b|\w+/\w+\.py")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of this project in the documentation, with their arguments, in the form of ``python -m``."""
    seen: set[str] = set()
    for path in PAGES:
        page = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
        lines = [found["words"] for found in _COMMAND.finditer(page)]
        lines += [
            f"-m purgatory {found['words']}" for block in _BLOCK.findall(page) for found in _INSTALLED.finditer(block)
        ]
        for line in lines:
            words = [word for word in shlex.split(re.split(r" #| &| \||\)", line)[0]) if not word.startswith("$")]
            command = " ".join(words)
            if _OURS.match(command) and command not in seen:
                seen.add(command)
                yield path.name, words


COMMANDS = list(commands())


class Understood(BaseException):
    """Raised instead of running the command."""


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join(words) for _, words in COMMANDS])
def test_a_command_is_understood(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module exists, and accepts the options and arguments in the documentation."""
    module = words[1] if words[0] == "-m" else words[0].removesuffix(".py").replace("/", ".")
    arguments = words[2:] if words[0] == "-m" else words[1:]
    parse = argparse.ArgumentParser.parse_args

    def only_parse(self: argparse.ArgumentParser, args: Sequence[str] | None = None, *rest: Any) -> NoReturn:
        parse(self, args, *rest)
        raise Understood

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    if "ArgumentParser" not in source_of(module):
        assert arguments == [], f"{page}: {module} takes no arguments"
        return
    try:
        with pytest.raises(Understood):
            main_of(module)()
    except ImportError as error:
        missing(str(error))
    except SystemExit as end:
        if not isinstance(end.__context__, ImportError):
            raise
        missing(str(end))


def main_of(module: str) -> Callable[[], object]:
    """Return the main function that ``python -m`` would call."""
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{module}.__main__")
    main: Callable[[], object] = found.main
    return main


def source_of(module: str) -> str:
    """Return the source that ``python -m`` would run, and that of the module that may parse its arguments."""
    place = ROOT / module.replace(".", "/")
    files = [place.with_suffix(".py"), place / "__main__.py", place / "cli.py"]
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    if not texts and module.partition(".")[0] == "purgatory":
        return "ArgumentParser"  # the package is installed elsewhere, not next to the tests
    assert texts, f"there is no {module}"
    return "\n".join(texts)


def test_the_commands_are_found() -> None:
    """The documentation contains dozens of commands."""
    assert len(COMMANDS) >= 30
    assert any(words[:2] == ["-m", "tests.proof.leaks"] for _, words in COMMANDS)
    assert any(words[:3] == ["-m", "purgatory", "stream"] and "--checkpoint" in words for _, words in COMMANDS)
