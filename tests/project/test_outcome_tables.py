"""The tables of the pipeline that name outcomes name each of them."""

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")
pytest.importorskip("matplotlib", reason="the extra 'spark' is not installed")

from purgatory.journal.schema import COMPLETED, ENDED
from purgatory.pipeline.report import incident, page, unusual_intervals, verdicts

NOT_COMPLETED = set(ENDED) - {COMPLETED}


def test_each_outcome_has_a_colour_and_is_better_or_worse() -> None:
    """Without them, a report draws no bar for an outcome, or says only that there are more or fewer."""
    assert set(page.COLOURS) >= set(ENDED)
    assert set(verdicts._GOOD) == set(ENDED)


def test_each_outcome_but_the_good_one_can_be_an_incident() -> None:
    """Otherwise an interval in which all operations end so is not found, or the sentence about it lacks its verb."""
    assert set(unusual_intervals._OUTCOMES) == NOT_COMPLETED
    assert set(incident._VERBS) >= NOT_COMPLETED
