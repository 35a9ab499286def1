"""A real browser for the tests of pages: fixtures that a ``conftest.py`` imports."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import missing

__all__ = ["DESKTOP", "PHONE", "WHOLE", "axe_problems", "browser", "open_context", "said"]

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
# Chromium obeys the last list of features only, so this one repeats that of Playwright.
_PLAYWRIGHTS = (
    "AimEnabled,AvoidCorsURLLoaderRestartOnRedirect,AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,"
    "HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,LensOverlay,MediaRouter,NetworkTimeServiceQuerying,"
    "OptimizationHints,PaintHolding,PreconnectToSearch,TcpPortRandomizationWin,ThirdPartyStoragePartitioning"
)
# The suggestions below the address bar are pages, of 0.7 s of CPU for each window, although nobody sees the bar.
_OMNIBOX = "WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,WebUIOmniboxPopup"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    f"--disable-features={_PLAYWRIGHTS},{_OMNIBOX}",
]  # fmt: skip
DESKTOP = {"viewport": {"width": 1200, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
WHOLE = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield headless Chromium, closed after the module, because asyncio believes that a loop runs while it is open."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if not Path(CHROMIUM).exists():
        missing("chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def said() -> list[str]:
    """Return the console messages and uncaught exceptions of a page."""
    return []


@pytest.fixture
def open_context(browser: Any, said: list[str]) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens a page in a new context: ``open_context(url, **options of the context)``."""
    contexts = []

    def open_it(url: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
        page.goto(url)
        return page

    yield open_it
    for context in contexts:
        context.close()


def axe_problems(page: Any, *checked: str) -> str:
    """Return the report of the accessibility problems of the page, or an empty text.  ``checked``: rules that ran."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    results = axe.Axe().run(page, options={"resultTypes": ["violations", "passes"]})
    passed = {rule["id"] for rule in results.response["passes"]}
    assert set(checked) <= passed, f"not checked: {set(checked) - passed}"
    report: str = results.generate_report() if results.violations_count else ""
    return report
