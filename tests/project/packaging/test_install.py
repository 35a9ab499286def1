"""What the installation check compares.  The check itself runs in ``.ci/run``, because it needs the package index."""

import sys
from pathlib import Path

import pytest

from tests.project.packaging.install import cases, changes, files, find, main, supported


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


def program(path: Path, body: str) -> str:
    """Write a program of the shell, and return its path."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are scripts of the shell")
def test_only_a_python_that_starts_is_found(tmp_path: Path) -> None:
    """A shim that starts nothing, another version and another interpreter are passed over, also on the PATH."""
    places = [tmp_path / name for name in ("none", "shim", "older", "pypy", "free-threaded", "good")]
    program(places[1] / "python3.98", "exit 127")
    program(places[2] / "python3.98", "echo cpython 3.97")
    program(places[3] / "python3.98", "echo pypy 3.98")
    program(places[4] / "python3.98", "echo cpython 3.98t")
    path = ":".join(map(str, places))
    environment = {"PATH": path, "PYENV_ROOT": str(tmp_path / "pyenv")}
    assert find("3.98", environment) is None
    kept = program(tmp_path / "pyenv" / "versions" / "3.98.1" / "bin" / "python3.98", "echo cpython 3.98")
    assert find("3.98", environment) == kept
    good = program(places[5] / "python3.98", "echo cpython 3.98")
    assert find("3.98", environment) == good
    assert find("3.9", environment) is None


def test_the_other_pythons_that_the_machine_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--others`` and no other Python, the output names each version, and nothing is wrong."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert main([str(tmp_path / "aiopurgatory-1.tar.gz"), "--others"]) == 0
    others = [version for version in supported() if version != "{}.{}".format(*sys.version_info)]
    expected = [f"not checked: CPython {version}, which was not found on this machine" for version in others]
    assert capsys.readouterr().out.splitlines() == expected
