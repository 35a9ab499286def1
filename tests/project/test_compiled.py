"""The check for an extension that is older than its source, and for code that behaves differently when compiled."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import purgatory
from purgatory.compiled import is_compiled, prefer_sources_in_subinterpreter, refuse_stale
from purgatory.core.operation import operation

HOUSE = Path(purgatory.__file__).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A source checkout with one compiled module."""
    (tmp_path / "pyproject.toml").touch()
    package = tmp_path / "purgatory"
    (package / "timer").mkdir(parents=True)
    for name in ("room", "timer/wheel"):
        (package / f"{name}.py").touch()
        (package / f"{name}.cpython-311-x86_64-linux-gnu.so").touch()
        os.utime(package / f"{name}.py", (1, 1))
    return package


def test_a_fresh_extension_is_accepted(checkout: Path) -> None:
    """An extension that is at least as new as its source is used."""
    refuse_stale(True, checkout)


@pytest.mark.parametrize("name", ["room", "timer/wheel"])
def test_a_stale_extension_is_refused(checkout: Path, name: str) -> None:
    """In a checkout, an extension that is older than its source raises ImportError with its name and the remedy."""
    extension = checkout / f"{name}.cpython-311-x86_64-linux-gnu.so"
    os.utime(checkout / f"{name}.py", (10, 10))
    os.utime(extension, (9, 9))
    with pytest.raises(ImportError, match=rf"{Path(name).name}\.py is newer than.*PURGATORY_COMPILE=1"):
        refuse_stale(True, checkout)


def test_an_installed_package_is_left_alone(checkout: Path) -> None:
    """Outside a checkout, the file times are not checked."""
    (checkout.parent / "pyproject.toml").unlink()
    os.utime(checkout / "room.cpython-311-x86_64-linux-gnu.so", (0, 0))
    refuse_stale(True, checkout)


def test_what_runs_interpreted_is_not_looked_for(checkout: Path) -> None:
    """If no extension hides a source, nothing is stale, whatever other files exist."""
    os.utime(checkout / "room.cpython-311-x86_64-linux-gnu.so", (0, 0))
    refuse_stale(False, checkout)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python has a module of subinterpreters since 3.13")
@pytest.mark.parametrize("kind", ["isolated", "legacy"])
def test_a_subinterpreter_parks_and_answers(kind: str) -> None:
    """If a subinterpreter refuses the compiled core, it runs the sources; the main interpreter keeps its own."""
    code = (
        "import asyncio, purgatory\n"
        "async def main():\n"
        "    async with purgatory.Purgatory('test') as room:\n"
        "        return await room.wait_until(lambda: True, keys=['a'], timeout=1.0)\n"
        "assert asyncio.run(main())\n"
    )
    program = (
        "import _interpreters, purgatory\n"
        f"error = _interpreters.exec(_interpreters.create({kind!r}), {code!r})\n"
        "print(error.formatted if error else purgatory.COMPILED)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert result.stdout.strip() == str(purgatory.COMPILED), result.stdout + result.stderr


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The finders of this interpreter, as a copy that a test may change."""
    finders: list[Any] = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    return finders


def refusing(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """Make the import of every module fail with the message."""

    def refuse(name: str) -> None:
        raise ImportError(message)

    monkeypatch.setattr(importlib, "import_module", refuse)


def test_an_interpreter_that_refuses_extensions_finds_the_sources(
    checkout: Path, finders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first finder finds the source beside an extension, for modules of the core only."""
    refusing(monkeypatch, "module purgatory.core.timer.units does not support loading in subinterpreters")
    before = [*finders]
    prefer_sources_in_subinterpreter()
    first, *others = finders
    assert others == before
    folder = [str(checkout / "timer")]
    spec = first.find_spec("purgatory.core.timer.wheel", folder)
    assert spec is not None
    assert spec.origin == str(checkout / "timer" / "wheel.py")
    for name, path in (("purgatory.core.timer.none", folder), ("other.timer.wheel", folder), ("wheel", None)):
        assert first.find_spec(name, path) is None


def test_an_interpreter_that_loads_the_core_keeps_its_finders(
    finders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error of the import is raised, because it is no question of where the module is looked for."""
    before = [*finders]
    prefer_sources_in_subinterpreter()
    assert finders == before
    refusing(monkeypatch, "the file is damaged")
    with pytest.raises(ImportError, match="damaged"):
        prefer_sources_in_subinterpreter()
    assert finders == before


def test_compiled_tells_what_runs() -> None:
    """``purgatory.COMPILED`` is true if and only if the core is an extension."""
    assert purgatory.COMPILED is is_compiled(operation.__file__)
    assert not is_compiled("purgatory/operation.py")
    assert is_compiled("purgatory/operation.cpython-311-x86_64-linux-gnu.so")


def declared(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the class declares with a type, in its body or in a method."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.AnnAssign):
            if isinstance(inner.target, ast.Attribute) and getattr(inner.target.value, "id", "") == "self":
                found.add(inner.target.attr)
            elif isinstance(inner.target, ast.Name) and inner in node.body:
                found.add(inner.target.id)
    return found


@pytest.mark.slow
def test_no_class_declares_what_its_base_has_declared() -> None:
    """A compiled class would store it twice, so writes through the base would not be visible in the subclass."""
    files = [path for path in HOUSE.rglob("*.py") if not {"pipeline", "journal"} & set(path.parts)]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    interpreted = {"SystemTimer"}  # interpreted, on top of the compiled core: its attributes are looked up by name

    def bases(node: ast.ClassDef) -> set[str]:
        names = {base.id for base in node.bases if isinstance(base, ast.Name)} & classes.keys()
        return names.union(*(bases(classes[name]) for name in names))

    assert {"Watch"} <= bases(classes["WatchList"])
    twice = {
        (name, base, *sorted(declared(node) & declared(classes[base])))
        for name, node in classes.items()
        if name not in interpreted
        for base in bases(node)
        if declared(node) & declared(classes[base])
    }
    assert twice == set()
