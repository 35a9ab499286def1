"""The page about testing web applications: its files, run with pytest as a reader would run them."""

import re
from pathlib import Path

import pytest

import purgatory
from tests.testing.test_pytest_plugin import _installed

for _module in ("fastapi", "httpx", "anyio"):
    pytest.importorskip(_module, reason=f"the page uses {_module}")

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "testing-web-applications.md"
FILES = dict(re.findall(r"^```py\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


NUM_TESTS = 8


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them pass, with warnings as errors, except Starlette's about the version of httpx."""
    monkeypatch.setenv("PYTHONPATH", str(Path(purgatory.__file__).parents[1]))
    for file, text in FILES.items():
        pytester.path.joinpath(file).write_text(text, encoding="utf-8")
    pytester.makeini(
        "[pytest]\n"
        "asyncio_default_fixture_loop_scope = function\n"
        "filterwarnings =\n"
        "    error\n"
        "    ignore:Using `httpx` with\n"
    )
    plugins = [] if _installed() else ["-p", "purgatory.pytest_plugin"]
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *plugins, timeout=60)
    assert result.parseoutcomes() == {"passed": NUM_TESTS}
