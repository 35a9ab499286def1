"""The alert rules and the dashboard: valid, tested by Prometheus itself, and about metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

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
