"""The console on narrow screens and by keyboard: nothing is out of sight or behind a bar."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.browser.console import IN_A_BROWSER, call, opened_console, published, within_its_width

pytestmark = IN_A_BROWSER

FOCUSED_IS_SEEN = """() => {
    const focused = document.activeElement;
    const {x, y, width, height} = focused.getClientRects()[0];
    return focused.contains(document.elementFromPoint(x + width / 2, y + height / 2));
}"""


def test_what_has_the_focus_is_not_behind_a_bar(tmp_path: Path) -> None:
    with opened_console(tmp_path, width="narrow") as console:
        page = console.page
        for number in range(20):
            flow = {"name": f"Flow {number}", "campaignId": "c", "updatedBy": "ada"}
            call(console.base, "POST", "/v1/flows", flow)
        console.open("/flows")
        page.get_by_label("Search flows").focus()
        for key in ("Tab", "Shift+Tab"):
            for _ in range(20):
                page.keyboard.press(key)
                assert page.evaluate(FOCUSED_IS_SEEN), page.evaluate("document.activeElement.outerHTML")
        console.was_clean()


def test_the_tab_of_the_address_is_in_sight(tmp_path: Path) -> None:
    with opened_console(tmp_path, width="narrow") as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        for path, tab in (("/operations?show=mail", "Mail runs"), (f"/flows/{flow_id}/publishing", "Tags")):
            console.open(path)
            expect(page.get_by_role("tab", name=tab)).to_be_in_viewport(ratio=1)
        console.was_clean()


def test_the_filters_of_conversations_fit_the_narrowest_screen(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        page.set_viewport_size({"width": 320, "height": 640})
        console.open("/conversations")
        filters = page.get_by_role("search", name="Filters")
        expect(filters.get_by_label("To")).to_be_visible()
        assert filters.evaluate("element => element.scrollWidth <= element.clientWidth")
        within_its_width(page)
