"""One Spark for the whole test run, and journals with known answers."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pipeline.settings import SETTINGS


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session for this machine, as the commands make it, with one partition after a shuffle."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    from purgatory.pipeline.report import one_pass
    from purgatory.pipeline.spark.session import spark_session

    with spark_session("local[2]", SETTINGS) as session, pytest.MonkeyPatch.context() as patch:
        # A task of Spark takes longer than the rows of these tests, so three instead of sixteen add them up.
        patch.setattr(one_pass, "_MOST_PARTS", 3)
        yield session


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, Any]]:
    """A synthetic journal of 20 000 rows in four files, and its known answers."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    from purgatory.pipeline.recipe import Recipe
    from purgatory.pipeline.synthetic_journal import generate

    path = tmp_path_factory.mktemp("made") / "journal"
    recipe = Recipe(20_000, seed=7, rate=150.0, keys=300, dropped=5, rows_per_file=5_000)
    answers = generate(path, recipe)
    assert json.loads((path / "_answers.json").read_text()) == answers
    return path, answers
