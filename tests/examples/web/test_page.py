"""The page of the groups in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser import DESKTOP, PHONE, WHOLE, axe_problems


def _until(page: Any, state: str) -> None:
    page.locator(f"#status[data-state='{state}']").wait_for()


def test_it_fills_with_what_is_there(running: Any, open_page: Callable[..., Any], said: list[str]) -> None:
    """Groups and members appear, and all numbers on the page are from the same moment."""
    page = open_page(running.url, **DESKTOP)
    _until(page, "live")
    assert page.locator("h1").inner_text() == "Join-group simulation"
    # Groups start within 30 simulated seconds.
    page.wait_for_function("() => document.querySelectorAll('#tiles li').length === 12")
    page.locator("#pause").click()
    seen = page.evaluate("() => (draw(), frame)")
    states = page.locator("#states dd").all_inner_texts()
    assert sum(map(int, states)) == seen["number"] == 12
    assert said == []


def test_it_leads_to_the_inspector_of_the_simulated_purgatories(
    running: Any, open_page: Callable[..., Any], said: list[str]
) -> None:
    """The inspector reads the purgatories in the event loop of the simulation, in simulated time."""
    page = open_page(running.url, **DESKTOP)
    page.get_by_role("link", name="The inspector").click()
    page.locator("#rooms tr").nth(2).wait_for()
    assert page.locator("h1").inner_text() == "Join-group simulation"
    assert page.locator("#rooms th").all_inner_texts() == ["join", "sync", "heartbeat"]
    page.wait_for_function("() => frame.rooms.some((room) => room.parked > 0)")
    before = page.evaluate("() => frame.rooms[0].clock")
    page.wait_for_function("(before) => frame.rooms[0].clock > before + 10", arg=before)  # ten times real time
    page.wait_for_function("() => document.querySelectorAll('#timers .wheel').length >= 4")
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
    now = page.evaluate("() => frame.now")
    page.wait_for_function("(before) => frame.now > before + 10", arg=now)
    assert clock.inner_text() == still
    assert page.locator("#status").inner_text() == "Paused"
    page.keyboard.press("Enter")
    page.wait_for_function(changed, arg=still)
    assert said == []


def test_it_survives_a_restart_of_the_program(simulator: Any, open_page: Callable[..., Any], said: list[str]) -> None:
    """While the program is gone, the page says so; when another one runs, the page shows it without a reload."""
    simulator.start("--groups", "8", "--members", "4")
    page = open_page(simulator.url, **DESKTOP)
    _until(page, "live")
    page.evaluate("() => { window.mark = 'not reloaded'; }")
    assert said == []
    simulator.kill()
    _until(page, "lost")
    trouble = page.locator("#trouble")
    assert trouble.get_attribute("role") == "alert"
    assert "The program does not answer. The data are from" in trouble.inner_text()
    assert page.locator("#status").inner_text() == "Connection lost"
    assert page.locator("#tiles li").count() > 0  # what was seen last stays
    simulator.start("--groups", "3", "--members", "4")
    _until(page, "live")
    page.wait_for_function("() => document.querySelectorAll('#tiles li').length === 3")
    assert trouble.inner_text() == ""
    assert page.evaluate("() => window.mark") == "not reloaded"
    # The browser itself reports what it could not load; nothing else may be said.
    assert all("net::ERR_" in line for line in said), said


def test_a_run_ends_although_a_page_is_open(simulator: Any, open_page: Callable[..., Any]) -> None:
    """At the end of a run the process ends, although the page of the groups and the inspector are open."""
    simulator.start("--groups", "3", "--members", "4", "--duration", "60s", "--speed", "15")
    page = open_page(simulator.url, **DESKTOP)
    inspector = page.context.new_page()
    inspector.goto(f"{simulator.url}purgatory/")
    inspector.locator("#rooms tr").first.wait_for()
    assert "fingerprint of the run" in simulator.wait()
    _until(page, "lost")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_names_contrast_and_keyboard_are_accessible(
    running: Any, open_page: Callable[..., Any], scheme: str, size: dict[str, Any]
) -> None:
    """axe reports no problem, nothing is wider than the screen, and Tab reaches every control and shows its focus."""
    page = open_page(running.url, **size, color_scheme=scheme)
    _until(page, "live")
    assert axe_problems(page, "color-contrast", "button-name", "link-name") == ""
    assert page.evaluate(WHOLE)
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.className || 'link'"))
        assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert reached == ["skip", "pause", "theme", "link"]
