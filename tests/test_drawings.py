"""The pictures of the documentation show what the library does."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from purgatory import Outcome
from purgatory.endings import ENDINGS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def drawings() -> ModuleType:
    """The script that draws them."""
    spec = importlib.util.spec_from_file_location("drawings", DOCS / "drawings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["life.svg", "wheels.svg", "cancelling.svg"])
def test_a_picture_is_what_its_script_draws(drawings: ModuleType, name: str) -> None:
    """The committed file equals a fresh drawing."""
    assert (DOCS / "images" / name).read_text(encoding="utf-8") == drawings.PICTURES[name]()


def test_every_outcome_but_pending_is_an_ending() -> None:
    """The table of endings has each outcome once."""
    assert [ending.outcome for ending in ENDINGS] == [outcome for outcome in Outcome if outcome is not Outcome.PENDING]
