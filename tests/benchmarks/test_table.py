"""The table of the benchmarks: budgets that can be missed, alternating samples, figures in the documentation."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import SECTIONS, _Saved, main
from benchmarks.measure import compare, rounds
from benchmarks.report import Results, fill, load
from benchmarks.report import main as report
from benchmarks.row import Budget, Row, Scale, number, number_of, quantile
from benchmarks.server.section import NAMES, Samples, rows_of, shapes


def _row(ours: float = 2.0, ratio: float | None = None, budget: Budget | None = None) -> Row:
    return Row("stall", "what", "ms", ours, "peer", 10.0, ratio, budget=budget)


@pytest.mark.parametrize(
    ("ratio", "met", "verdict"),
    [(12.0, True, "met, 1.20x within"), (10.0, True, "met, 1.00x within"), (8.0, False, "NOT met, 1.25x off")],
)
def test_a_ratio_is_held_to_its_budget(ratio: float, met: bool, verdict: str) -> None:
    """The verdict shows whether the limit is met, and the distance to it."""
    row = _row(ratio=ratio, budget=Budget.ratio_at_least(10))
    assert row.met(compiled=True) is met
    assert row.verdict(compiled=True) == verdict


def test_an_interpreted_core_has_budgets_of_its_own() -> None:
    """A lower limit may apply to the interpreted core, and some budgets apply only to the compiled core."""
    lower = _row(ratio=3.0, budget=Budget.ratio_at_least(10, interpreted=2.5))
    assert (lower.met(compiled=True), lower.met(compiled=False)) == (False, True)
    alone = _row(ours=500.0, budget=Budget.at_most_value(400, compiled_only=True))
    assert (alone.met(compiled=True), alone.met(compiled=False)) == (False, None)
    assert alone.budget_text(compiled=False) == "(compiled)"


def test_a_value_at_most() -> None:
    """A budget for the value applies to our value, not to the ratio."""
    row = _row(ours=6.0, ratio=100.0, budget=Budget.at_most_value(5.0))
    assert row.verdict(compiled=True) == "NOT met, 1.20x off"
    assert _row(ours=0.0, budget=Budget.at_most_value(0.0)).met(compiled=True) is True


def test_samples_are_taken_in_turn_and_the_first_round_is_left_out() -> None:
    """All contenders are measured in each round, so a disturbance affects all; the first round only warms up."""
    order: list[str] = []
    costs = iter(range(100))

    def sampler(name: str) -> float:
        order.append(name)
        return float(next(costs))

    samples = rounds({name: lambda name=name: sampler(name) for name in "ab"}, 2)  # type: ignore[misc]
    assert order == ["a", "b"] * 3
    assert samples == {"a": [2.0, 4.0], "b": [3.0, 5.0]}


def test_the_ratio_is_taken_pair_by_pair() -> None:
    """A round that was slow for both contenders does not change the ratio."""
    samples = {"purgatory": [1.0, 10.0, 1.0], "peer": [3.0, 30.0, 3.0]}
    (row,) = compare("section", "what", "ns", samples)
    assert (row.ours, row.theirs, row.ratio) == (1.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.0123"), (1.5, "1.50"), (99.96, "100.0"), (1234.0, "1,230"), (0, "0")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """Figures are printed with three digits, which is about as exact as they were measured."""
    assert number(value) == text


def test_units_and_quantiles() -> None:
    """A count is printed as an integer, a ratio with its sign; quantiles use the nearest rank."""
    assert number_of(22460, "count") == "22,460"
    assert number_of(2.5, "ratio") == "2.50x"
    assert [quantile([1.0, 2.0, 3.0, 4.0], fraction) for fraction in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 4.0, 4.0]


def test_the_command_says_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    """``--list`` prints every section, and an unknown section is refused with the list of sections."""
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SECTIONS)
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert f"choose from {', '.join(SECTIONS)}" in capsys.readouterr().err


def test_a_section_without_its_package_is_not_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command names the package that the locks are compared with, and does not fail."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "asyncio_keyed_lock" else found(name))
    monkeypatch.setitem(sys.modules, "asyncio_keyed_lock", None)
    assert main(["locks", "--quick", "--here"]) == 0
    assert "locks: not measured: asyncio-keyed-lock is not installed: pip install" in capsys.readouterr().out


def test_a_section_measured_again_replaces_its_own_rows(tmp_path: Path) -> None:
    """The file of ``--json`` keeps the rows of other sections, and accepts no figures of another kind."""
    file = tmp_path / "rows.json"
    saved = _Saved(file, {"cpu": "abacus"}, quick=False)
    saved.replace("timers", [Row("timers", "what", "ns", 1.0)])
    saved.replace("memory", [Row("memory", "bytes of it", "bytes", 3.0)])
    again = _Saved(file, {"cpu": "abacus"}, quick=False)
    again.replace("memory", [Row("memory", "bytes of it", "bytes", 4.0)])
    rows = json.loads(file.read_text())["rows"]
    assert [(row["what"], row["ours"]) for row in rows] == [("what", 1.0), ("bytes of it", 4.0)]
    with pytest.raises(ValueError, match="abacus"):
        _Saved(file, {"cpu": "loom"}, quick=False)
    with pytest.raises(ValueError, match="quick"):
        _Saved(file, {"cpu": "abacus"}, quick=True)


def _save(folder: Path, *, quick: bool = False, ours: float = 2.0) -> None:
    rows = [
        _row(ours=ours, ratio=5.0, budget=Budget.at_most_value(5.0)).as_json(),
        _row(ours=7.0, ratio=5.0).as_json() | {"what": "other"},
    ]
    saved = {"machine": {"core": "compiled", "cpu": "abacus"}, "compiled": True, "quick": quick, "rows": rows}
    (folder / "compiled.json").write_text(json.dumps(saved))


PAGE = "# Title\n\n<!-- figures: {name} -->\nold\n<!-- end of figures -->\n\ntext\n"


def test_figures_reach_the_page(tmp_path: Path) -> None:
    """The text between the marks is replaced by the saved figures, and nothing else is changed."""
    _save(tmp_path)
    filled = fill(PAGE.format(name="stall"), load(tmp_path))
    assert "| what | peer | 10.0 ms | 2.00 ms | 5.00x |\n" in filled
    assert "old" not in filled
    assert filled.startswith("# Title\n")
    assert filled.endswith("<!-- end of figures -->\n\ntext\n")
    assert fill(filled, load(tmp_path)) == filled


def test_the_budgets_of_the_page_say_what_is_not_met(tmp_path: Path) -> None:
    """The page shows every budget that is missed."""
    _save(tmp_path, ours=6.0)
    filled = fill(PAGE.format(name="budgets"), load(tmp_path))
    assert "| what, compared with peer | <= 5.00 ms | 6.00 ms | **not met**, 1.20x off |" in filled
    assert "other" not in filled


def test_the_pages_name_rows_in_plain_words() -> None:
    """A name that is short in the saved runs is complete on the page; the saved runs stay comparable."""
    row = Row("lateness", "lateness p99 at 50,000 expiries/s, asyncio", "ms", 2.0, budget=Budget.at_most_value(5.0))
    for name in ("lateness", "budgets"):
        filled = fill(PAGE.format(name=name), Results({}, {"compiled": [row]}, {}))
        assert "| p99 lateness at 50,000 expirations/s, asyncio |" in filled


def test_a_column_without_a_figure_is_left_out() -> None:
    """A table has no column in which every cell is empty, and the others keep their alignment."""
    rows = [Row("watching", "one key", "ns", 2.0), Row("watching", "three keys", "ns", 4.0)]
    filled = fill(PAGE.format(name="watching"), Results({}, {"compiled": rows, "interpreted": rows[:1]}, {}))
    table = [line for line in filled.splitlines() if line.startswith("|")]
    assert table == [
        "|  | ours, compiled | ours, interpreted |",
        "| --- | --: | --: |",
        "| one key | 2.00 ns | 2.00 ns |",
        "| three keys | 4.00 ns |  |",
    ]


def test_no_table_of_the_documentation_has_an_empty_column() -> None:
    """This holds for every table that the saved runs fill."""
    results = load()
    for name in ("headline", "readme", "readme_zh", "home", "server", "machine", "budgets", "experiment", *SECTIONS):
        for table in re.findall(r"(?:^\|.*\n)+", fill(PAGE.format(name=name), results), re.MULTILINE):
            _, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
            assert all(any(cells) for cells in zip(*lines, strict=True)), f"{name}: {table}"


def test_a_verdict_is_text_that_may_break(tmp_path: Path) -> None:
    """Figures are aligned to the right, where the style sheet keeps a line in one piece; verdicts are not."""
    _save(tmp_path)
    filled = fill(PAGE.format(name="budgets"), load(tmp_path))
    assert "|  | budget, compiled | measured | verdict |\n| --- | --: | --: | :-- |\n" in filled


def test_a_page_that_is_out_of_date_is_found(tmp_path: Path) -> None:
    """``--check`` writes nothing and reports the result in its exit status."""
    _save(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(name="machine"))
    arguments = ["--results", str(tmp_path), "--page", str(page)]
    assert report([*arguments, "--check"]) == 1
    assert "old" in page.read_text()
    assert report(arguments) == 0
    assert "abacus" in page.read_text()
    assert report([*arguments, "--check"]) == 0


def test_figures_of_a_quick_run_are_refused(tmp_path: Path) -> None:
    """The documentation accepts only figures of full runs, with the right kind of core."""
    _save(tmp_path, quick=True)
    with pytest.raises(ValueError, match="quick run"):
        load(tmp_path)
    _save(tmp_path)
    (tmp_path / "compiled.json").rename(tmp_path / "interpreted.json")
    with pytest.raises(ValueError, match="interpreted"):
        load(tmp_path)


def _save_server(folder: Path, kind: str, cost: float) -> None:
    values = {
        form: Samples([cost * (1 + n)], [cost], [2.0], [1.0], [9.0]) for n, form in enumerate(["thresholds", "wait"])
    }
    samples = {form: values.get(form, Samples([60 * cost], [cost], [1.0], [1.0], [9.0])) for form in NAMES}
    rows = [row.as_json() for row in rows_of(shapes(Scale())[0], samples)]
    saved = {"machine": {}, "compiled": kind == "compiled", "quick": False, "rows": rows}
    (folder / f"{kind}.json").write_text(json.dumps(saved))


def test_the_server_has_a_line_for_each_core_and_form(tmp_path: Path) -> None:
    """The page has both kinds of core and the units in the head, and the READMEs the compiled one, in two languages."""
    _save_server(tmp_path, "interpreted", 300.0)
    for name in ("headline", "readme", "readme_zh"):
        assert "python -m benchmarks server" in fill(PAGE.format(name=name), load(tmp_path))
    _save_server(tmp_path, "compiled", 200.0)
    results = load(tmp_path)
    page = fill(PAGE.format(name="server"), results)
    assert page.count("**10,000 requests wait on one key; each publish completes one**") == 1
    assert (
        "|  | core | CPU per request (µs) | ratio | without the garbage collector (µs) |"
        " publish to last answer, median (ms) | memory per waiting connection (bytes) |\n"
    ) in page
    assert "| purgatory, thresholds | compiled | 200 |  | 200 | 1.00 | 2.00 |\n" in page
    assert "| purgatory, thresholds | interpreted | 300 |  | 300 | 1.00 | 2.00 |\n" in page
    assert "| purgatory | compiled | 400 | 2.00x | 200 |" in page
    assert "| purgatory | interpreted | 600 | 2.00x | 300 |" in page
    assert "| asyncio.timeout + Event | compiled | 12,000 | 60.0x | 200 |" in page
    assert "| asyncio.timeout + Event | interpreted | 18,000 | 60.0x | 300 |" in page
    assert page.count("\n| ") == 2 + 2 * len(NAMES)
    for name, first, others in (
        ("headline", "with thresholds", 3),
        ("readme", "the program above", 2),
        ("readme_zh", "上面的程序", 2),
    ):
        page = fill(PAGE.format(name=name), results)
        assert f"{first} | 200 µs |  | 200 µs | 1.00 ms | 2.00 bytes |" in page
        assert page.count("| 12,000 µs | 60.0x | 200 µs | 1.00 ms | 1.00 bytes |") == others
        assert "300 µs" not in page


def test_several_pages_are_filled_or_none(tmp_path: Path) -> None:
    """A page with a name that is unknown leaves the others as they are."""
    _save(tmp_path)
    pages = [tmp_path / "one.md", tmp_path / "two.md"]
    for page, name in zip(pages, ("machine", "nonsense"), strict=True):
        page.write_text(PAGE.format(name=name))
    arguments = ["--results", str(tmp_path), "--page", str(pages[0]), "--page", str(pages[1])]
    assert report(arguments) == 2
    assert "old" in pages[0].read_text()
    pages[1].write_text(PAGE.format(name="stall"))
    assert report([*arguments, "--check"]) == 1
    assert report(arguments) == 0
    assert ["old" in page.read_text() for page in pages] == [False, False]


def test_a_name_without_figures_is_an_error(tmp_path: Path) -> None:
    """An unknown mark is an error instead of an empty table."""
    _save(tmp_path)
    with pytest.raises(ValueError, match="'nonsense'"):
        fill(PAGE.format(name="nonsense"), load(tmp_path))
    assert "Not measured yet" in fill(PAGE.format(name="memory"), load(tmp_path))


def test_a_name_with_underscores_is_code_in_the_documentation() -> None:
    """``__slots__`` outside of code would be bold text without its underscores."""
    row = Row("stall", "what", "ms", 2.0, "a class without __slots__", 10.0, 5.0)
    page = fill(PAGE.format(name="stall"), Results({}, {"compiled": [row]}, {}))
    assert "| what | a class without `__slots__` | 10.0 ms |" in page
