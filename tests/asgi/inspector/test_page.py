"""The page of the inspector in a real browser."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser import DESKTOP, PHONE, WHOLE, axe_problems
from tests.helpers import Op

from .conftest import Service

HOSTILE = '<img src=x onerror="window.hacked=1">'


def park(service: Service, number: int, *keys: Any, timeout: float | None = None) -> None:
    """Park operations in the first purgatory."""

    def parks() -> None:
        for _ in range(number):
            service.orders.try_complete_else_watch(Op(timeout), keys)

    service.call(parks)


def live(page: Any) -> Any:
    """Wait until the page shows data, and return it."""
    page.locator("#status[data-state='live']").wait_for()
    page.locator("#numbers dd").first.wait_for()
    return page


def until(page: Any, selector: str, text: str) -> None:
    """Wait until the element contains the text."""
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)", arg=[selector, text]
    )


def test_it_shows_who_waits_and_what_stands_out(
    service: Service, open_context: Callable[..., Any], said: list[str]
) -> None:
    """Numbers, kinds, hot keys, the longest waiting operations and the lost relay are on the page."""
    park(service, 130, "hot")
    park(service, 1, ("tenant", 7), 7, timeout=500.0)
    page = live(open_context(service.url, **DESKTOP))
    until(page, "#rooms", "131")
    assert page.locator("#rooms th").all_inner_texts() == ["orders", "jobs <i>"]
    assert page.locator("#numbers dd span").first.inner_text() == "131"
    assert page.locator("#hot-watchers li").first.inner_text().split() == [
        "hot", "130", "Withdraw", "Fail", "no", "check",
    ]  # fmt: skip
    assert page.locator("#operations tr").count() == 30
    assert page.locator("#kinds th").all_inner_texts() == ["Op"]
    stands_out = page.locator("#findings").inner_text()
    assert "orders: The relay is not connected" in stands_out
    assert "the engine refuses <b>connections</b>" in stands_out
    assert "99% of the operations wait on one key, hot" in stands_out
    assert "130 operations of kind Op have no deadline, and no task awaits them" in stands_out
    assert "not connected through LostTransport" in page.locator("#relays").inner_text()
    page.locator("#kinds button").click()
    until(page, "#found", "of kind Op that wait longest")
    assert said == []


def test_it_shows_the_checks_the_place_of_an_error_and_the_next_deadline(
    service: Service, open_context: Callable[..., Any], said: list[str]
) -> None:
    """A check of another key is listed; a failure has its age and place; the oldest operation has its deadline."""
    park(service, 3, "order-7", timeout=900.0)
    page = live(open_context(service.url, **DESKTOP))
    until(page, "#checks-text", "0 checks, 0 of them of keys on which operations waited.")

    def fail(_: Op) -> None:
        raise LookupError("<i>no total")

    def act() -> None:
        failing = Op(None)
        service.orders.try_complete_else_watch(failing, ["invoice-1"])
        failing._on_try = fail
        for key in ("order_7", "invoice-1", HOSTILE, 7, "order_7"):
            service.orders.check(key)

    service.call(act)
    until(page, "#unwatched", "order_7")
    assert "5 checks, 1 of them of keys on which operations waited." in page.locator("#checks-text").inner_text()
    rows = [row.inner_text().split("\t") for row in page.locator("#unwatched tr").all()]
    assert [row[:2] for row in rows] == [["order_7", "2"], ["7int", "1"], [HOSTILE, "1"]]
    failure = page.locator("#failures tr").inner_text()
    assert "LookupError: <i>no total" in failure
    assert f"{Path(__file__).name}:" in failure
    assert " in fail" in failure
    assert page.locator("#failures td").first.inner_text().endswith("s ago")
    assert "no check" in page.locator("#hot-watchers li").first.inner_text()
    cells = page.locator("#rooms tr").first.locator("td").all_inner_texts()
    assert (cells[3][-2:], cells[4]) in ((" s", "15 min"), ("ms", "15 min"))
    numbers = page.locator("#numbers").inner_text()
    assert "ends in 15 min" in numbers
    assert re.search(r"since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \S+", numbers)
    waited = page.locator("#operations td").first
    assert re.fullmatch(r"since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \S+", waited.get_attribute("title") or "")
    assert said == []


def test_samples_and_old_losses_are_called_so(service: Service, open_context: Callable[..., Any]) -> None:
    """Ten of twelve failures are a sample; a key of which one operation expired is not ranked; a loss has its age."""

    def fail(_: Op) -> None:
        raise LookupError

    def act() -> None:
        for number in range(12):
            service.orders.try_complete_else_watch(failing := Op(None), [f"invoice-{number}"])
            failing._on_try = fail
            service.orders.check(f"invoice-{number}")
        for key in ("once", "often", "often"):
            service.orders.try_complete_else_watch(Op(0.05), [key])

    page = live(open_context(service.url, **DESKTOP))
    service.call(act)
    until(page, "#failures-sample", "A sample: 10 of the 12 failures since the process began.")
    until(page, "#hot-expired", "often100% of 2")
    assert "once" not in page.locator("#hot-expired").inner_text()
    until(page, "#relays", " ago: ConnectionRefusedError")


def test_hostile_names_are_texts(service: Service, open_context: Callable[..., Any], said: list[str]) -> None:
    """HTML in names of purgatories, kinds and keys is shown as it is, and nothing of it runs."""

    class Raises:
        def __repr__(self) -> str:
            raise ValueError(HOSTILE)

    kind = type(HOSTILE, (Op,), {})
    for key in (HOSTILE, "\u202egnirts", "w" * 10_000, "", Raises(), b"\x00"):
        service.call(service.jobs.try_complete_else_watch, kind(None), [key])
    page = live(open_context(service.url, **DESKTOP))
    page.get_by_role("button", name="jobs <i>").click()
    until(page, "#operations", HOSTILE)
    shown = page.locator("#operations").inner_text()
    for text in (
        "\\u202egnirts",
        "w" * 119 + "…",
        "(the empty text)",
        "<Raises whose repr raised ValueError>",
        "b'\\x00'",
    ):
        assert text in shown
    assert page.locator("#kinds th").inner_text() == HOSTILE
    page.locator("#operations button", has_text="Raises").click()
    until(page, "#found", "1 operation on <Raises")
    assert page.evaluate("() => [window.hacked, document.querySelectorAll('main img').length]") == [None, 0]
    assert page.evaluate(WHOLE)
    assert said == []


def test_on_a_phone_tables_scroll_and_kinds_are_in_one_piece(
    service: Service, open_context: Callable[..., Any], said: list[str]
) -> None:
    """No kind is broken inside a word, keys have room, and a table that is cut says that it scrolls."""
    kind = type("GET /orders/{id}", (Op,), {})
    service.call(service.orders.try_complete_else_watch, kind(None), ["order-7"])
    page = live(open_context(service.url, **PHONE))
    until(page, "#operations", "order-7")
    lines = "element => element.getClientRects().length"
    for selector in ("#kinds th button", "#operations .name button"):
        assert page.locator(selector).first.evaluate(lines) == 1
    one_line = "cell => cell.clientHeight < 2 * parseFloat(getComputedStyle(cell).lineHeight)"
    for selector in ("#kinds th button", "#operations td:nth-child(2)"):
        assert page.locator(selector).first.evaluate(one_line), selector
    assert page.locator("#operations td:nth-child(3)").first.evaluate("cell => cell.clientWidth") >= 190
    hint = "box => getComputedStyle(box, '::before').content"
    cut = page.locator("[data-cut]:has(#operations)")
    cut.wait_for()
    assert "Scroll sideways" in cut.evaluate(hint)
    assert page.evaluate(WHOLE)
    desktop = live(open_context(service.url, **DESKTOP))
    until(desktop, "#operations", "order-7")
    assert "Scroll" not in desktop.locator(".scroll:has(#operations)").evaluate(hint)
    assert said == []


def test_a_search_lists_the_operations_on_a_key(
    service: Service, open_context: Callable[..., Any], said: list[str]
) -> None:
    """With the keyboard alone: search, choose a key, and go back to the longest waiting operations."""
    park(service, 3, "order-7")
    park(service, 1, "order-77")
    page = live(open_context(service.url, **DESKTOP))
    page.locator("#key").focus()
    page.keyboard.type("order-7")
    page.keyboard.press("Enter")
    until(page, "#found", "2 keys found; below, 3 operations on order-7.")
    assert page.locator("#operations tr").count() == 3
    page.locator("#matches li button", has_text="order-77").focus()
    page.keyboard.press("Enter")
    until(page, "#found", "1 key found; below, 1 operation on order-77.")
    page.locator("#reset").focus()
    page.keyboard.press("Enter")
    until(page, "#found", "All operations, the longest waiting first.")
    assert page.locator("#operations tr").count() == 4
    page.locator("#key").fill("order")
    page.get_by_role("button", name="Search").click()
    until(page, "#found", "No operation waits on exactly order. 2 keys contain it; below, 3 operations on order-7.")
    page.locator("#key").fill("nowhere")
    page.get_by_role("button", name="Search").click()
    until(page, "#found", "No operation waits on a key that contains nowhere.")
    assert said == []


def test_the_operations_on_a_key_are_withdrawn_after_a_question(
    service: Service, open_context: Callable[..., Any]
) -> None:
    """The dialog asks first; a cancelled one changes nothing; a refusal of the server is shown."""
    park(service, 2, "stuck")
    page = live(open_context(service.url, **DESKTOP))
    withdraw = page.get_by_role("button", name="Withdraw the operations on stuck").first
    withdraw.click()
    page.get_by_role("button", name="Keep them waiting").click()
    assert service.call(len, service.orders) == 2
    service.allow = False
    withdraw.click()
    page.locator("#action-do").click()
    until(page, "#said", "Not done: authorize does not allow it.")
    service.allow = True
    withdraw.click()
    page.get_by_label("Reason").fill("because of a test")
    page.locator("#action-do").click()
    until(page, "#said", "2 operations ended.")
    assert service.call(len, service.orders) == 0
    assert [(action.verb, action.key) for action in service.asked] == [("withdraw", "stuck")] * 2


def test_it_moves_can_be_paused_and_survives_a_restart(
    service: Service, open_context: Callable[..., Any], said: list[str]
) -> None:
    """Frames arrive by themselves; while the server is gone the page says so, and continues without a reload."""
    page = live(open_context(service.url, **DESKTOP))
    page.wait_for_function("() => frame.number >= 3")
    page.locator("#pause").focus()
    page.keyboard.press("Space")
    park(service, 5, "a")
    page.wait_for_function("() => frame.rooms[0].parked === 5")
    assert page.locator("#numbers dd span").first.inner_text() == "0"
    page.keyboard.press("Enter")
    until(page, "#numbers", "5")
    page.evaluate("() => { window.mark = 'not reloaded'; }")
    assert said == []
    service.stop()
    page.locator("#status[data-state='lost']").wait_for()
    assert "The server does not answer. The data are from" in page.locator("#trouble").inner_text()
    service.start()
    live(page)
    page.wait_for_function("() => frame.number === 1")
    assert page.locator("#trouble").inner_text() == ""
    assert page.evaluate("() => window.mark") == "not reloaded"
    assert all("net::ERR_" in line or "503" in line for line in said), said


def test_a_blocked_loop_is_told_from_a_lost_server(service: Service, open_context: Callable[..., Any]) -> None:
    """While the event loop of the server is blocked, the page says that it sends nothing; then that a turn was long."""
    page = live(open_context(service.url, **DESKTOP))
    release = threading.Event()
    service._loop.call_soon_threadsafe(release.wait, 30)
    page.locator("#status[data-state='silent']").wait_for()
    assert "it is busy or blocked" in page.locator("#trouble").inner_text()
    release.set()
    live(page)
    until(page, "#findings", "A turn of the event loop took")


def test_the_theme_follows_the_system_until_it_is_chosen(service: Service, open_context: Callable[..., Any]) -> None:
    """The theme follows the system; the button changes it, and a reload keeps the choice."""
    page = open_context(service.url, **DESKTOP, color_scheme="dark")
    theme = "() => document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "dark"
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")
    button = page.get_by_role("button", name="Dark")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.reload()
    assert page.evaluate(theme) == "dark"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_names_contrast_and_keyboard_are_accessible(
    service: Service, open_context: Callable[..., Any], scheme: str, size: dict[str, Any]
) -> None:
    """axe reports no problem, nothing is wider than the screen, and every control is reached and shows its focus."""
    park(service, 850, "order-1", timeout=900.0)
    park(service, 3, HOSTILE)
    page = live(open_context(service.url, **size, color_scheme=scheme))
    until(page, "#findings", "max_parked is 85% full")
    reached = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
        assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"skip", "pause", "theme", "scroll", "link", "small"} <= reached
    assert axe_problems(page, "color-contrast", "button-name", "label", "select-name", "svg-img-alt") == ""
    page.get_by_role("button", name="Fail the operations on order-1").first.click()
    page.get_by_role("dialog", name="Fail the operations on one key?").wait_for()
    assert axe_problems(page, "label") == ""
    page.keyboard.press("Escape")
    page.evaluate("() => { source.close(); source.onmessage = null; source.onerror(); }")
    page.locator("#status[data-state='lost']").wait_for()
    assert axe_problems(page, "color-contrast") == ""
    assert page.evaluate(WHOLE)
