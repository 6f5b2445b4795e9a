"""Where the focus is when what had it cannot be used any more, or is gone; and what each page is called."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Route, expect

from tests.browser.console import CALL, IN_A_BROWSER, a_conversation, call, opened_console, published
from tests.browser.test_console_keys import DESIGNER, NEW_DESIGNER, signed_in, with_keys
from tests.browser.test_console_late import refusing

pytestmark = IN_A_BROWSER

NOTED = """() => {
    window.told = [];
    const noted = ({target, addedNodes}) => target.matches("[aria-live]") &&
        addedNodes.forEach((each) => window.told.push(each.textContent));
    new MutationObserver((all) => all.forEach(noted))
        .observe(document.querySelector("main"), {childList: true, subtree: true});
}"""
"""In the page: what is put into a live region that is there already, as `told`."""


def test_a_button_that_cannot_be_used_now_keeps_the_focus(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        a_conversation(console.base, published(console.base, "clinic-v1"))
        console.open("/conversations/conv-1")
        earlier = page.get_by_role("button", name="Earlier entry")
        expect(earlier).to_be_enabled()
        earlier.focus()
        for entry in (4, 3, 2, 1):
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name=f"Entry {entry} of")).to_be_visible()
        expect(earlier).to_be_disabled()
        expect(earlier).to_be_focused()
        assert page.title() == "conv-1 · Flow Engine"
        console.was_clean()


def test_what_goes_away_leaves_the_focus_to_what_stood_around_it(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        a_conversation(console.base, flow_id)
        console.open("/conversations/conv-1")
        page.get_by_role("button", name="Take over", exact=True).press("Enter")
        expect(page.get_by_role("button", name="Release to the AI")).to_be_visible()
        expect(page.get_by_role("main")).to_be_focused()
        page.get_by_role("link", name="Conversations").last.press("Enter")
        expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        expect(page.get_by_role("main")).to_be_focused()
        assert page.title() == "Conversations · Flow Engine"

        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        message = page.get_by_role("textbox", name="Message")
        message.fill("/hangup")
        message.press("Enter")
        expect(page.get_by_role("button", name="Come back")).to_be_visible()
        expect(page.get_by_role("region", name="Talk")).to_be_focused()
        console.was_clean()


def test_a_rolled_back_tag_has_the_focus_at_its_buttons_and_a_dialog_at_what_it_is_for(
    tmp_path: Path,
) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1", "clinic-v2")
        console.open(f"/flows/{flow_id}/publishing")
        prod = page.get_by_role("region", name="prod")
        expect(prod).to_contain_text("no version before to roll back to")
        prod.get_by_role("button", name="Split").press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("combobox", name="Base")).to_be_focused()
        dialog.get_by_role("button", name="Split").press("Enter")
        expect(dialog).to_have_count(0)
        expect(prod.get_by_text("90 %")).to_be_visible()
        expect(prod).not_to_contain_text("no version before")
        prod.get_by_role("button", name="Roll back").press("Enter")
        expect(dialog.get_by_role("button", name="Roll back to clinic-v1")).to_be_focused()
        page.keyboard.press("Enter")
        expect(prod.get_by_text("90 %")).to_have_count(0)
        expect(prod.get_by_role("button", name="Roll back")).to_be_focused()
        console.was_clean()


def test_a_flow_that_could_not_be_created_is_not_told_of_when_another_one_is_begun(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open("/flows")
        page.route("**/v1/flows", _refused)
        page.get_by_role("button", name="Create a flow").click()
        page.get_by_role("textbox", name="Name").fill("Clinic")
        page.get_by_role("textbox", name="Campaign").fill("c")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("no_room")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Create a flow").click()
        expect(page.get_by_role("textbox", name="Name")).to_have_value("Clinic")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_who_signs_in_is_at_the_page_and_again_where_the_key_ended(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, flow_id):
        page = console.page
        console.open(f"/flows/{flow_id}/publishing")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("no-such-key-as-this")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This key is not known here.")
        signed_in(console, f"/flows/{flow_id}/publishing", DESIGNER)
        expect(page.get_by_role("main")).to_be_focused()

        def withdrawn(route: Route) -> None:
            old = route.request.headers.get("authorization") == f"Bearer {DESIGNER}"
            refusing(route, 401, "unauthorized") if old else route.continue_()

        page.get_by_role("tab", name="Tags").focus()
        page.route("**/v1/**", withdrawn)
        page.keyboard.press("ArrowRight")
        page.get_by_label("API key").fill(NEW_DESIGNER)
        page.keyboard.press("Enter")
        expect(page.get_by_role("tab", name="Compare")).to_be_focused()


def test_past_the_entries_of_a_conversation_there_is_a_way(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        a_conversation(console.base, published(console.base, "clinic-v1"))
        console.open("/conversations/conv-1")
        page.get_by_role("checkbox", name="Only the 1 refusal").focus()
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip the entries")
        expect(skip).to_be_focused()
        console.is_accessible()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Earlier entry")).to_be_focused()
        console.was_clean()


def test_an_entry_that_comes_is_told_and_all_that_are_shown_again_are_not(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        a_conversation(console.base, published(console.base, "clinic-v1"))
        console.open("/conversations/conv-1")
        entries = page.get_by_role("region", name="Timeline").get_by_role("list")
        expect(entries).to_have_attribute("aria-live", "polite")
        page.evaluate(NOTED)
        only = page.get_by_role("checkbox", name="Only the 1 refusal")
        only.check()
        only.uncheck()
        call(console.base, "POST", "/v1/change-task", {**CALL, "task": "reception", "reason": "Told"})
        expect(entries.get_by_text("Told")).to_be_visible()
        told = page.evaluate("window.told")
        assert "Told" in told[-1]
        assert not any("Started" in each for each in told)
        console.was_clean()


def _refused(route: Route) -> None:
    if route.request.method == "POST":
        refusing(route, 409, "no_room")
    else:
        route.continue_()
