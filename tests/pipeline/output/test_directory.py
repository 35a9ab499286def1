"""The directory that a command writes into."""

import os
import pathlib
import tempfile
from typing import Any

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


def test_a_directory_in_a_parent_that_is_on_another_disk_or_read_only(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount point is written from within: no rename leaves the directory, and nothing is created beside it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_text("1")
    make = tempfile.mkdtemp
    made: list[str] = []

    def mkdtemp(*args: Any, **settings: Any) -> str:
        made.append(make(*args, **settings))
        return made[0]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with replace_files(out) as directory:
        (directory / "a").write_text("2")
        assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == ["a"]
    assert [pathlib.Path(path).parent for path in made] == [out]
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("a", "2")]


@pytest.mark.skipif(not hasattr(os, "getuid") or not os.getuid(), reason="root may write everywhere")
def test_a_parent_that_is_read_only(tmp_path: pathlib.Path) -> None:
    """The user's own directory in a parent of another user is enough."""
    out = tmp_path / "parent" / "out"
    out.mkdir(parents=True)
    out.parent.chmod(0o500)
    try:
        check_out(out)
        with replace_files(out) as directory:
            (directory / "a").write_text("1")
        assert [path.name for path in out.iterdir()] == ["a"]
    finally:
        out.parent.chmod(0o700)


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="the system has no second file system")
def test_a_link_to_a_directory_on_another_disk(tmp_path: pathlib.Path) -> None:
    """The files are renamed within the file system to which the link leads, and the link stays."""
    out = tmp_path / "out"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as target:
        out.symlink_to(target)
        check_out(out)
        with replace_files(out) as directory:
            (directory / "a").write_text("1")
        assert out.is_symlink()
        assert [path.name for path in pathlib.Path(target).iterdir()] == ["a"]


@pytest.mark.parametrize("below", ["", "deep"])
def test_a_link_that_leads_nowhere(tmp_path: pathlib.Path, below: str) -> None:
    """Such a link is refused before the work, whether it is the directory or contains it."""
    (tmp_path / "out").symlink_to(tmp_path / "missing")
    out = tmp_path / "out" / below
    message = f"out must be a directory, got {out}, .*which is a link to {tmp_path / 'missing'}, which is missing"
    with pytest.raises(BadOutput, match=message):
        check_out(out)
    with pytest.raises(BadOutput, match=r"out (must be a directory|cannot be written)"), replace_files(out):
        raise AssertionError("there is nowhere to write")


def test_a_directory_with_the_name_of_a_file(tmp_path: pathlib.Path) -> None:
    """The name of the page is checked before the work, and all names are checked before the first file is replaced."""
    (tmp_path / "index.html").mkdir()
    (tmp_path / "a").write_text("1")
    with pytest.raises(BadOutput, match=f"the name of a file to be written, got {tmp_path / 'index.html'}"):
        check_out(tmp_path, files=["index.html"])
    check_out(tmp_path, files=["a", "b"])

    def write() -> None:
        with replace_files(tmp_path) as directory:
            for name in ("a", "index.html", "z"):
                (directory / name).write_text("2")

    with pytest.raises(BadOutput, match=f"the name of a file to be written, got {tmp_path / 'index.html'}"):
        write()
    assert (tmp_path / "a").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "index.html"]


def test_a_full_disk_is_an_error_with_the_path(tmp_path: pathlib.Path) -> None:
    """The system's error has no path; earlier files stay, and nothing is left beside them."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "table").write_text("before")

    def write() -> None:
        with replace_files(out) as directory:
            (directory / "table").symlink_to("/dev/full")
            (directory / "table").write_text("now")

    with pytest.raises(BadOutput, match=f"out cannot be written to {out}: No space left on device"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "table").read_text() == "before"
