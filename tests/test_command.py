"""The command ``purgatory``: its commands, its help, and its messages if something is missing."""

import argparse
import asyncio
import compileall
import errno
import importlib.util
import io
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import mypy_extensions
import pytest

import purgatory
from purgatory.__main__ import _EXAMPLES, _PIPELINE, main
from purgatory.broken_pipe import run_command
from purgatory.demo import _LongPollServer
from purgatory.extras import deferred
from purgatory.installation import require_sole_package

ROOT = Path(__file__).parent.parent
PACKAGE = Path(purgatory.__file__).parent
_LEFT_OVERS = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
_ALONE = (sys.executable, "-S", "-I")  # no other package can be imported


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the package in a directory, and without any other package."""
    command = [*_ALONE, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def pipeline_parser() -> argparse.ArgumentParser:
    """Return the parser of the pipeline's commands, which the command also imports where Spark is not installed."""
    with deferred():
        from purgatory.pipeline.__main__ import _parser
    return _parser("purgatory")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a copy of the package, without its compiled core, and with its one dependency.

    The first process of the tests that imports a module of the copy stores the bytecode for the others.
    """
    path = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, path / "purgatory", ignore=_LEFT_OVERS)
    shutil.copy(mypy_extensions.__file__, path)
    return path


@pytest.fixture
def own_copy(copy: Path, tmp_path: Path) -> Path:
    """Return such a directory, which the test changes."""
    shutil.copytree(copy, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_the_installed_command_is_this_one() -> None:
    """The entry point of the distribution refers to the tested function."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"purgatory": "purgatory.__main__:main"}


def test_the_version_says_whether_the_core_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints one line with the distribution, its version, the core and Python."""
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    core = "compiled" if purgatory.COMPILED else "interpreted"
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"aiopurgatory {purgatory.__version__}, core {core}, Python 3.")


def test_without_a_command_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has a line, and there are examples.  The exit status is that of a wrong command line."""
    assert main([]) == 2
    text = capsys.readouterr().out
    for command in ("demo", "examples", *_PIPELINE):
        assert re.search(rf"^ +{command} +[a-z]", text, re.MULTILINE), command
    assert "purgatory report journal --out report" in text


def test_the_examples_of_the_help_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser accepts each example."""
    main([])
    lines = re.findall(r"^  purgatory (.+?)  ", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        words = line.split()
        if words[0] in _PIPELINE:
            pipeline_parser().parse_args(words)
        else:
            assert words[0] in ("demo", "top")


def test_the_commands_of_the_pipeline_are_all_here() -> None:
    """No command of the pipeline is missing, and each one exists."""
    parser = pipeline_parser()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    assert set(_PIPELINE) == set(commands.choices)


def examples_in(text: str) -> list[list[str]]:
    """The words of each example of a help text, without the redirection of its output."""
    lines = re.findall(r"^(?:example:|  )\s*purgatory (.+?)(?: >.*)?$", text, re.MULTILINE)
    return [line.split() for line in lines]


@pytest.mark.parametrize("command", _PIPELINE)
def test_the_help_of_a_pipeline_command(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help is that of the pipeline, with the name of this command and examples that the parser accepts."""
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: purgatory {command} ")
    examples = examples_in(text)
    assert examples
    for example in examples:
        assert pipeline_parser().parse_args(example).command == command


@pytest.mark.parametrize("command", _PIPELINE)
def test_without_extras_one_line_names_the_extra(command: str, copy: Path) -> None:
    """No extra is installed: there is help, and a command prints one line and nothing else."""
    code = "from purgatory.__main__ import main; sys.exit(main({}))"
    helped = run(code.format([command, "--help"]), copy)
    assert (helped.returncode, helped.stderr) == (0, "")
    failed = run(code.format(examples_in(helped.stdout)[0]), copy)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == (
        f"error: purgatory {command} needs 'pyspark', which is not installed: pip install 'aiopurgatory[spark]'\n"
    )


def test_the_help_of_top(capsys: pytest.CaptureFixture[str]) -> None:
    """The command top has a parser of its own, which is imported only for it."""
    with pytest.raises(SystemExit) as exited:
        main(["top", "--help"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("usage: purgatory top ")


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message contains the names of the commands."""
    with pytest.raises(SystemExit) as exited:
        main(["explode"])
    assert exited.value.code == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("demo", "examples", *_PIPELINE))


def test_the_demo_shows_each_end_of_a_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo shows a disconnect, a completion, an expiry and a close on sockets, and a barrier in virtual time."""
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    for line in (
        "three readers wait, each for up to 30 s; nothing polls",
        "one client disconnects: its request has left the purgatory, and two remain parked",
        "a writer appends 'apples': 2 readers are answered",
        "a reader waits for up to 0.5 s",
        "nobody appends a message: the reader has its answer, nothing, after ",
        "the server stops: the last reader has its answer, nothing, after ",
        "the rebalance ends with 10,000 of 10,000 members, 5 s passed",
        "the rebalance ends with 9,997 of 10,000 members, 69.5 s passed",
    ):
        assert line in text


async def test_the_server_of_the_demo_ignores_a_client_without_a_request() -> None:
    """A client that has connected and disconnects before its request gets nothing, and raises nothing."""
    reader, writer = asyncio.StreamReader(), Mock()
    reader.feed_eof()
    async with purgatory.Purgatory[Any]("demo") as room:
        await _LongPollServer(room).serve(reader, writer)
    assert writer.mock_calls == [call.close()]


def test_the_demo_needs_only_the_package(copy: Path) -> None:
    """The demo runs without any extra."""
    result = run("from purgatory.__main__ import main; sys.exit(main(['demo']))", copy)
    assert result.returncode == 0, result.stderr
    assert "9,997 of 10,000" in result.stdout


def test_the_list_of_examples_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """The list contains every program of the directory, with the packages that it needs.

    A program is a module that runs itself, or one with an application for a server.
    """
    assert main(["examples"]) == 0
    text = capsys.readouterr().out
    folder = ROOT / "examples"
    programs = {f"examples.{path.parent.name}" for path in folder.glob("*/__main__.py")}
    for path in folder.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not path.stem.startswith("_") and '__name__ == "__main__"' in source:
            programs.add(f"examples.{path.stem}")
        elif re.search(r"^app = ", source, re.MULTILINE):
            programs.add(f"uvicorn examples.{path.stem}:app")
    others = {"examples", "examples.long_poll.demo", "uvicorn examples.tutorial.chapter_1:app"}
    assert programs | others == {module for module, _, _ in _EXAMPLES}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for module, packages, _ in _EXAMPLES:
        assert all(extra in extras for extra in re.findall(r"aiopurgatory\[(\w+)\]", packages))
        assert importlib.util.find_spec(module.removeprefix("uvicorn ").removesuffix(":app")) is not None
        assert re.search(rf"^python -m {re.escape(module)} ", text, re.MULTILINE)
    orders = {module: packages for module, packages, _ in _EXAMPLES}["examples.orders"]
    code = "import sys; sys.modules['fastapi'] = None; import examples.orders.__main__"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.stderr.replace("'", "") == f"this example needs fastapi: pip install {orders}\n"
    for readme in ("README.md", "README.zh-CN.md"):
        page = (ROOT / readme).read_text(encoding="utf-8")
        assert [module for module, _, _ in _EXAMPLES if f"python -m {module}" not in page] == [], readme
    assert "pip download --no-deps --no-binary aiopurgatory aiopurgatory" in text


# The circuit breaker with the same import name


@pytest.mark.parametrize("folder", ["domain", "service"])
def test_both_distributions_in_one_folder_are_refused(own_copy: Path, folder: str) -> None:
    """If the circuit breaker was installed first, the import prints the commands that repair the installation."""
    assert run("import purgatory", own_copy).returncode == 0
    (own_copy / "purgatory" / folder).mkdir()
    (own_copy / "purgatory" / folder / "__init__.py").touch()
    result = run("import purgatory", own_copy)
    assert result.returncode == 1
    line = result.stderr.splitlines()[-1]
    assert line.startswith(
        "ImportError: the distributions 'aiopurgatory' and 'purgatory' (a circuit breaker) are both "
    )
    assert line.endswith("pip uninstall -y purgatory aiopurgatory && pip install aiopurgatory")


@pytest.mark.parametrize("uninstalled", [False, True])
def test_the_command_reports_it_where_the_import_cannot(own_copy: Path, uninstalled: bool) -> None:
    """If the circuit breaker replaced or removed ``__init__.py``, the command reports it in one line."""
    package = own_copy / "purgatory"
    if uninstalled:
        (package / "__init__.py").unlink()
    else:
        (package / "__init__.py").write_text("class AsyncCircuitBreakerFactory: ...\n", encoding="utf-8")
        (package / "service").mkdir()
        (package / "service" / "__init__.py").touch()
    result = run("from purgatory.__main__ import main; sys.exit(main(['--version']))", own_copy)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    expected = "files of aiopurgatory are missing" if uninstalled else "are both installed"
    assert expected in result.stderr


def test_this_installation_is_accepted() -> None:
    """A correct installation raises no error."""
    require_sole_package()


@pytest.mark.parametrize("form", ["bytecode", "zip", "frozen"])
def test_an_installation_without_source_files_is_accepted(own_copy: Path, form: str) -> None:
    """There is only bytecode, the package is in a ZIP file, or an executable holds its modules.  The inspector finds
    the files of its page.
    """
    package = own_copy / "purgatory"
    code = "import purgatory; print(purgatory.__file__)"
    code += "; from purgatory.asgi import inspector; inspector(purgatory.Purgatory('test'))"
    if form == "bytecode":
        compileall.compile_dir(package, quiet=1, legacy=True)
        for path in package.rglob("*.py"):
            path.unlink()
        file = package / "__init__.pyc"
    elif form == "zip":
        archive = own_copy / "archive.zip"
        shutil.make_archive(str(archive.with_suffix("")), "zip", own_copy, "purgatory")
        shutil.rmtree(package)
        code = f"sys.path.insert(0, {str(archive)!r}); {code}"
        file = archive / "purgatory" / "__init__.py"
    else:
        file = (package / "__init__.py").rename(own_copy / "frozen.py")
        code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location(
    "purgatory", {str(file)!r}, submodule_search_locations=[{str(package)!r}]
)
sys.modules["purgatory"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
{code}
"""
    result = run(code, own_copy)
    assert (result.stdout, result.stderr) == (f"{file}\n", "")


def test_the_check_of_the_installation_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is part of the message: without the package's file, and with the circuit breaker's folder."""
    monkeypatch.setattr(purgatory, "__file__", None)
    with pytest.raises(ImportError, match=f"files of aiopurgatory are missing from {re.escape(str(tmp_path))}"):
        require_sole_package(str(tmp_path))
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").touch()
    with pytest.raises(ImportError, match=f"Both are imported as purgatory, from {re.escape(str(tmp_path))}"):
        require_sole_package(str(tmp_path))


def test_the_command_ends_with_status_1_in_a_broken_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the reason on standard error."""

    def refuse() -> None:
        raise ImportError("files are missing")

    monkeypatch.setattr("purgatory.__main__.require_sole_package", refuse)
    assert main(["--version"]) == 1
    assert capsys.readouterr().err == "error: files are missing\n"


def test_the_module_runs_as_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m purgatory`` does what ``purgatory`` does."""
    monkeypatch.setattr(sys, "argv", ["purgatory", "--version"])
    path = PACKAGE / "__main__.py"
    code = compile(path.read_text(encoding="utf-8"), path, "exec")
    with pytest.raises(SystemExit) as exited:
        exec(code, {"__name__": "__main__", "__package__": "purgatory"})
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("aiopurgatory ")


# A reader that is gone


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes that break")
@pytest.mark.parametrize(
    "command", [["demo"], ["examples"], ["--help"], ["--version"], ["report", "--help"], []], ids=" ".join
)
def test_a_closed_pipe_ends_a_command_quietly(command: list[str], copy: Path) -> None:
    """If nobody reads the output, as after ``| head -1``, there is no traceback, and the status is that of SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    code = (
        f"import sys; sys.path.insert(0, {str(copy)!r})\nfrom purgatory.__main__ import main; sys.exit(main({command}))"
    )
    try:
        result = subprocess.run(
            [*_ALONE, "-c", code],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=50,
        )
    finally:
        os.close(write)
    assert result.stderr == b""
    assert result.returncode == 141


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes that break")
@pytest.mark.parametrize("raised", ["ValueError('wrong')", "BrokenPipeError('a socket')"])
def test_an_error_of_a_command_is_not_hidden(copy: Path, raised: str) -> None:
    """Another error keeps its traceback, and so does a broken pipe that is not the output."""
    code = f"""
from purgatory.broken_pipe import run_command
def fail():
    raise {raised}
run_command(fail)
"""
    result = run(code, copy)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == raised.replace("('", ": ").removesuffix("')")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes that break")
def test_output_that_nobody_reads_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is that of SIGPIPE, and later output goes nowhere."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", None)
        assert run_command(lambda: print("unread") or 0) == 141
        print("later", flush=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes that break")
def test_another_broken_pipe_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken pipe is an error of the command if its own output has a reader.  There may be no standard error."""

    def fail() -> int:
        raise error

    error = BrokenPipeError("a socket")
    read, write = os.pipe()
    with open(read, encoding="utf-8"), open(write, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", None)
        assert run_command(lambda: 3) == 3
        with pytest.raises(BrokenPipeError) as raised:
            run_command(fail)
    assert raised.value is error


def test_a_broken_pipe_is_raised_where_outputs_cannot_be_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no ``select.poll``, so a broken pipe is taken for that of a socket."""

    def fail() -> int:
        raise error

    error = BrokenPipeError("a socket")
    monkeypatch.delattr(select, "poll", raising=False)
    with pytest.raises(BrokenPipeError) as raised:
        run_command(fail)
    assert raised.value is error


# A full disk, and Ctrl-C


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", ["demo", "examples"])
def test_a_full_disk_ends_a_command_with_one_line(command: str, unbuffered: bool, copy: Path) -> None:
    """The output cannot be written, so the status is 1."""
    code = f"sys.path.insert(0, {str(copy)!r})\nfrom purgatory.__main__ import main; sys.exit(main([{command!r}]))"
    options = ["-u"] if unbuffered else []
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(
            [*_ALONE, *options, "-c", f"import sys; {code}"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=50,
        )  # fmt: skip
    assert result.stderr == "error: the output cannot be written: No space left on device\n"
    assert result.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_has_no_space_is_discarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not fail again when it ends and flushes what is left, also if there is no place for the reason."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, name, full)
        assert run_command(lambda: print("unwritten", file=full) or 0) == 1
        full.flush()


@pytest.mark.parametrize("error", [OSError(errno.EADDRINUSE, "in use"), FileNotFoundError(errno.ENOENT, "none", "x")])
def test_an_error_that_is_not_of_the_output_is_raised(error: OSError) -> None:
    """It keeps its traceback."""

    def fail() -> int:
        raise error

    with pytest.raises(OSError, match=error.strerror) as raised:
        run_command(fail)
    assert raised.value is error


def test_an_interrupted_command_has_the_status_of_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """It is 130, without a traceback, and what has been printed is there."""

    def work() -> int:
        print("begun")
        raise KeyboardInterrupt

    assert run_command(work) == 130
    assert capsys.readouterr() == ("begun\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_the_demo_quietly(copy: Path) -> None:
    """While a reader waits.  asyncio itself reports an error if it is interrupted at the moment of a connection."""
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
sys.path.insert(0, {str(copy)!r})
from purgatory.__main__ import main
sys.exit(main(["demo"]))
"""
    with subprocess.Popen([*_ALONE, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "a reader waits" in line:
                break
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=50)
    assert error == ""
    assert process.returncode == 130


# A terminal that does not have every character


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_output_that_the_terminal_cannot_show_is_escaped(
    name: str, errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that did its work does not fail because of the path in its last line."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, name, io.TextIOWrapper(written, "ascii", errors))
    assert run_command(lambda: print("journal-é \udcff", file=getattr(sys, name)) or 0) == 0
    assert written.getvalue() == rb"journal-\xe9 \udcff" + os.linesep.encode()


def test_a_stream_that_shows_every_text_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may have chosen another replacement, and a program may have put another object in its place."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", "replace"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert run_command(lambda: print("é") or print("é", file=sys.stderr) or 0) == 0
    assert written.getvalue() == b"?" + os.linesep.encode()
    assert sys.stderr.getvalue() == "é\n"
