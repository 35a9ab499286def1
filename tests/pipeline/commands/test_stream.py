"""The commands, as they are typed."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")
pytest.importorskip("rich")

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.output.directory import BadOutput
from purgatory.pipeline.stream.job import Settings, check_places, load_conditions, number_of_shards
from purgatory.pipeline.stream.sinks import read_records
from purgatory.pipeline.stream.traces import trace, write_trace
from tests.pipeline.stream.engines import ends_of_records, in_one_go


def command(tmp_path: Path, name: str = "stream", **more: str) -> list[str]:
    (tmp_path / "rows").mkdir(exist_ok=True)
    words = {"source": str(tmp_path / "rows"), "out": str(tmp_path / "out")}
    if name == "stream":
        words["checkpoint"] = str(tmp_path / "checkpoint")
    words.update(more)
    return [name, *(part for option, value in words.items() for part in (f"--{option.replace('_', '-')}", value))]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"source": "/nowhere/at/all"}, "source must be a directory, or kafka, got /nowhere/at/all"),
        ({"out": "kafka"}, "the kafka sink needs --sink-option kafka.bootstrap.servers=... and topic=..."),
        ({"sink_option": "topic=x"}, "--sink-option is for the kafka sink: out must be kafka, got {tmp}/out"),
    ],
)
def test_what_cannot_be_done_is_said_before_spark_starts(
    tmp_path: Path, more: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 and the reason on standard error."""
    assert main(command(tmp_path, **more)) == 1
    assert said.format(tmp=tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("base", ["{tmp}", "s3a://bucket"])
@pytest.mark.parametrize(
    ("source", "out", "checkpoint", "said"),
    [
        ("rows", "out", "out/checkpoint", "out must not contain {base}/out/checkpoint, which the command reads"),
        ("rows", "checkpoint/out", "checkpoint", "out must lie outside {base}/checkpoint, which the command reads"),
        ("rows", "out", "out", "out must lie outside {base}/out, which the command reads"),
        ("out/rows", "out", "checkpoint", "out must not contain {base}/out/rows, which the command reads"),
        ("rows", "rows/out", "checkpoint", "out must lie outside {base}/rows, which the command reads"),
        ("rows", "out", "rows/checkpoint", "checkpoint must lie outside {base}/rows, which the command reads"),
        ("checkpoint/rows", "out", "checkpoint", "checkpoint must not contain {base}/checkpoint/rows, which the"),
    ],
)
def test_places_within_each_other_are_refused_before_spark_starts(
    tmp_path: Path, base: str, source: str, out: str, checkpoint: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise, the records cannot be read, because their directory has other folders, or the job fails."""
    base = base.format(tmp=tmp_path)
    if not base.startswith("s3a:"):
        (tmp_path / source).mkdir(parents=True)
    places = {"source": f"{base}/{source}", "out": f"{base}/{out}", "checkpoint": f"{base}/{checkpoint}"}
    assert main(command(tmp_path, **places)) == 1
    assert f"error: {said.format(base=base)}" in capsys.readouterr().err
    assert not (tmp_path / checkpoint / "offsets").exists()
    with pytest.raises(BadOutput):
        check_places(
            Settings(places["source"], places["out"], places["checkpoint"])
        )  # the job makes the same check, for callers in Python
    if said.startswith("out must") and "rows" in said:
        assert main(command(tmp_path, "backfill", source=places["source"], out=places["out"])) == 1
        assert f"error: {said.format(base=base)}" in capsys.readouterr().err


def test_kafka_is_no_place(tmp_path: Path) -> None:
    """The name of a topic's side is not compared with directories of that name."""
    check_places(Settings(source="kafka", out="kafka", checkpoint="kafka"))
    check_places(Settings(source="kafka", out=str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint")))


@pytest.mark.parametrize("name", ["state[1]", "a state", "a%20b", "state#", "{state}"])
def test_a_checkpoint_that_spark_cannot_read_again_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's reader of states encodes the path, and finds nothing there when the job continues."""
    for checkpoint in (str(tmp_path / name), f"s3a://b/{name}"):
        assert main(command(tmp_path, checkpoint=checkpoint)) == 1
        assert "error: checkpoint must be a path without " in capsys.readouterr().err


def test_backfill_reads_a_directory_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic is no source of it, which is an error before Spark starts."""
    assert main(command(tmp_path, "backfill", source="kafka")) == 1
    assert "source must be a directory, got kafka" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"delay": "soon"}, "must be a number of seconds, at least 0, got 'soon'"),
        ({"delay": "-1"}, "must be a number of seconds, at least 0, got '-1'"),
        ({"files_per_batch": "0"}, "must be a whole number, at least 1, got '0'"),
        ({"source_option": "subscribe"}, "argument --source-option: must be NAME=VALUE, got text with no =;"),
    ],
)
def test_a_wrong_argument_says_what_was_meant(
    tmp_path: Path, more: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, as for every wrong argument."""
    with pytest.raises(SystemExit, match="2"):
        main(command(tmp_path, **more))
    assert said in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_backfill_decides_a_directory_in_one_batch(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ends of the trace, once, and a second time into the same directory is refused."""
    rows = trace(21, 20)
    write_trace(rows, tmp_path / "rows", files=2)
    words = command(tmp_path, "backfill")
    assert main(words) == 0
    assert "outcomes 120  dead 0" in capsys.readouterr().out
    written = read_records(spark, tmp_path / "out").collect()
    assert ends_of_records((row.record, *row[0:7]) for row in written) == in_one_go(rows)
    assert main(words) == 1
    assert "batches of another run" in capsys.readouterr().err


def mark_as_begun(checkpoint: Path, shards: str | None) -> None:
    (checkpoint / "offsets").mkdir(parents=True)
    if shards is not None:
        (checkpoint / "shards").write_text(shards)


def test_a_checkpoint_goes_on_with_the_shards_that_it_was_begun_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another number, or a checkpoint without any, is an error before Spark starts: groups would lose what waits."""
    plan = Settings(source=str(tmp_path), out=str(tmp_path / "out"), checkpoint=tmp_path / "checkpoint")
    assert number_of_shards(plan) is None
    assert number_of_shards(replace(plan, shards=7)) == 7
    with pytest.raises(ValueError, match="shards must be at least 1, got 0"):
        number_of_shards(replace(plan, shards=0))
    mark_as_begun(plan.checkpoint, "7\n")
    assert number_of_shards(plan) == number_of_shards(replace(plan, shards=7)) == 7
    assert main(command(tmp_path, shards="8")) == 1
    assert "shards must be 7" in capsys.readouterr().err
    mark_as_begun(tmp_path / "old", None)
    assert main(command(tmp_path, checkpoint=str(tmp_path / "old"))) == 1
    assert "checkpoint must be one that was started with shards" in capsys.readouterr().err
    mark_as_begun(tmp_path / "damaged", "")
    assert main(command(tmp_path, checkpoint=str(tmp_path / "damaged"))) == 1
    assert f"got {tmp_path / 'damaged'}, whose file shards has no number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("=", "SyntaxError: invalid syntax (wrong_conditions.py, line 1)"),
        ("raise KeyError('place')", "KeyError: 'place'"),
        (r"raise ValueError('a\nb')", "ValueError: a"),
        ("raise SystemExit('no')", "SystemExit: no"),
    ],
)
def test_a_module_of_conditions_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "wrong_conditions.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_conditions", raising=False)
    with pytest.raises(
        ValueError, match=r"^the module 'wrong_conditions' with conditions cannot be imported: "
    ) as caught:
        load_conditions(["wrong_conditions"])
    assert str(caught.value).endswith(f": {reason}")
