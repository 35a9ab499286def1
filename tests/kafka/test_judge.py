"""The real broker and the example answer alike, but for the differences that are listed."""

import re
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("aiokafka", reason="the extra 'test' is not installed")
pytest.importorskip("confluent_kafka", reason="the extra 'test' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from examples.broker.protocol.error_codes import Code
from examples.group.error_codes import ErrorCode
from tests.kafka.differences import DIFFERENCES, NOT_COMPARED, markdown, not_compared
from tests.kafka.jars import jars
from tests.kafka.judge import RAISED, WIRE, Compared, compare, ours, real, table, unexplained
from tests.kafka.scenarios import CLIENT_SCENARIOS, SCENARIOS, Side

DOCS = Path(__file__).parents[2] / "docs" / "broker.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # the clients' own: sockets that their threads leave to the collector
def test_every_scenario_ends_alike_or_as_the_list_says() -> None:
    """Codes, offsets, order and classes of time, line by line, by hand and with each client."""
    jars()
    with real() as make_real, ours() as make_ours:
        results = compare(make_real, make_ours)
    assert unexplained(results) == []
    assert len(results) >= len(SCENARIOS) + len(CLIENT_SCENARIOS)
    seen = set(re.findall(r"\b[A-Z][A-Z_]+\b", " ".join(line for result in results for line in result.ours)))
    codes = {code.name for code in (*Code, *ErrorCode)}
    assert codes - seen == NOT_COMPARED.keys(), "every error code that a client can provoke is provoked"


def test_a_difference_that_is_not_listed_is_found() -> None:
    """So is an entry without a difference, one with other lines, and a scenario that did not get to its end."""
    ((name, client), known), *_ = DIFFERENCES.items()
    listed = Compared(name, client, [pair[0] for pair in known.pairs], [pair[1] for pair in known.pairs])
    assert unexplained([listed]) == []
    assert unexplained([Compared("new", WIRE, ["a"], ["b"])]) == ["new, wire: the difference is not listed"]
    assert unexplained([Compared("new", WIRE, ["a", "b"], ["a"])]) == ["new, wire: the difference is not listed"]
    assert unexplained([Compared(name, client, ["a"], ["b"])]) == [f"{name}, {client}: it is another difference"]
    assert unexplained([Compared(name, client, ["a"], ["a"])]) == [f"{name}, {client}: the listed difference is gone"]
    raised = Compared("new", WIRE, [f"{RAISED} Closed"], [f"{RAISED} Closed"])
    assert unexplained([raised]) == ["new, wire: did not get to its end"]
    assert re.search(r"new +different", table([raised]))


def test_the_classes_of_time() -> None:
    """At once is well before the deadline, and nothing may be early."""
    seconds = (0.1, 1.4, 1.6, 2.4, 2.49, 3.0, 6.0)
    found = [Side.when(each, 2500) for each in seconds]
    assert found[:4] == ["at once", "at once", "before the deadline", "before the deadline"]
    assert found[4:] == ["at the deadline", "at the deadline", "long after the deadline"]


def test_the_page_has_the_list() -> None:
    """Every difference and its reason stand in docs/broker.md as they are listed, and the codes without a scenario."""
    page = DOCS.read_text(encoding="utf-8")
    assert markdown() in page
    assert not_compared() in page
