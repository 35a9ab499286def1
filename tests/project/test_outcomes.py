"""Each observer in the package handles every end of an operation."""

import ast
from collections.abc import Iterator
from pathlib import Path

from purgatory.events import Outcome

PACKAGE = Path(__file__).parents[2] / "purgatory"
ENDS = {outcome.name.lower() for outcome in Outcome} - {"pending"}


def _methods(body: list[ast.stmt]) -> Iterator[str]:
    """Return the names of the methods, of which one may be an alias of another: ``failed = expired``."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _observers() -> dict[str, set[str]]:
    """Return the classes with methods for at least two ends, and these methods."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if sum(end in text for end in ENDS) < 2:
            continue  # parsing all files takes a second
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and len(ends := ENDS.intersection(_methods(node.body))) > 1:
                found[f"{path.relative_to(PACKAGE).as_posix()}: {node.name}"] = ends
    return found


def test_an_observer_handles_every_end() -> None:
    """An observer that lacks the method of one outcome would keep what it began when the operation was parked."""
    assert {name: ENDS - ends for name, ends in _observers().items() if ends != ENDS} == {}


def test_the_observers_are_found() -> None:
    """These have a method for each end: the protocol, the base class of the other observers, and the journal."""
    files = {name.partition(":")[0] for name in _observers()}
    assert files >= {"events.py", "aio/end_observer.py", "journal/journal.py"}
