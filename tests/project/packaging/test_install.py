"""What the installation check compares.  The check itself runs in ``.ci/run``, because it needs the package index."""

from pathlib import Path

import pytest

from tests.project.packaging.install import cases, changes, files, main


def test_a_file_that_is_left_or_touched_is_found(tmp_path: Path) -> None:
    """Added, removed and changed files are reported by name; an equal tree has no difference."""
    for name in ("kept", "removed", "folder/changed"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = files(tmp_path)
    assert changes(before, files(tmp_path)) == []
    (tmp_path / "removed").unlink()
    (tmp_path / "folder" / "changed").write_text("otherwise")
    (tmp_path / "folder" / "left.pyc").touch()
    assert changes(before, files(tmp_path)) == ["added folder/left.pyc", "removed removed", "changed folder/changed"]


def test_a_source_distribution_meets_each_compiler() -> None:
    """A wheel is installed as its name says; a source distribution is compiled only with a compiler that works."""
    (pure,) = cases(Path("aiopurgatory-1-py3-none-any.whl"))
    (compiled,) = cases(Path("aiopurgatory-1-cp311-cp311-linux_x86_64.whl"))
    assert (pure.compiled, compiled.compiled) == (False, True)
    assert [case.compiled for case in cases(Path("aiopurgatory-1.tar.gz"))] == [True, False, False]
    assert [case.has_path for case in cases(Path("aiopurgatory-1.tar.gz"), ["missing"])] == [False]


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message contains the name of the file."""
    with pytest.raises(SystemExit):
        main([str(tmp_path / "aiopurgatory.zip")])
    assert "DIST must be a wheel or a source distribution, got" in capsys.readouterr().err
