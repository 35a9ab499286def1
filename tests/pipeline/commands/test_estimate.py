"""The command estimate, and the estimates on Spark."""

import pathlib
import zlib
from collections import Counter
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.replay.bounds import Scenario
from purgatory.pipeline.replay.estimates import estimate_journal
from purgatory.pipeline.report import compute
from purgatory.pipeline.selection import Selection

pytestmark = pytest.mark.timeout(170)
BEGIN_MS = 1_790_000_000_000
END_MS = 1_800_000_000_000


def row(op_id: int, parked: int, finished: int, outcome: str, **more: Any) -> dict[str, Any]:
    made = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "purgatory": "p", "kind": "K", "op_id": op_id}
    made |= {"keys": ["a"], "outcome": outcome, "anchor_ms": BEGIN_MS - 5_000, "parked_at": BEGIN_MS + parked}
    return made | {"finished_at": BEGIN_MS + finished, "deadline": BEGIN_MS + parked + 1_000} | more


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two processes with a purgatory of one name; one file is of an earlier release, one notes refused operations."""
    path = tmp_path_factory.mktemp("estimated") / "journal"
    path.mkdir()
    first = [
        row(1, 0, 400, "completed"),
        row(2, 10, 1_010, "expired"),
        row(3, 20, 300, "expired", expired_by_closing=True),
        row(4, 30, 30, "completed", keys=[]),
    ]
    note = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "dropped", "purgatory": "p", "refused": 7}
    first.append(note | {"anchor_ms": BEGIN_MS, "parked_at": BEGIN_MS, "finished_at": BEGIN_MS + 5})
    second = [row(1, 0, 900, "completed", source="t"), row(2, 100, 200, "expired", source="t")]
    pq.write_table(pa.Table.from_pylist(first, schema=ARROW_SCHEMA), path / "part-1.parquet")
    earlier = pa.Table.from_pylist(second, schema=ARROW_SCHEMA)
    pq.write_table(earlier.drop_columns(["expired_by_closing", "refused"]), path / "part-2.parquet")
    return str(path)


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_processes_are_estimated_apart_and_summed(
    spark: Any, journal: str, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit is one of a process; what was closed has not expired; what was refused is known as a number."""
    for module in ("pieces", "estimates"):
        monkeypatch.setattr(f"purgatory.pipeline.replay.{module}.reads_files", lambda *_: files)
    found = estimate_journal(spark, journal, [Scenario(500), Scenario(2_000), Scenario(max_parked=1)])
    assert found.operations == 6
    figures = ("completed", "expired", "refused", "peak")
    shown = {
        r["scenario"]: [(r[f"{name}_low"], r[f"{name}_high"]) for name in figures] for r in found.table.to_pylist()
    }
    assert shown == {
        "as recorded": [(3, 3), (1, 1), (0, 0), (3, 3)],
        "timeout 0.5 s": [(2, 2), (2, 2), (0, 0), (3, 3)],
        "timeout 2 s": [(3, 4), (0, 1), (0, 0), (3, 3)],
        "max_parked=1": [(3, 3), (0, 0), (3, 3), (1, 1)],
    }
    assert set(found.table["refused_recorded"].to_pylist()) == {7}


def test_the_command_prints_bounds_and_writes_them(
    spark: Any, journal: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Combinations of several options; what cannot be known is said."""
    out = tmp_path / "out"
    arguments = ["estimate", journal, "--timeout", "0.5,2", "--max-parked", "1,9", "--quiet", "--out", str(out)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "In the recording, 7 operations were refused." in said
    assert "timeout 2 s, max_parked=9" in said
    assert "0 to 1" in said
    assert pq.read_table(out / "estimates.parquet").num_rows == 5
    assert "may have completed instead" in (out / "estimate.html").read_text()
    assert "No limit was applied" not in said + (out / "estimate.html").read_text()
    assert main(["estimate", journal, "--split", "key", "--quiet", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "second half" in said
    unlimited = (
        "No limit was applied, because a journal does not record the limits: no operation is refused here, and a"
    )
    assert f"  {unlimited} peak can be higher than max_parked. Apply a limit with --max-parked.\n" in said
    assert unlimited in (out / "estimate.html").read_text()


def test_a_kind_that_no_operation_has_is_an_error(spark: Any, journal: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate would silently be that of no split."""
    for kind in ("other", ""):
        assert main(["estimate", journal, "--split", kind, "--quiet"]) == 1
        assert capsys.readouterr().err == f"error: the journal {journal} has no operations of the kind {kind!r}\n"


def test_settings_that_cannot_be_are_refused(journal: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, before Spark starts."""
    for arguments, said in (
        (["--timeout", "0"], "timeout must be at least 0.001 seconds, got 0"),
        (["--max-parked", "0"], "max_parked must be at least 1, got 0"),
        (["--max-parked-per-key", "-1"], "max_parked_per_key must be at least 1, got -1"),
        ([], "timeout, max-parked, max-parked-per-key, or split must be set, got none of them"),
    ):
        assert main(["estimate", journal, *arguments]) == 1
        assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_refused_operations_count_as_far_as_their_time_overlaps(
    spark: Any, tmp_path: pathlib.Path, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a report; a purgatory that has refused every operation counts too, but not one that is not selected."""
    note = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "dropped", "anchor_ms": BEGIN_MS}
    rows = [
        row(1, 0, 400, "completed"),
        note | {"purgatory": "p", "refused": 1, "parked_at": BEGIN_MS - 90, "finished_at": BEGIN_MS - 1},
        note | {"purgatory": "p", "refused": 20, "parked_at": BEGIN_MS - 9, "finished_at": BEGIN_MS},
        note | {"purgatory": "p", "refused": 50, "parked_at": BEGIN_MS - 40, "finished_at": BEGIN_MS + 60},
        note | {"purgatory": "only refused", "refused": 300, "parked_at": BEGIN_MS + 9, "finished_at": BEGIN_MS + 99},
        note | {"purgatory": "p", "refused": 4_000, "parked_at": BEGIN_MS + 10, "finished_at": BEGIN_MS + 99},
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")
    for module in ("pieces", "estimates"):
        monkeypatch.setattr(f"purgatory.pipeline.replay.{module}.reads_files", lambda *_: files)
    for selection, one, total in (
        # The 50 are spread over 100 ms, the 300 over 90 ms.
        (Selection(BEGIN_MS, BEGIN_MS + 10), 5, 5 + 3),
        (Selection(until_ms=BEGIN_MS + 1), 1 + 20 + 20, 1 + 20 + 20),
        (Selection(BEGIN_MS, purgatories=("p",)), 4_030, 4_030),
        (Selection(), 4_071, 4_371),
    ):
        found = estimate_journal(spark, str(tmp_path), [Scenario(500)], selection=selection)
        assert (set(found.table["refused_recorded"].to_pylist()), found.refused) == ({one}, total), selection


def test_the_command_sums_the_purgatories(
    spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operations with keys in both halves, and refused operations, are counted in all purgatories together."""
    both = ["a", "b", "c", "d"]
    assert len({zlib.crc32(key.encode()) % 2 for key in both}) == 2
    rows = [row(number, 0, 400, "completed", keys=both, purgatory="pq"[number % 2]) for number in range(5)]
    note = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "s", "outcome": "dropped", "anchor_ms": BEGIN_MS}
    note |= {"refused": 7, "parked_at": BEGIN_MS, "finished_at": BEGIN_MS + 9}
    rows += [note | {"purgatory": name} for name in ("p", "q", "r")]
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")
    assert main(["estimate", str(tmp_path), "--split", "key", "--timeout", "1,2", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "  5 operations have keys in both halves and stay in the first half.\n" in said
    assert "  In the recording, 21 operations were refused.\n" in said


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_operations_that_parked_before_since_wait_and_are_not_counted(
    spark: Any, tmp_path: pathlib.Path, files: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They use places of a limit; what ended before only waits if a longer timeout would have let it.  The command
    states it, and that other kinds are left out."""
    rows = [
        row(1, -500, 400, "completed"),
        row(2, -600, -100, "expired", deadline=BEGIN_MS - 100),
        row(3, -50, 0, "pending", finished_at=None),
        row(4, 0, 300, "completed"),
        row(5, 100, 200, "completed"),
        row(6, 0, 900, "completed", kind="L"),
        row(1, -10, 50, "completed", source="t"),
        row(2, -60, -1, "completed", source="u"),
    ]
    path = tmp_path / "journal"
    path.mkdir()
    for number, some in enumerate((rows[:3], rows[3:])):
        pq.write_table(pa.Table.from_pylist(some, schema=ARROW_SCHEMA), path / f"part-{number}.parquet")
    for module in ("pieces", "estimates"):
        monkeypatch.setattr(f"purgatory.pipeline.replay.{module}.reads_files", lambda *_: files)
    selection = Selection(BEGIN_MS, kinds=("K",))
    found = estimate_journal(spark, str(path), [Scenario(2_000), Scenario(max_parked=2)], selection=selection)
    assert found.operations == 2
    figures = ("completed", "expired", "refused", "peak", "mean")
    shown = {
        r["scenario"]: [(r[f"{name}_low"], r[f"{name}_high"]) for name in figures] for r in found.table.to_pylist()
    }
    waited = 400 + 901 + 300 + 100 + 50  # the pending operation waits until 1 ms after the last end, of kind L
    assert shown == {
        "as recorded": [(2, 2), (0, 0), (0, 0), (4, 4), (waited / 900, waited / 900)],
        "timeout 2 s": [(2, 2), (0, 0), (0, 0), (4, 5), (waited / 900, (waited + 901) / 900)],
        "max_parked=2": [(0, 0), (0, 0), (2, 2), (2, 2), ((400 + 901 + 50) / 900, (400 + 901 + 50) / 900)],
    }
    arguments = ["estimate", str(path), "--quiet", "--timeout", "9", "--since"]
    assert main([*arguments, str(BEGIN_MS), "--kind", "K"]) == 0
    said = capsys.readouterr().out
    assert "  Operations that parked before the selected time and still waited in it are among the waiting" in said
    assert (
        "  Operations of other kinds are left out, although they also wait in the purgatory: a limit does not" in said
    )
    assert main([*arguments, str(BEGIN_MS + 101)]) == 1
    assert "has no operations that match: parked since" in capsys.readouterr().err
    assert main(arguments[:-1]) == 0
    said = capsys.readouterr().out
    assert "before the selected time" not in said
    assert "other kinds" not in said


@pytest.mark.parametrize(
    ("change", "since", "counted"),
    [(-6_000, 3_000, 2), (60_000, 66_000, 2), (60_000, 67_001, 1), (60_000, 500, 4)],
)
def test_a_wall_clock_that_was_changed_does_not_change_which_operations_are_counted(
    spark: Any, tmp_path: pathlib.Path, change: int, since: int, counted: int
) -> None:
    """After the change, the files have another anchor; a selection refers to the recorded times."""
    rows = [row(number, at, 100 + at, "completed") for number, at in enumerate((0, 1_000, 5_000))]
    rows.append(row(9, 50, 120, "completed"))  # ends before every selected time, and waits beside another
    for number, own in enumerate((7_000, 12_000), 3):
        at = own + change
        rows.append(row(number, at, at + 100, "completed") | {"anchor_ms": BEGIN_MS - 5_000 + change})
    for number, some in enumerate((rows[:4], rows[4:])):
        pq.write_table(pa.Table.from_pylist(some, schema=ARROW_SCHEMA), tmp_path / f"part-{number}.parquet")
    selection = Selection(BEGIN_MS + since)
    found = estimate_journal(spark, str(tmp_path), [Scenario(120_000), Scenario(max_parked=1)], selection=selection)
    for estimated in found.table.to_pylist():
        assert estimated["completed_high"] == counted
        assert (estimated["peak_low"], estimated["peak_high"]) == (1, 1)
    assert found.operations == counted


def test_a_pending_operation_does_not_wait_longer_by_the_change_of_a_wall_clock(
    spark: Any, tmp_path: pathlib.Path
) -> None:
    """It waits until the last record, 8 seconds later on the process's own clock."""
    pending = row(1, 0, 0, "pending", deadline=BEGIN_MS + 60_000) | {"finished_at": None}
    last = row(2, 8_000, 8_000, "completed")
    write_files(tmp_path, set_clock([pending, last], 8_000, 60_000))
    found = estimate_journal(spark, str(tmp_path), [Scenario(10_000)])
    assert [one["expired_low"] for one in found.table.to_pylist()] == [0, 0]


# Three runs of a server, one after another, each with the purgatories p and q.  The first two have pending operations.
RUNS = (("first", 0, 1_500), ("second", 2_000, 6_000), ("third", 6_500, 9_000))


def runs_of_a_server() -> list[dict[str, Any]]:
    random = Random(16)
    rows = []
    for source, begin, end in RUNS:
        for op_id in range(60):
            parked = random.randrange(begin, end - 300)
            wait, timeout = random.randrange(1, 300), random.choice((None, 50, 100, 250))
            outcome = random.choice(("completed", "cancelled")) if timeout is None or wait < timeout else "expired"
            finished = parked + (wait if outcome != "expired" or timeout is None else timeout)
            purgatory = random.choice("pq")
            due = None if timeout is None else BEGIN_MS + parked + timeout
            rows.append(row(op_id, parked, finished, outcome, source=source, purgatory=purgatory, deadline=due))
        for op_id in range(100, 140 if source == "first" else 109 if source == "second" else 100):
            parked, purgatory = random.randrange(begin, end - 300), "p" if source == "first" else random.choice("pq")
            due = None if op_id % 2 else BEGIN_MS + parked + 20_000
            more = {"source": source, "purgatory": purgatory, "deadline": due, "finished_at": None}
            rows.append(row(op_id, parked, 0, "pending", **more))
    return rows


def set_clock(rows: list[dict[str, Any]], at: int, change: int) -> list[dict[str, Any]]:
    """Return what is recorded of the operations if the process's wall clock is set by ``change``, at ``at``.

    The operations that end then, or later, or are pending, are in files with another anchor."""
    times = ("anchor_ms", "parked_at", "deadline", "finished_at")
    return [
        one
        if (one["finished_at"] or BEGIN_MS + at) < BEGIN_MS + at
        else one | {name: None if one[name] is None else one[name] + change for name in times}
        for one in rows
    ]


def write_files(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """Write a file for each process and each anchor, as a journal does."""
    for source, anchor in sorted({(one["source"], one["anchor_ms"]) for one in rows}):
        mine = [one for one in rows if (one["source"], one["anchor_ms"]) == (source, anchor)]
        pq.write_table(pa.Table.from_pylist(mine, schema=ARROW_SCHEMA), path / f"{source}-{anchor}.parquet")


def recounted(
    rows: list[dict[str, Any]], selection: Selection, purgatory: str, timeout_ms: int | None
) -> tuple[int, int, int, int]:
    """The highest number of waiting operations in a run; the sum of all waits; and when the first and the last wait
    that was recorded began and ended: by looking at every millisecond of the process's own clock."""
    peaks, total, firsts, lasts = [], 0, [], []
    for source in sorted({one["source"] for one in rows}):
        of_source = [one for one in rows if one["source"] == source]
        last_ms, anchor = max(
            ((one["finished_at"] or one["parked_at"]) - one["anchor_ms"], one["anchor_ms"]) for one in of_source
        )
        levels: Counter[int] = Counter()
        for one in of_source:
            if one["purgatory"] != purgatory or one["parked_at"] >= (selection.until_ms or END_MS):
                continue
            since_ms = max(0, (selection.since_ms or 0) - one["anchor_ms"])
            parked = one["parked_at"] - one["anchor_ms"]
            recorded = last_ms if one["finished_at"] is None else one["finished_at"] - one["anchor_ms"]
            if recorded < since_ms:
                continue
            firsts.append(max(parked, since_ms) + anchor)
            lasts.append(recorded + anchor)
            end = recorded + (one["finished_at"] is None)
            if timeout_ms is not None and one["deadline"] is not None:
                end = min(end, parked + timeout_ms)
            levels.update(range(max(parked, since_ms), end))
        peaks.append(max(levels.values(), default=0))
        total += sum(levels.values())
    return max(peaks), total, min(firsts), max(lasts)


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_pending_operations_wait_until_the_last_record_of_their_source(
    spark: Any, tmp_path: pathlib.Path, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As counted in plain Python, and as in a report: with pending operations of a run that ended long before the
    selected time, of one that ended in it, and of one whose last record is of another purgatory or not selected."""
    rows = runs_of_a_server()
    path = tmp_path / "journal"
    path.mkdir()
    write_files(path, rows)
    for module in ("pieces", "estimates"):
        monkeypatch.setattr(f"purgatory.pipeline.replay.{module}.reads_files", lambda *_: files)
    last_of_first = max(one["finished_at"] or one["parked_at"] for one in rows if one["source"] == "first")
    for since_ms, until_ms in (
        (None, None),
        (last_of_first - 1, None),
        (last_of_first, BEGIN_MS + 3_000),
        (last_of_first + 1, BEGIN_MS + 3_000),
        (BEGIN_MS + 4_000, None),
        (BEGIN_MS + 7_000, None),
    ):
        for purgatory in "pq":
            selection = Selection(since_ms, until_ms, (purgatory,))
            # The longest timeout of the recording: it changes only pending operations, and those for certain.
            found = estimate_journal(spark, str(path), [Scenario(250)], selection=selection).table.to_pylist()
            for shown, timeout_ms in zip(found, (None, 250), strict=True):
                peak, total, first_ms, last_ms = recounted(rows, selection, purgatory, timeout_ms)
                assert shown["peak_low"] == peak, (selection, shown)
                assert shown["mean_low"] == pytest.approx(total / (last_ms - first_ms), rel=1e-12), (selection, shown)
            assert found[0]["peak_high"] == found[0]["peak_low"]
            peaks = compute(spark, str(path), selection=selection).tables["peaks"].to_pylist()
            assert [one["peak"] for one in peaks] == [found[0]["peak_low"]]


@pytest.mark.parametrize("change", [700, -700])
@pytest.mark.parametrize("form", ["files", "one file", "rows from Spark"])
def test_waits_are_those_of_the_clocks_of_the_processes(
    spark: Any, tmp_path: pathlib.Path, form: str, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the wall clock was set while two of them ran: early in the first run, so that both purgatories have rows
    from before it and from after it, and late in the second run, so that only one purgatory has rows from after it."""
    rows = runs_of_a_server()
    first, second, third = ([one for one in rows if one["source"] == source] for source, *_ in RUNS)
    last = max(one["finished_at"] for one in second if one["finished_at"] and one["purgatory"] == "q") - BEGIN_MS
    rows = [*set_clock(first, 300, change), *set_clock(second, last, change), *third]
    path = tmp_path / "journal"
    path.mkdir()
    if form == "one file":
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), path / "compacted.parquet")
    else:
        write_files(path, rows)
    for module in ("pieces", "estimates"):
        monkeypatch.setattr(f"purgatory.pipeline.replay.{module}.reads_files", lambda *_: form != "rows from Spark")
    for since_ms in (None, BEGIN_MS + 200, BEGIN_MS + 1_200, BEGIN_MS + 1_500 + change, BEGIN_MS + 5_900):
        for purgatory in "pq":
            selection = Selection(since_ms, purgatories=(purgatory,))
            found = estimate_journal(spark, str(path), [Scenario(250)], selection=selection)
            recorded = [one for one in rows if one["purgatory"] == purgatory and one["parked_at"] >= (since_ms or 0)]
            assert found.operations == len(recorded)
            for shown, timeout_ms in zip(found.table.to_pylist(), (None, 250), strict=True):
                peak, total, first_ms, last_ms = recounted(rows, selection, purgatory, timeout_ms)
                assert shown["peak_low"] == peak, (selection, shown)
                assert shown["mean_low"] == pytest.approx(total / (last_ms - first_ms), rel=1e-12), (selection, shown)


def test_a_process_has_not_ended_if_its_operations_are_pending_after_a_step_of_its_clock(
    spark: Any, tmp_path: pathlib.Path
) -> None:
    """No operation ended after the wall clock was set forward.  The last record is then 500 ms later than the pending
    operations, as in a report."""
    rows = [row(1, 0, 1_000, "completed")]
    rows += [row(n, 500, 0, "pending", deadline=None, finished_at=None) for n in (2, 3)]
    other = row(1, 3_650_000, 3_700_000, "completed", source="t")
    write_files(tmp_path, [*set_clock(rows, 2_000, 3_600_000), other])
    for since, expected in ((3_600_600, 2), (3_601_000, 2), (3_601_001, 1)):
        selection = Selection(BEGIN_MS + since)
        (found,) = estimate_journal(spark, str(tmp_path), [], selection=selection).table.to_pylist()
        assert (found["operations"], found["peak_low"], found["peak_high"]) == (1, expected, expected)


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_no_operation_waits_longer_than_its_process(
    spark: Any, tmp_path: pathlib.Path, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a longer timeout, either: the first process had ended at the beginning of the selected time.  The last
    record of the second one is of another purgatory: until then, its pending operation would have expired."""
    first = [row(n, 0, 100, "expired", deadline=BEGIN_MS + 100) for n in range(3)]
    first += [row(n, 0, 0, "pending", finished_at=None, deadline=None) for n in range(3, 9)]
    second = [
        row(1, 900, 1_000, "expired", source="t", deadline=BEGIN_MS + 1_000),
        row(2, 1_100, 0, "pending", source="t", finished_at=None),
        row(3, 1_100, 1_300, "completed", source="t", purgatory="q"),
    ]
    path = tmp_path / "journal"
    path.mkdir()
    for number, some in enumerate((first, second)):
        pq.write_table(pa.Table.from_pylist(some, schema=ARROW_SCHEMA), path / f"part-{number}.parquet")
    for module in ("pieces", "estimates"):
        monkeypatch.setattr(f"purgatory.pipeline.replay.{module}.reads_files", lambda *_: files)
    selection = Selection(BEGIN_MS + 1_050, purgatories=("p",))
    scenarios = [Scenario(100_000), Scenario(150), Scenario(max_parked=2)]
    found = estimate_journal(spark, str(path), scenarios, selection=selection).table.to_pylist()
    figures = ("expired", "refused", "peak", "mean")
    assert {r["scenario"]: [(r[f"{name}_low"], r[f"{name}_high"]) for name in figures] for r in found} == {
        "as recorded": [(0, 0), (0, 0), (1, 1), (201 / 200, 201 / 200)],
        "timeout 100 s": [(0, 0), (0, 0), (1, 2), (201 / 200, (201 + 251) / 200)],
        "timeout 0.15 s": [(1, 1), (0, 0), (1, 1), (150 / 200, 150 / 200)],
        "max_parked=2": [(0, 0), (0, 0), (1, 1), (201 / 200, 201 / 200)],
    }
