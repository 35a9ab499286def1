"""The tests of the page about testing web applications: they pass, and fail if the application is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.conftest import WHOLE_FILES

for package in ("fastapi", "httpx", "pytest_asyncio"):
    pytest.importorskip(package, reason="needs the packages of the tests of web applications")

pytestmark = pytest.mark.timeout(120)
AFTER_30_SECONDS = "test_a_poll_without_news_ends_after_30_seconds"


def results(folder: Path, *changes: tuple[str, str], file: str = ".") -> tuple[set[str], str]:
    """Return the names of the tests that fail with the changed application, and what pytest prints."""
    for name, text in WHOLE_FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    application = WHOLE_FILES["app.py"]
    for right, wrong in changes:
        assert application.count(right) == 1, right
        application = application.replace(right, wrong)
    (folder / "app.py").write_text(application, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", file]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100).stdout
    return set(re.findall(r"^FAILED \S+::(\w+)", said, re.MULTILINE)), said


def test_they_pass(tmp_path: Path) -> None:
    failed, said = results(tmp_path)
    assert not failed
    assert "8 passed" in said, said


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("status_code=204", "status_code=304", AFTER_30_SECONDS),
        ('key="orders")', 'key="orders", timeout=wait.timeout - 0.001)', AFTER_30_SECONDS),
        ("longest=55", "longest=10", AFTER_30_SECONDS),
        ("            wait.raise_if_closing()\n", "", "test_a_server_that_stops_answers_503"),
        ("lifespan=purgatory_lifespan(room)", "", "test_a_poll_is_answered"),
    ],
    ids=["status", "early", "shorter", "closing", "lifespan"],
)
def test_a_wrong_application_fails(tmp_path: Path, right: str, wrong: str, expected: str) -> None:
    failed, said = results(tmp_path, (right, wrong), file="test_with_testclient.py")
    assert expected in failed, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ('        room.check_threadsafe("orders")\n', "", "TimeoutError"),
        ('key="orders")', 'key="orders", timeout=None)', "TimeoutError"),
        ('@app.post("/orders/{order}")', '@app.post("/order/{order}")', "TimeoutError"),
        ('@app.get("/orders")', '@app.get("/order")', r"answered at once: <Response \[404 Not Found\]>"),
        ("return log[after:]", "raise ValueError(log)", "ValueError: \\['apples'\\]"),
    ],
    ids=["no check", "no deadline", "no such writer", "no such poll", "error"],
)
def test_a_wrong_application_does_not_stop_the_tests(tmp_path: Path, right: str, wrong: str, reason: str) -> None:
    """A poll that is parked when its test fails is answered; a poll that was answered at once names the reason."""
    failed, said = results(tmp_path, (right, wrong), file="test_with_testclient.py")
    assert failed
    assert re.search(reason, said), said
