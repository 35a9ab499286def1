"""The alert rules and the dashboard: valid, tested by Prometheus itself, and about metrics that exist."""

import copy
import enum
import json
import re
import shutil
import subprocess
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import pytest

from tests.parts import missing

METRICS = Path(__file__).parents[1] / "docs" / "metrics"


def promtool(*arguments: str, cwd: Path = METRICS) -> str:
    """Return the output of promtool, which must succeed."""
    program = shutil.which("promtool")
    if program is None:
        missing("promtool is not installed: apt-get install prometheus")
    result = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    """Prometheus accepts the rules, and its unit tests of them pass."""
    assert "9 rules found" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts-test.yml")


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    """Each alert of the rules is expected to fire in one of the unit tests."""
    rules = set(re.findall(r"- alert: (\w+)", (METRICS / "alerts.yml").read_text()))
    tests = (METRICS / "alerts-test.yml").read_text()
    fired = {alert for alert in rules if re.search(rf"alertname: {alert}\n\s+exp_alerts:\n\s+- exp_labels", tests)}
    assert fired == rules
    assert len(rules) == 9


def test_a_rule_that_is_wrong_is_found(tmp_path: Path) -> None:
    """The unit tests fail for a rule with another bound."""
    rules = (METRICS / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(rules.replace("> 0.1\n", "> 0.5\n"))
    shutil.copy(METRICS / "alerts-test.yml", tmp_path)
    with pytest.raises(AssertionError, match="PurgatoryLate"):
        promtool("test", "rules", "alerts-test.yml", cwd=tmp_path)


def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """Prometheus parses each query of each panel."""
    panels = json.loads((METRICS / "grafana-dashboard.json").read_text())["panels"]
    queries = [target["expr"].replace("$purgatory", ".*") for panel in panels for target in panel["targets"]]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", "rules.json", cwd=tmp_path)


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    """Each panel has its own id and place within the 24 columns of Grafana, and names a data source that is chosen."""
    dashboard = json.loads((METRICS / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 18
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        assert panel["description"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def problems_of(dashboard: dict[str, Any]) -> list[str]:
    """Return where the dashboard differs from Grafana's schema: unknown fields, and values of a wrong type.

    The classes of the package are generated from the schema.  A field that they do not know is lost when they read and
    write a dashboard.
    """
    reason = "grafana-foundation-sdk is not installed"
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=reason)
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=reason)
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=reason)
    plugins.register_default_plugins()  # the options of panels, and the queries of Prometheus
    read = models.Dashboard.from_json(copy.deepcopy(dashboard))
    written = json.loads(encoder.JSONEncoder().encode(read))
    return [*lost(dashboard, written, "dashboard"), *wrong(read, models.Dashboard, "dashboard")]


def lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield each part of the first value that the second one lacks."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after[name], f"{path}.{name}") if name in after else [f"{path}.{name} is unknown"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}[{place}]")
    elif before != after:
        yield f"{path} is {before!r}, and became {after!r}"


def wrong(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Yield each value that is not of the type of its field."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, UnionType):
        found = [list(wrong(value, argument, path)) for argument in arguments]
        yield from [] if [] in found else min(found, key=len)
    elif kind is typing.Literal:
        yield from [] if value in arguments else [f"{path} is {value!r}"]
    elif kind is list:
        if not isinstance(value, list):
            yield f"{path} is {value!r}, and no list"
            return
        for place, item in enumerate(value):
            yield from wrong(item, arguments[0], f"{path}[{place}]")
    elif kind is dict:
        yield from [] if isinstance(value, dict) else [f"{path} is {value!r}, and no object"]
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from [] if value in [one.value for one in hint] else [f"{path} is {value!r}"]
    elif hint in (str, bool, int, NoneType):
        yield from [] if type(value) is hint else [f"{path} is {value!r}, and no {hint.__name__}"]
    elif hint is float:
        yield from [] if type(value) in (int, float) else [f"{path} is {value!r}, and no number"]
    elif isinstance(value, typing.cast("type", hint) if isinstance(hint, type) else object):
        for name, field in typing.get_type_hints(type(value)).items():
            yield from wrong(getattr(value, name), field, f"{path}.{name}")
    else:
        yield f"{path} is {value!r}"


def test_the_dashboard_has_the_schema_of_grafana() -> None:
    """Grafana knows each field of the dashboard, and each value has the type of its field."""
    assert problems_of(json.loads((METRICS / "grafana-dashboard.json").read_text())) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda it: it["panels"][0].update(titel="x"), "dashboard.panels[0].titel is unknown"),
        (lambda it: it["panels"][0].update(title=7), "dashboard.panels[0].title is 7, and no str"),
        (lambda it: it["panels"][1]["targets"][0].update(expression="x"), "targets[0].expression is unknown"),
        (lambda it: it["panels"][1]["gridPos"].update(x="left"), "grid_pos.x is 'left', and no int"),
        (lambda it: it.update(schemaVersion="39"), "dashboard.schema_version is '39', and no int"),
    ],
)
def test_a_dashboard_with_another_schema_is_found(change: Callable[[Any], None], problem: str) -> None:
    """A field that is unknown, and a value of a wrong type, are named."""
    dashboard = json.loads((METRICS / "grafana-dashboard.json").read_text())
    change(dashboard)
    assert any(problem in found for found in problems_of(dashboard)), problems_of(dashboard)
