"""The graph of a flow by the keyboard: what is chosen has its panel, and the focus has a place through all of it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.browser.console import IN_A_BROWSER, opened_console
from tests.browser.test_console_canvas import drawn

pytestmark = IN_A_BROWSER


def test_a_task_that_is_chosen_after_another_was_deleted_shows_its_panel(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        page.locator("[data-task=visit]").click()
        page.keyboard.press("Delete")
        expect(page.locator(".task-node")).to_have_count(5)
        page.locator("[data-task=reception]").click()
        expect(page.get_by_role("region", name="reception")).to_be_visible()
        page.get_by_role("button", name="Add task").click()
        page.get_by_role("button", name="Undo").click()
        page.locator("[data-task=reception]").click()
        expect(page.get_by_role("region", name="reception")).to_be_visible()
        console.was_clean()
