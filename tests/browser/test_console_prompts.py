"""A prompt is written beside what a model would read of it in a conversation that people had."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.browser.console import IN_A_BROWSER, WIDTHS, call, opened_console
from tests.browser.test_console_operators import CALL, a_conversation, published, within_its_width

pytestmark = IN_A_BROWSER

PROMPT = "Ask {{ $contact.name }} for the size, {{ $values.size }} so far; mind {{ $vars.colour }}."


def test_a_prompt_is_rendered_beside_its_text(tmp_path: Path) -> None:  # console: prompt editor
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1")
        a_conversation(base, flow_id)
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        page.locator("[data-task=reception]").click()
        panel = page.get_by_role("region", name="reception")
        panel.locator(".cm-editor").wait_for()
        panel.get_by_role("textbox", name="Prompt").click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(PROMPT)
        panel.get_by_label("Show it for a conversation").fill("conv-1")
        rendered = panel.get_by_role("region", name="As a model reads it")
        expect(rendered).to_contain_text("Ask [unknown: $contact.name] for the size,  so far")
        for name, why in (
            ("$vars.colour", "is no variable of this document"),
            ("$values.size", "has no value in this conversation"),
            ("$contact.name", "is not there"),
        ):
            expect(rendered.get_by_role("listitem").filter(has_text=name)).to_contain_text(why)
        console.is_accessible()

        written = {"varId": "var_enum", "value": "S", "contactId": CALL["contactId"], "updatedBy": "crm"}
        call(base, "PUT", "/v1/memory/conv-1", [{**written, "descriptionForLLM": None}])
        panel.get_by_label("Entry").fill("1")
        expect(rendered).to_contain_text("for the size,  so far")
        panel.get_by_label("Entry").fill("")
        panel.get_by_role("textbox", name="Prompt").click()
        page.keyboard.press("Control+End")
        page.keyboard.insert_text(" Goodbye.")
        expect(rendered).to_contain_text("for the size, S so far")
        expect(rendered).to_contain_text("Goodbye.")
        rendered.scroll_into_view_if_needed()
        console.picture("rendered")

        page.set_viewport_size(WIDTHS["narrow"])  # type: ignore[arg-type]
        page.emulate_media(color_scheme="dark")
        within_its_width(page)
        console.is_accessible()
        panel.get_by_label("Show it for a conversation").fill("nobody")
        expect(panel.get_by_text("conversation 'nobody'")).to_be_visible()
        # The browser notes the 404 that was asked for; nothing else went wrong.
        assert (len(console.errors), console.foreign) == (1, [])
