"""The directory that a command writes into."""

import pathlib

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.output.directory import BadOutput, check_out, replace_files


def test_the_check_of_a_place_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """What is to be made later is not there after the check, and what is there stays as it is."""
    check_out(tmp_path / "deep" / "report")
    check_out(tmp_path)
    assert list(tmp_path.iterdir()) == []


def interrupted(out: pathlib.Path) -> None:
    with replace_files(out) as directory:
        (directory / "a").write_text("2")
        (directory / "none").read_text()


def test_files_replace_the_old_ones_only_when_all_are_complete(tmp_path: pathlib.Path) -> None:
    """An error in between leaves the directory as it was, and nothing beside it."""
    out = tmp_path / "deep" / "out"
    with replace_files(out) as directory:
        (directory / "a").write_text("1")
        (directory / "b").write_text("1")
    with pytest.raises(FileNotFoundError):
        interrupted(out)
    assert (out / "a").read_text() == "1"
    with replace_files(out) as directory:
        (directory / "a").write_text("3")
    assert [(path.name, path.read_text()) for path in sorted(out.iterdir())] == [("a", "3"), ("b", "1")]
    assert list(out.parent.iterdir()) == [out]
    with pytest.raises(BadOutput, match="out must be a directory"), replace_files(out / "a"):
        raise AssertionError("there is nowhere to write")


def test_a_full_disk_is_an_error_with_the_path(tmp_path: pathlib.Path) -> None:
    """The system's error has no path; earlier files stay, and nothing is left beside them."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "table").write_text("before")

    def write() -> None:
        with replace_files(out) as directory:
            (directory / "table").symlink_to("/dev/full")
            (directory / "table").write_text("now")

    with pytest.raises(BadOutput, match=f"out cannot be written, {out}: No space left on device"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "table").read_text() == "before"
