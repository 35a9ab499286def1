"""Mistakes in a command's arguments: one line on standard error, before Spark starts."""

import argparse
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

import purgatory
from purgatory.journal.files import ARROW_SCHEMA, data_files
from purgatory.pipeline.__main__ import _parser, main
from purgatory.pipeline.commands.compare import baseline_selection
from purgatory.pipeline.commands.options import check_master, selection_of
from purgatory.pipeline.lake import check_catalog, check_table
from purgatory.pipeline.output.directory import BadOutput
from purgatory.pipeline.spark import session

HERE = pathlib.Path(purgatory.__file__).parents[1]
Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must fail with status 1, one line, and no Spark; returns the line."""

    def start(*_: object) -> NoReturn:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(session, "spark_session", start)

    def run(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 1
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert said.out == ""
        return line

    return run


@pytest.fixture
def journal(made: Any) -> str:
    return str(made[0])


def test_numbers_that_cannot_be_are_refused(refused: Refused, journal: str, tmp_path: pathlib.Path) -> None:
    """How many keys, how long a span, and the settings of a replay: each by name, with what it must be."""
    for name, value, said in (
        ("top", 0, "error: top must be at least 1, got 0"),
        ("top", -3, "error: top must be at least 1, got -3"),
        ("bucket", 0, "error: bucket must be at least 0.001 seconds, got 0"),
        ("bucket", -1, "error: bucket must be at least 0.001 seconds, got -1"),
        ("bucket", "nan", "error: bucket must be at least 0.001 seconds, got nan"),
        ("bucket", "inf", "error: bucket must be at least 0.001 seconds, got inf"),
    ):
        assert refused("report", journal, "--out", tmp_path / "out", f"--{name}={value}") == said
    for name, value, said in (
        ("tick-ms", "0", "error: tick_ms must be whole milliseconds, at least 1, got [0]"),
        ("wheel-size", "1", "error: wheel_size must be at least 2, got [1]"),
        ("sample", "2", "error: sample must be a share, more than 0 and at most 1, got 2.0"),
        ("piece-rows", "0", "error: piece_rows must be at least 1, got 0"),
        ("lateness-ms", "-1", "error: lateness_ms must be at least 0, got -1.0"),
        ("lateness-ms", "nan", "error: lateness_ms must be at least 0, got nan"),
        ("lateness-ms", "inf", "error: lateness_ms must be finite, got inf"),
        ("sample", "nan", "error: sample must be a share, more than 0 and at most 1, got nan"),
        ("tick-ms", "1,86400001", "error: tick_ms must be at most 86,400,000, got [1, 86400001]"),
        ("wheel-size", "2,65537", "error: wheel_size must be at most 65,536, got [2, 65537]"),
        ("piece-rows", "1000000001", "error: piece_rows must be at most 1,000,000,000, got 1000000001"),
    ):
        assert refused("replay", journal, f"--{name}={value}") == said
    many = "99999999999999999999"
    for command in (("report", journal, "--out", tmp_path / "out"), ("compare", journal, journal)):
        assert refused(*command, "--top", many) == f"error: top must be at most 1,000,000, got {many}"
        for option in ("since", "baseline-until"):
            if command[0] == "compare" or option == "since":
                said = f"error: {option} must be a time before the year 10000, got '{many}'"
                assert refused(*command, f"--{option}", many) == said
        for threshold in ("nan", "inf", "-1"):
            said = f"error: threshold must be more than 0 and finite, got {threshold}"
            assert refused(*command, f"--threshold={threshold}") == said
    said = "error: bucket must be at most 31,536,000 seconds, got 1e+300"
    assert refused("report", journal, "--out", tmp_path / "out", "--bucket", "1e300") == said
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_ends_with_the_command_is_refused(
    refused: Refused, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a setting names a catalog that lasts: otherwise, the load would store nothing and report success."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    delta = "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
    for place, *more in (
        ("table:mine",),
        ("table:lake.mine", "--format", "delta", "--conf", delta),
        ("table:mine", "--conf", "spark.sql.catalog.lake=org.example.Catalog"),
    ):
        line = refused("load", journal, "--out", place, *more)
        said = f"error: out must be a table that outlives the command, got {place}, which would be in the memory of"
        assert line.startswith(said)
    with pytest.raises(AssertionError, match="Spark starts"):
        main(["load", journal, "--out", "table:mine", "--conf", "spark.sql.catalogImplementation=hive"])


@pytest.mark.parametrize(
    ("name", "settings", "refused"),
    [
        ("mine", {}, "in the memory"),
        ("`lake.mine`", {"spark.sql.catalog.lake": "a"}, "in the memory"),
        ("spark_catalog.default.mine", {}, "in the memory"),
        ("SPARK_CATALOG.db.mine", {"spark.sql.defaultCatalog": "lake", "spark.sql.catalog.lake": "a"}, "in the memory"),
        ("spark_catalog.db.mine", {"spark.sql.catalog.spark_catalog": "io.unitycatalog.spark.UCSingleCatalog"}, ""),
        ("default.mine", {"spark.sql.catalog.spark_catalog": "io.unitycatalog.spark.UCSingleCatalog"}, ""),
        (
            "default.mine",
            {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
            "in the memory",
        ),
        (
            "default.mine",
            {"spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog"},
            "in the memory",
        ),
        ("lake.db.mine", {"spark.sql.catalog.lake": "a"}, ""),
        ("`a.b`.db.mine", {"spark.sql.catalog.a.b": "a"}, ""),
        ("db.mine", {"spark.sql.defaultCatalog": "lake", "spark.sql.catalog.lake": "a"}, ""),
        ("mine", {"spark.sql.catalogImplementation": "hive"}, ""),
        (
            "mine",
            {
                "spark.sql.catalogImplementation": "hive",
                "spark.sql.warehouse.dir": "file:/tmp/purgatory-spark-x/warehouse",
            },
            "with its files in a temporary directory",
        ),
        ("delta.`/lake/journal`", {}, ""),
        ("", {}, "in the memory"),
    ],
)
def test_which_tables_outlive_a_session(name: str, settings: dict[str, str], refused: str) -> None:
    """Those of a catalog with a setting of its own, of Hive, and those that are directories."""
    if not refused:
        check_catalog(f"table:{name}", settings.get)
        return
    with pytest.raises(BadOutput, match=re.escape(f"outlives the command, got table:{name}, which would be {refused}")):
        check_catalog(f"table:{name}", settings.get)


PATHS = (
    ("journal", "report", "{}", "--out", "out"),
    ("out", "report", "journal", "--out", "{}"),
    ("compare", "report", "journal", "--out", "out", "--compare", "{}"),
    ("baseline", "compare", "{}", "journal"),
    ("journal", "compare", "journal", "{}"),
    ("out", "compare", "journal", "journal", "--out", "{}"),
    ("journal", "replay", "{}"),
    ("out", "replay", "journal", "--out", "{}"),
    ("journal", "estimate", "{}", "--timeout", "1"),
    ("out", "estimate", "journal", "--timeout", "1", "--out", "{}"),
    ("journal", "compact", "{}"),
    ("journal", "load", "{}", "--out", "out"),
    ("out", "load", "journal", "--out", "{}"),
    ("journal", "synthesize", "{}", "--rows", "1"),
    ("source", "stream", "--source", "{}", "--checkpoint", "checkpoint", "--out", "out"),
    ("checkpoint", "stream", "--source", "rows", "--checkpoint", "{}", "--out", "out"),
    ("out", "stream", "--source", "rows", "--checkpoint", "checkpoint", "--out", "{}"),
    ("source", "backfill", "--source", "{}", "--out", "out"),
    ("out", "backfill", "--source", "rows", "--out", "{}"),
)


@pytest.mark.parametrize(("name", "command"), [(name, command) for name, *command in PATHS])
def test_a_path_must_be_a_text_that_arrow_takes(
    refused: Refused, name: str, command: list[str], made: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one, of a variable that is not set, is not the current directory; Arrow needs UTF-8."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "journal").symlink_to(made[0])
    line = refused(*[word.replace("{}", "") for word in command])
    assert line == f"error: {name} must be a path or a URI, got ''"
    line = refused(*[word.replace("{}", "j\udcff") for word in command])
    assert line == f"error: {name} must be a path in UTF-8, which Arrow and Spark need, got b'j\\xff'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "rows"]


@pytest.mark.parametrize("command", [("compact",), ("synthesize", "--rows", "1")], ids=lambda words: words[0])
def test_a_command_without_spark_needs_a_directory_of_this_machine(
    refused: Refused, command: tuple[str, ...], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URI of a store is not taken for the name of a directory."""
    monkeypatch.chdir(tmp_path)
    line = refused(command[0], "s3a://lake/journal", *command[1:])
    assert line == "error: journal must be a directory on this machine, got s3a://lake/journal"
    assert list(tmp_path.iterdir()) == []


def test_every_path_of_every_command_is_checked() -> None:
    """The arguments whose help mentions a directory or a journal are those above."""
    parser = _parser("purgatory")
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found = {
        (action.dest, command)
        for command, options in commands.choices.items()
        for action in options._actions
        if action.metavar in ("DIR", "OTHER") or not action.option_strings
    }
    assert found == {(name, command) for name, command, *_ in PATHS}


def test_the_help_states_what_the_baseline_times_are_by_default() -> None:
    """Those of the journal, but no limit if the other one of the two is given."""
    (commands,) = (a for a in _parser("p")._actions if isinstance(a, argparse._SubParsersAction))
    for command in ("compare", "report"):
        parser = commands.choices[command]
        helped = {action.dest: action.help for action in parser._actions}
        for name, other in (("since", "until"), ("until", "since")):
            default = f"(default: no limit with --baseline-{other}, otherwise --{name})"
            assert str(helped[f"baseline_{name}"]).endswith(default)
            given = ["j", "k"] if command == "compare" else ["j", "--out", "o"]
            given += ["--since", "2026-11-21", "--until", "2026-11-22"]
            options = parser.parse_args(given)
            selection = selection_of(options)
            assert baseline_selection(options, selection) == selection
            options = parser.parse_args([*given, f"--baseline-{other}", "2026-11-20"])
            assert getattr(baseline_selection(options, selection), f"{name}_ms") is None


def test_every_option_has_a_help_that_shows_its_default() -> None:
    """Every option of every command has a help text, and every command a description."""
    parser = _parser("purgatory")
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for command, options in commands.choices.items():
        assert options.description, command
        for action in options._actions:
            assert action.help, (command, action.dest)
            if action.default not in (None, False, [], argparse.SUPPRESS):
                assert "(default: %(default)" in action.help, (command, action.dest)


def test_the_stream_does_not_offer_spark_connect_and_refuses_it(
    refused: Refused, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The help of ``backfill`` has ``--remote``, that of ``stream`` has not; the error says what to do instead."""
    for command in ("stream", "backfill"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert ("--remote" in capsys.readouterr().out) == (command == "backfill")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    places = ("--source", "rows", "--checkpoint", "checkpoint", "--out", "out")
    line = refused("stream", *places, "--remote", "sc://127.0.0.1:15002")
    assert line == "error: the stream cannot run on Spark Connect: submit it to the cluster with spark-submit instead"


@pytest.mark.parametrize("out", ["journal", "./journal/", "journal/report", "link", "link/report", "{uri}"])
@pytest.mark.parametrize(
    "command",
    [
        ("load", "journal"),
        ("report", "journal"),
        ("report", "link"),
        ("report", "after", "--compare", "journal"),
        ("compare", "journal", "after"),
        ("compare", "after", "journal"),
        ("replay", "journal"),
        ("estimate", "journal", "--timeout", "1"),
    ],
    ids=" ".join,
)
def test_results_are_not_written_into_the_journal(
    refused: Refused, journal: str, tmp_path: pathlib.Path, command: tuple[str, ...], out: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Readers would take the Parquet files of the results for files of the journal; links are followed."""
    monkeypatch.chdir(tmp_path)
    for name in ("journal", "after"):
        shutil.copytree(journal, name)
    (tmp_path / "link").symlink_to("journal")
    before = sorted(tmp_path.rglob("*"))
    out = out.format(uri=f"{tmp_path.as_uri()}/journal")
    read = "link" if "link" in command else "journal"
    said = f"error: out must lie outside {read}, which the command reads, got {out}"
    assert refused(*command, "--out", out) == said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("out", ["lake", "link", "."])
def test_a_table_is_not_written_around_the_journal(
    refused: Refused, journal: str, tmp_path: pathlib.Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would replace a folder of a date that is the journal, or has it inside."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(journal, "lake/date=2023-11-14")
    (tmp_path / "link").symlink_to("lake")
    said = f"error: out must not contain lake/date=2023-11-14, which the command reads, got {out}"
    assert refused("load", "lake/date=2023-11-14", "--out", out) == said


@pytest.mark.parametrize(
    ("there", "file_format", "why"),
    [
        (
            "x.parquet",
            "parquet",
            "be a new directory or the table of an earlier load, got {out}, which has x.parquet and no file _purg",
        ),
        (
            "country=de/x.parquet",
            "parquet",
            "be a new directory or the table of an earlier load, got {out}, which has country=de and no file _purg",
        ),
        (
            "date=2023-11-14/x.parquet",
            "parquet",
            "be a new directory or the table of an earlier load, got {out}, which has date=2023-11-14 and no file _",
        ),
        ("_delta_log/0.json", "parquet", "be a table of Parquet files, got {out}, which is a table of Delta Lake"),
        (
            "date=2023-11-14/x.parquet",
            "delta",
            "be a table of Delta Lake or a new directory, got {out}, which has date=",
        ),
        (
            "x.parquet",
            "delta",
            "be a table of Delta Lake or a new directory, got {out}, which has x.parquet and no _del",
        ),
    ],
)
def test_a_load_into_the_directory_of_another_table_is_refused(
    refused: Refused, journal: str, tmp_path: pathlib.Path, there: str, file_format: str, why: str
) -> None:
    """The load would succeed, and neither table could be read afterward."""
    out = tmp_path / "out"
    (out / there).parent.mkdir(parents=True)
    (out / there).write_text("")
    before = sorted(tmp_path.rglob("*"))
    for given in (str(out), out.as_uri()):
        line = refused("load", journal, "--out", given, "--format", file_format)
        assert line.startswith(f"error: out must {why.format(out=given)}")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_files_of_a_table_of_its_own_are_accepted(tmp_path: pathlib.Path) -> None:
    """Folders for dates, hidden files, and the log of Delta Lake; a table in the catalog has no directory."""
    for name in ("date=2023-11-14", "_temporary", ".hidden"):
        (tmp_path / "lake" / name).mkdir(parents=True)
    for name in ("_SUCCESS", "_purgatory_table"):
        (tmp_path / "lake" / name).write_text("")
    check_table(tmp_path / "lake", "parquet")
    (tmp_path / "lake" / "_delta_log").mkdir()
    check_table(tmp_path / "lake", "delta")
    (tmp_path / "hidden" / "_temporary").mkdir(parents=True)
    for place in (tmp_path / "hidden", tmp_path / "none", "table:lake.journal", "s3a://b/lake"):
        for file_format in ("parquet", "delta"):
            check_table(place, file_format)


@pytest.mark.parametrize(
    ("journal", "out"),
    [
        ("s3a://b/journal", "s3a://b/journal/"),
        ("s3a://b/journal", "s3a://b/journal/lake"),
        ("table:lake.journal", "table:lake.journal"),
    ],
)
def test_a_store_and_the_catalog_are_compared_by_name(refused: Refused, journal: str, out: str) -> None:
    """The table would replace what the load reads."""
    said = f"error: out must lie outside {journal}, which the command reads, got {out}"
    assert refused("load", journal, "--out", out) == said


@pytest.mark.parametrize("place", ["rows", "rows/out", "link/day=1"])
def test_the_results_of_a_stream_do_not_become_its_source(
    refused: Refused, tmp_path: pathlib.Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the records nor the checkpoint are rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "link").symlink_to("rows")
    said = f"must lie outside rows, which the command reads, got {place}"
    assert refused("backfill", "--source", "rows", "--out", place) == f"error: out {said}"
    assert refused("stream", "--source", "rows", "--checkpoint", "c", "--out", place) == f"error: out {said}"
    assert refused("stream", "--source", "rows", "--checkpoint", place, "--out", "o") == f"error: checkpoint {said}"


@pytest.mark.parametrize("command", [("report", "--out", "out"), ("replay",)], ids=" ".join)
def test_an_interrupted_command_ends_without_a_traceback(
    command: tuple[str, ...], journal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    """While Spark starts, for one; the status is that of a shell."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "spark_session", interrupt)
    assert main([command[0], journal, *command[1:], "--quiet"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("until", ["-1", "253402300800000", "99999999999999999999"])
def test_a_batch_is_decided_up_to_a_time_of_this_calendar(refused: Refused, tmp_path: pathlib.Path, until: str) -> None:
    """Other times are refused before Spark starts."""
    (source := tmp_path / "rows").mkdir()
    said = f"error: until-ms must be a time in milliseconds since 1970, before the year 10000, got {until}"
    assert refused("backfill", "--source", source, "--out", tmp_path / "out", f"--until-ms={until}") == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compact", "journal", "--rows-per-file", "2147483648"], "must be at most 2,147,483,647, got '2147483648'"),
        *[
            (["stream", "--source=s", "--checkpoint=c", "--out=o", f"--{name}={value}"], said)
            for name in ("files-per-batch", "shards")
            for value, said in (
                ("0", "must be a whole number, at least 1, got '0'"),
                ("nan", "must be a whole number, at least 1, got 'nan'"),
                ("2147483648", "must be at most 2,147,483,647, got '2147483648'"),
            )
        ],
        *[
            (["stream", "--source=s", "--checkpoint=c", "--out=o", f"--{name}={value}"], said)
            for name in ("delay", "trigger", "max-ahead")
            for value, said in (
                ("-1", "must be a number of seconds, at least 0, got '-1'"),
                ("nan", "must be a number of seconds, at least 0, got 'nan'"),
                ("inf", "must be a number of seconds, at least 0, got 'inf'"),
                ("1e300", "must be at most 253,402,300,799, got '1e300'"),
            )
        ],
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_numbers_that_the_parser_refuses(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last line has the name of the option, and what the number must be."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f": {said}")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--skew=nan", "skew must be from 0 to 10, got nan"),
        ("--skew=inf", "skew must be from 0 to 10, got inf"),
        ("--immediate=nan", "immediate, cancelled, and failed must be shares, together at most 1, got (nan, "),
        ("--spread=1e9", "spread must be more than 0 and at most 10, got 1000000000.0"),
        ("--median-wait=1e300", "median_wait must be more than 0 and at most 31,536,000, got 1e+300"),
        ("--rate=1e-300", "rows / rate must be at most 3,153,600,000 seconds, a hundred years, got 1e+301"),
        ("--dropped=99999999999999999999", "dropped must be from 0 to 100,000,000, got 99999999999999999999"),
        ("--keys=99999999999", "keys must be from 1 to 10,000,000, got 99999999999"),
        ("--seed=-1", "seed must be from 0 to 9,223,372,036,854,775,807, got -1"),
        ("--rows=-1", "rows must be from 1 to 10,000,000,000, got -1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(refused: Refused, tmp_path: pathlib.Path, option: str, said: str) -> None:
    """One line says which number is wrong, and nothing is written."""
    line = refused("synthesize", tmp_path / "made", "--rows=10", option)
    assert line.startswith(f"error: {said}")
    assert list(tmp_path.iterdir()) == []


def test_a_selection_that_cannot_be_is_refused(refused: Refused, journal: str, tmp_path: pathlib.Path) -> None:
    """For each command that reads a journal; the message names the option."""
    for command in (("report", journal, "--out", tmp_path / "out"), ("replay", journal)):
        line = refused(*command, "--since", "noon")
        assert line.startswith("error: since must be a time such as 2026-11-22, ")
        assert line.endswith("got 'noon'")
        line = refused(*command, "--since", "2026-11-22T10:00", "--until", "2026-11-22T10:00+01:00")
        assert line == ("error: until must be after since, 2026-11-22 10:00:00 UTC, got 2026-11-22 09:00:00 UTC")
    assert list(tmp_path.iterdir()) == []


def test_a_place_for_the_results_must_be_a_directory_that_can_be_written(
    refused: Refused, journal: str, tmp_path: pathlib.Path
) -> None:
    """A file, a path below a file, one where nothing can be made, one too long: for each command that writes."""
    file = tmp_path / "file"
    file.write_text("here")
    source = tmp_path / "rows"
    source.mkdir()
    for out, why in (
        (file, "which is a file"),
        (file / "below", f"within {file}, which is a file"),
        ("/proc/report", "must be a directory that can be written"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        for command in (
            ("report", journal, "--out", out),
            ("replay", journal, "--out", out),
            ("backfill", "--source", source, "--out", out),
            ("stream", "--source", source, "--checkpoint", tmp_path / "c", "--out", out),
        ):
            line = refused(*command)
            assert line.startswith("error: out must be a directory"), command
            assert why in line, line
            assert str(out) in line
        line = refused("stream", "--source", source, "--checkpoint", out, "--out", tmp_path / "o")
        assert line.startswith("error: checkpoint must be a directory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "rows"]
    assert file.read_text() == "here"


def test_a_master_that_spark_does_not_take_is_refused(refused: Refused, journal: str, tmp_path: pathlib.Path) -> None:
    """With each command, by --master and by --conf; every form that Spark takes passes."""
    source = tmp_path / "rows"
    source.mkdir()
    for command in (
        ("report", journal, "--out", tmp_path / "out"),
        ("replay", journal),
        ("backfill", "--source", source, "--out", tmp_path / "out"),
        ("stream", "--source", source, "--checkpoint", tmp_path / "c", "--out", tmp_path / "out"),
    ):
        for option in (("--master", "local[x]"), ("--conf", "spark.master=local[x]")):
            line = refused(*command, *option)
            assert line == (
                "error: master must be local, local[N], local[*], yarn, or a URL such as spark://host:port,"
                " got 'local[x]'"
            )
    line = refused("report", journal, "--out", tmp_path / "out", "--master", "sc://h:1")
    assert line == "error: master must not be a Spark Connect server, which is a remote, got 'sc://h:1'"
    for wrong in ("", "local[]", "local[0]", "local[-1]", "local[2", "local2", "Local", "spark:host", "local[2,x]"):
        with pytest.raises(ValueError, match="master must be"):
            check_master(wrong)
    for right in ("local", "local[*]", "local[2]", "local[2,3]", "local[*, 3]", "local-cluster[2,1,1024]", "yarn"):
        check_master(right)
    for right in ("spark://a:7077,b:7077", "k8s://https://host:443", "mine://host", None):
        check_master(right)


def test_a_journal_that_cannot_be_listed_is_an_error(
    refused: Refused, made: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory within it that may not be read would be left out in silence; its name is said."""
    closed = tmp_path / "journal" / "closed"
    closed.mkdir(parents=True)
    (min(made[0].glob("*.parquet"))).rename(moved := tmp_path / "journal" / "part-1.parquet")
    try:
        assert data_files(tmp_path / "journal") == [moved]
        scandir = os.scandir

        def scan(path: Any) -> Any:
            if pathlib.Path(path) == closed:
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", scan)
        line = refused("report", tmp_path / "journal", "--out", tmp_path / "out")
        assert line.startswith(f"error: the journal {tmp_path / 'journal'} cannot be listed: ")
        assert str(closed) in line
    finally:
        moved.rename(made[0] / "part-synthetic-7-0-000000.parquet")


def test_a_column_of_another_type_is_not_corruption(refused: Refused, tmp_path: pathlib.Path) -> None:
    """The file is sound: the message has the column, what it is, and what it must be."""
    table = ARROW_SCHEMA.empty_table()
    for name, kind, said in (
        ("op_id", pa.string(), "op_id is string, must be int64"),
        ("parked_at", pa.int64(), "parked_at is int64, must be timestamp"),
        ("parked_at", pa.timestamp("ms"), "parked_at is timestamp[ms], must be timestamp"),
        ("finished_at", pa.timestamp("ns", "UTC"), "finished_at is timestamp[ns, tz=UTC], must be timestamp"),
        ("keys", pa.string(), "keys is string, must be strings"),
        ("outcome", pa.int32(), "outcome is int32, must be string"),
        ("lateness", pa.string(), "lateness is string, must be double"),
        ("instance", pa.string(), "instance is string, must be int64"),
    ):
        column = ARROW_SCHEMA.get_field_index(name)
        pq.write_table(table.set_column(column, name, pa.nulls(0, kind)), tmp_path / "part.parquet")
        line = refused("report", tmp_path, "--out", tmp_path.with_name("out"))
        assert f"{tmp_path / 'part.parquet'} has other columns, {said}" in line
        assert "corrupt" not in line.replace("--skip-corrupt", "")


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "rich"])
def test_help_needs_nothing_installed(missing: str, tmp_path: pathlib.Path) -> None:
    """Without Spark there is help, and a command says in one line what to install."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE)])}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "purgatory.pipeline", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)

    for arguments in (["--help"], ["report", "--help"], ["stream", "--help"]):
        helped = run(*arguments)
        assert (helped.returncode, helped.stderr) == (0, "")
        assert helped.stdout.startswith("usage: python -m purgatory.pipeline")
    failed = run("report", "journal", "--out", "out")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == (
        f"error: python -m purgatory.pipeline report needs {missing!r}, which is not installed:"
        " pip install 'aiopurgatory[spark]'\n"
    )


def test_a_path_that_the_terminal_cannot_show_is_escaped(tmp_path: pathlib.Path) -> None:
    """The work is done, so the status is 0."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONIOENCODING": "ascii"}
    for command in (["synthesize", "journal-é", "--rows", "3", "--rows-per-file", "1"], ["compact", "journal-é"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "purgatory", *command],
            capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(": journal-\\xe9\n")
    assert len(data_files(tmp_path / "journal-é")) == 1


def test_a_file_of_another_program_is_no_damage_that_a_flag_may_skip(
    refused: Refused, journal: str, tmp_path: pathlib.Path
) -> None:
    """The error does not recommend --skip-corrupt, which would skip damaged files too, also if there is such a file."""
    path = tmp_path / "journal"
    path.mkdir()
    (path / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert refused("report", path, "--out", tmp_path / "out").endswith("; --skip-corrupt skips such files")
    pq.write_table(pa.table({"x": [1]}), path / "b.parquet")
    line = refused("report", path, "--out", tmp_path / "out")
    assert line.startswith(f"error: {path / 'b.parquet'} lacks the columns")
    assert line.endswith("(and 1 more files); move it out of the journal's directory")


def test_a_full_disk_is_an_error_with_the_path(
    refused: Refused, journal: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's error has none."""

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        line = refused("synthesize", tmp_path / "made", "--rows", "5")
    assert line == f"error: the journal {tmp_path / 'made'} cannot be written: No space left on device"
    shutil.copytree(journal, tmp_path / "journal")
    monkeypatch.setattr("purgatory.journal.compaction._compact_folder", full)
    line = refused("compact", tmp_path / "journal")
    assert line == f"error: the journal {tmp_path / 'journal'} cannot be compacted: No space left on device"
