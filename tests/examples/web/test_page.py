"""The live page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

DESKTOP = {"viewport": {"width": 1200, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
WHOLE = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def _until(page: Any, state: str) -> None:
    page.locator(f"#status[data-state='{state}']").wait_for()


def test_it_fills_with_what_is_there(running: Any, open_page: Callable[..., Any], said: list[str]) -> None:
    """Wheels, groups, members and purgatories appear, and all numbers on the page are from the same frame."""
    page = open_page(running.url, **DESKTOP)
    _until(page, "live")
    assert page.locator("h1").inner_text() == "Join-group simulation"
    # Groups start within 30 simulated seconds.
    page.wait_for_function("() => document.querySelectorAll('#tiles li').length === 12")
    page.locator("#pause").click()
    seen = page.evaluate("() => frame === null ? null : (draw(), frame)")
    assert page.locator("#rooms th").all_inner_texts() == ["join", "sync", "heartbeat"]
    assert page.locator("#wheels .wheel").count() == len(seen["timer"]["levels"]) >= 4
    filled = page.evaluate(
        "() => [...document.querySelectorAll('.bucket i')].filter((i) => i.style.height !== '0px').length"
    )
    assert filled == sum(len(level["buckets"]) for level in seen["timer"]["levels"]) > 0
    held = sum(tasks for level in seen["timer"]["levels"] for _, _, tasks in level["buckets"])
    assert held == seen["timer"]["size"]
    states = page.locator("#states dd").all_inner_texts()
    assert sum(map(int, states)) == seen["groups"]["number"] == 12
    parked = sum(room["parked"] for room in seen["purgatories"])
    assert int(page.locator("#numbers dd span").first.inner_text()) == parked > 0
    assert said == []


def test_it_moves_and_can_be_paused(running: Any, open_page: Callable[..., Any], said: list[str]) -> None:
    """The clock advances by itself, stops while the page is paused, and continues, with the keyboard alone."""
    page = open_page(running.url, **DESKTOP)
    clock = page.locator("#clock")
    changed = "(before) => document.getElementById('clock').textContent !== before"
    page.wait_for_function(changed, arg=clock.inner_text())
    page.locator("#pause").focus()
    page.keyboard.press("Space")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    still = clock.inner_text()
    number = page.evaluate("() => frame.number")
    page.wait_for_function("(before) => frame.number > before + 3", arg=number)
    assert clock.inner_text() == still
    assert page.locator("#status").inner_text() == "Paused"
    page.keyboard.press("Enter")
    page.wait_for_function(changed, arg=still)
    assert said == []


def test_it_survives_a_restart_of_the_server(simulator: Any, open_page: Callable[..., Any], said: list[str]) -> None:
    """While the server is gone, the page says so; when another server runs, the page shows it without a reload."""
    simulator.start("--groups", "8", "--members", "4")
    page = open_page(simulator.url, **DESKTOP)
    _until(page, "live")
    page.evaluate("() => { window.mark = 'not reloaded'; }")
    before = page.evaluate("() => frame.run")
    assert said == []
    simulator.kill()
    _until(page, "lost")
    trouble = page.locator("#trouble")
    assert trouble.get_attribute("role") == "alert"
    assert "The server does not answer. The data are from" in trouble.inner_text()
    assert page.locator("#status").inner_text() == "Connection lost"
    assert page.locator("#tiles li").count() > 0  # what was seen last stays
    simulator.start("--groups", "3", "--members", "4")
    _until(page, "live")
    page.wait_for_function("() => document.querySelectorAll('#tiles li').length === 3")
    assert trouble.inner_text() == ""
    assert page.evaluate("() => frame.run") != before
    assert page.evaluate("() => window.mark") == "not reloaded"
    # The browser itself reports what it could not load; nothing else may be said.
    assert all("net::ERR_" in line for line in said), said


def test_it_tells_an_end_from_a_lost_connection(simulator: Any, open_page: Callable[..., Any]) -> None:
    """At the end of a run, the page says so, and the process ends although the page is open."""
    simulator.start("--groups", "3", "--members", "4", "--duration", "60s", "--speed", "30")
    page = open_page(simulator.url, **DESKTOP)
    _until(page, "ended")
    assert page.locator("#trouble").inner_text() == "The run has ended. The page waits for the next one."
    assert "fingerprint of the run" in simulator.wait()
    assert page.locator("#status").inner_text() == "Ended"


def test_the_theme_follows_the_system_until_it_is_chosen(running: Any, open_page: Callable[..., Any]) -> None:
    """The theme follows the system; the button changes it, and a reload keeps the choice."""
    page = open_page(running.url, **DESKTOP, color_scheme="dark")
    theme = "() => document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "dark"
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")
    button = page.get_by_role("button", name="Dark")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.reload()
    assert page.evaluate(theme) == "dark"


def test_everything_that_can_be_used_is_reached_by_keyboard(running: Any, open_page: Callable[..., Any]) -> None:
    """Tab reaches the skip link, both buttons and the scrollable table, and each shows its focus."""
    page = open_page(running.url, **PHONE)
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
        assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert reached == ["skip", "pause", "theme", "scroll"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_names_and_contrast_are_accessible(
    running: Any, open_page: Callable[..., Any], scheme: str, size: dict[str, Any]
) -> None:
    """axe reports no problem, and nothing is wider than the screen, while the page is live and disconnected."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = open_page(running.url, **size, color_scheme=scheme)
    _until(page, "live")
    for state in ("live", "lost"):
        if state == "lost":
            page.evaluate("() => { source.close(); source.onmessage = null; source.onerror(); }")
            _until(page, "lost")
        results = axe.Axe().run(page, options={"resultTypes": ["violations", "passes"]})
        assert results.violations_count == 0, f"{state}: {results.generate_report()}"
        assert {"color-contrast", "button-name", "svg-img-alt"} <= {rule["id"] for rule in results.response["passes"]}
        assert page.evaluate(WHOLE), f"{state}: wider than the screen"
