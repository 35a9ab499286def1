"""The pictures in the documentation match the library."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from purgatory import Outcome
from purgatory.core.operation.lifecycle import ENDINGS
from purgatory.relay.connection import State
from tests.project.test_layout import LAYERS, PACKAGE

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def drawings() -> ModuleType:
    """Return the script that draws the pictures."""
    spec = importlib.util.spec_from_file_location("drawings", DOCS / "drawings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "layers.svg",
        "life.svg",
        "wheels.svg",
        "cancelling.svg",
        "wait.svg",
        "workers.svg",
        "sigterm.svg",
        "relay.svg",
    ],
)
def test_a_picture_is_what_its_script_draws(drawings: ModuleType, name: str) -> None:
    """The committed file equals a fresh drawing."""
    assert (DOCS / "images" / name).read_text(encoding="utf-8") == drawings.PICTURES[name]()


def test_every_picture_is_compared(drawings: ModuleType) -> None:
    """The test above has a case for each picture of the script."""
    (mark,) = test_a_picture_is_what_its_script_draws.pytestmark  # type: ignore[attr-defined]
    assert mark.args[1] == list(drawings.PICTURES)


def test_the_picture_of_the_relay_shows_its_states(drawings: ModuleType) -> None:
    """Each state of a connection is drawn once, in the order of the enumeration."""
    assert list(drawings.RELAY) == list(State)


def test_the_picture_of_a_wait_ends_in_outcomes(drawings: ModuleType) -> None:
    """Each end is one of the outcomes, and all outcomes but PENDING occur."""
    outcomes = {outcome for *_, outcome in drawings.ENDS_OF_A_WAIT}
    assert outcomes == {ending.outcome.name for ending in ENDINGS}


def test_every_outcome_but_pending_is_an_ending() -> None:
    """The table of endings contains each outcome once."""
    assert [ending.outcome for ending in ENDINGS] == [outcome for outcome in Outcome if outcome is not Outcome.PENDING]


def test_the_picture_of_the_layers_shows_the_folders_of_the_package(drawings: ModuleType) -> None:
    """The layers are those of the layout test, in the same order; each class is defined in its folder."""
    assert tuple(folder for folder, _, _ in drawings.LAYERS) == LAYERS
    for folder, _, names in drawings.LAYERS:
        source = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / folder).glob("*.py"))
        for name in re.findall(r"\b[A-Z]\w+", names):
            assert f"\nclass {name}" in source, f"{folder} has no class {name}"
    for name in drawings.OPTIONAL:
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), f"there is no {name}"


def test_the_architecture_page_names_files_that_exist() -> None:
    """Each ``folder/file.py`` on the page is a file of the package, or of the tests."""
    page = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`([a-z_/]+\.py)`", page))
    assert len(files) > 10
    assert [name for name in sorted(files) if not ((PACKAGE / name).is_file() or (DOCS.parent / name).is_file())] == []
