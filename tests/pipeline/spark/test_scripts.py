"""Scripts that start a program with another output."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from purgatory.pipeline.spark.scripts import name_of_path, worker_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the scripts are for POSIX shells")
SPARKS_MODULE = "pyspark.sql.streaming.transform_with_state_driver_worker"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache whose path and whose Python need quoting."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return tmp_path / "a cache"


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_the_inspection_of_a_processor_prints_nothing(tmp_path: Path) -> None:
    """Arguments arrive unchanged, and the output of all other workers is kept."""
    python = tmp_path / "a python"
    python.symlink_to(sys.executable)
    command = worker_python(str(python))
    program = "import sys; print(sys.argv[1:])"
    assert printed(command, "-c", program, "a  b", "*") == "['a  b', '*']\n"
    assert printed(command, "-c", program, SPARKS_MODULE) == ""


def test_a_script_is_written_once(cache: Path) -> None:
    """A second session uses the same file, which another process may be starting."""
    first = worker_python(sys.executable)
    written = Path(first).stat()
    assert worker_python(sys.executable) == first
    assert Path(first).stat().st_mtime_ns == written.st_mtime_ns
    assert Path(first).is_relative_to(cache)


def test_two_pythons_of_similar_names_have_a_script_each(tmp_path: Path) -> None:
    """Both environments of a project, for example: their commands may run at the same time."""
    names = (".venv/bin/python", "venv/bin/python", "venv-bin/python")
    scripts = [worker_python(str(tmp_path / name)) for name in names]
    assert len(set(scripts)) == 3
    for name, script in zip(names, scripts, strict=True):
        assert str(tmp_path / name) in Path(script).read_text()
    long = worker_python(str(tmp_path / ("x" * 200) / "python"))
    assert Path(long).is_file(), "file systems limit the length of a name"
    assert len({name_of_path(path) for path in ("/a/jdk-17", "/a/jdk/17", "/a-jdk-17", "/jdk-17")}) == 4


def test_without_a_cache_the_python_is_used_as_it_is(cache: Path) -> None:
    """A cache that cannot be written costs some lines of output, not the session."""
    cache.write_text("a file where the directory would be")
    assert worker_python("python3") == "python3"


def test_the_archives_of_spark_are_left_out_for_the_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark puts them first.  Another Python may have no PySpark, so it imports the one in the archive."""
    archives = [str(each) for each in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")]
    archives.sort(key=lambda each: "py4j" in each)
    assert len(archives) == 2
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*archives, "/own"]))
    program = "import os; print(os.environ['PYTHONPATH'])"
    assert printed(worker_python(sys.executable), "-c", program) == "/own\n"
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert printed(worker_python(str(other)), "-c", program) == os.pathsep.join([*archives, "/own"]) + "\n"
