"""The operators' pages in the dark and in the languages that the console speaks, checked by axe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.console import (
    IN_A_BROWSER,
    WIDTHS,
    Console,
    a_conversation,
    opened_console,
    published,
    within_its_width,
)

pytestmark = IN_A_BROWSER

# Of each language: its locale, and the heading or the tab that shows that a page is there.
HEADINGS = {
    "it": {
        "/conversations": "Conversazioni",
        "/conversations/conv-1?at=2": "conv-1",
        "/operations": "Esercizio",
        "/operations?show=events": "Esercizio",
        "/operations?show=jobs": "Esercizio",
    },
    "es": {
        "/conversations": "Conversaciones",
        "/conversations/conv-1?at=2": "conv-1",
        "/operations": "Operaciones",
        "/operations?show=events": "Operaciones",
        "/operations?show=jobs": "Operaciones",
    },
}
PUBLISHING = {"it": ("Confronta", "Storia"), "es": ("Comparar", "Historia")}
HOLE = re.compile(r"\{[A-Za-z]+\}")
"""A place of a text that was not filled."""


def reads_well(console: Console, language: str) -> None:
    page = console.page
    expect(page.locator("html")).to_have_attribute("lang", language)
    expect(page.locator("main .loading")).to_have_count(0)
    assert HOLE.findall(page.locator("main").inner_text()) == []
    console.is_accessible()
    within_its_width(page)


@pytest.mark.parametrize("language", sorted(HEADINGS))
def test_operators_pages_are_accessible_in_the_dark_in_each_language(tmp_path: Path, language: str) -> None:
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1", "clinic-v2")
        a_conversation(console.base, flow_id)
        browser = console.page.context.browser
        assert browser is not None
        # The narrow one: that is where long words do not fit.
        context = browser.new_context(locale=language, color_scheme="dark", viewport=WIDTHS["narrow"])  # type: ignore[arg-type]
        spoken = Console(context.new_page(), console.base)
        page = spoken.page
        for path, heading in HEADINGS[language].items():
            spoken.open(path)
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            reads_well(spoken, language)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(int(part) for part in re.findall(r"\d+", dark)[:3]) < 80, dark
        for pane, tab in zip(("compare", "history"), PUBLISHING[language], strict=True):
            spoken.open(f"/flows/{flow_id}/publishing?show={pane}")
            expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
            reads_well(spoken, language)
        spoken.was_clean()


def test_problems_are_named_in_the_language_of_the_reader(tmp_path: Path) -> None:
    with opened_console(tmp_path, locale="it-IT") as console:
        flow_id, page = published(console.base, "clinic-v1"), console.page
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        problem = (
            page.get_by_role("region", name="Problemi").get_by_role("listitem").filter(has_text="island")
        )
        expect(problem).to_contain_text("Nessuna catena di collegamenti porta a un compito")
        expect(problem.locator("[lang=en]").first).to_contain_text("no chain of 'connectedTasks'")
        reads_well(console, "it")
        console.was_clean()


def test_a_language_that_is_chosen_stays_and_changes_the_page_at_once(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open("/operations")
        expect(page.get_by_role("heading", name="Operations", exact=True)).to_be_visible()
        for chosen, heading, settings, language in (
            ("Italiano", "Esercizio", "Impostazioni", "it"),
            ("Español", "Operaciones", "Ajustes", "es"),
        ):
            page.locator("header.bar > button").click()
            page.get_by_role("menuitemradio", name=chosen).click()
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            expect(page.locator("header.bar > button")).to_have_attribute("aria-label", settings)
            page.reload()
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            assert json.loads(page.evaluate("JSON.stringify(document.documentElement.lang)")) == language
        console.was_clean()
