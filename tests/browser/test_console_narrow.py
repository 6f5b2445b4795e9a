"""The console on narrow screens and by keyboard: nothing is out of sight or behind a bar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.console import IN_A_BROWSER, call, opened_console, published, within_its_width
from tests.browser.test_console_late import Held
from tests.service_process import ROOT

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


@pytest.mark.parametrize("width", [768, 360])
def test_the_id_of_a_call_is_read_in_the_list_on_a_tablet_and_a_phone(tmp_path: Path, width: int) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        start = {"flowId": published(console.base, "clinic-v1"), "tag": "prod", "channel": "phone"}
        call_id = "CA" + "0123456789abcdef" * 2
        contact = {"conversationId": call_id, "contactId": "contact-1"}
        call(console.base, "POST", "/v1/handle-new-contact", {**contact, **start})
        page.set_viewport_size({"width": width, "height": 1000})
        console.open("/conversations")
        shown = page.get_by_text(call_id)
        expect(shown).to_be_visible()
        assert shown.evaluate("element => element.scrollWidth <= element.clientWidth")
        console.was_clean()


def a_graph_that_is_arranged(base: str) -> str:
    """The address of the graph of a flow whose tasks have no places yet."""
    document: dict[str, Any] = json.loads((ROOT / "examples/refunds/flow.json").read_text("utf-8"))
    del document["conversationalFlowId"]
    flow = call(base, "POST", "/v1/flows", {"name": "Refunds", "campaignId": "c", "updatedBy": "ada"})
    made = call(base, "POST", f"/v1/flows/{flow['id']}/versions", document)
    return f"/flows/{flow['id']}/versions/{made['versionId']}"


def test_a_task_panel_leaves_some_of_the_graph_or_hides_it(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open(a_graph_that_is_arranged(console.base))
        page.locator(".react-flow__node[data-id=welcome]").click()
        panel, graph = page.locator(".task-panel"), page.locator(".canvas")
        page.get_by_label("Show it for a conversation").fill("none")
        for width in (390, 480, 600, 720, 900, 1100, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            wide, whole = (each.evaluate("e => e.getBoundingClientRect().width") for each in (panel, graph))
            hidden = graph.evaluate("e => getComputedStyle(e).contentVisibility") == "hidden"
            assert hidden == (width <= 480)
            assert wide == whole if hidden else wide <= 0.83 * whole
            within_its_width(page)


def test_a_person_decides_in_a_talk_on_what_the_ai_wants_to_say(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open(a_graph_that_is_arranged(console.base))
        talk = page.get_by_role("region", name="Talk")
        for text in ("/set orderNumber 7781", "/task refund"):
            talk.get_by_role("textbox", name="Message").fill(text)
            talk.get_by_role("button", name="Send").click()
            expect(talk.get_by_role("textbox", name="Message")).to_have_value("")
        for decision, said in (("Reject", None), ("Approve the edited text", "We refund 25 €.")):
            talk.get_by_role("textbox", name="What the AI wants to say").fill("We refund it.")
            talk.get_by_role("button", name="Put before a person").click()
            words = talk.get_by_label("What the agent wants to say")
            expect(words).to_have_value("We refund it.")
            words.fill(said or "We refund it.")
            console.is_accessible()
            talk.get_by_role("button", name=decision, exact=True).click()
            expect(words).to_have_count(0)
        expect(talk.locator(".talk-said.agent")).to_have_text("We refund 25 €.")
        talk.get_by_role("button", name="Take over").click()
        expect(talk.get_by_role("status").first).to_contain_text("human")
        talk.get_by_role("button", name="Release to the AI").click()
        expect(talk.get_by_role("status").first).to_contain_text("ai")
        console.was_clean()


def test_a_talk_begins_on_the_channel_that_is_chosen_of_the_documents_own(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open(a_graph_that_is_arranged(console.base))
        talk = page.get_by_role("region", name="Talk")
        channel = talk.get_by_label("Channel")
        expect(channel.locator("option")).to_have_text(["chat", "mail"])
        channel.select_option("mail")
        talk.get_by_role("textbox", name="Message").fill("Hello")
        talk.get_by_role("button", name="Send").click()
        talk.get_by_text("Flow tests").click()
        talk.get_by_role("button", name="Save the talk as a test").click()
        expect(talk.get_by_label("Tests (YAML)")).not_to_have_value("")
        assert "channel: mail\n" in talk.get_by_label("Tests (YAML)").input_value()
        expect(channel).to_have_count(0)
        console.was_clean()


def test_a_graph_is_shown_whole_once_it_is_arranged_unless_somebody_looks_around(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        address = a_graph_that_is_arranged(console.base)
        last = page.locator(".react-flow__node[data-id=goodbye]")
        view = page.locator(".react-flow__viewport")
        for looks_around in (False, True):
            engine = Held(page, "**/assets/elk-worker*")
            console.open(address)
            engine.wait()
            expect(last).to_be_in_viewport(ratio=0.9)
            if looks_around:
                page.get_by_role("button", name="Zoom In").click()
                page.wait_for_timeout(500)  # until it is zoomed
            seen, before = (each.get_attribute("style") or "" for each in (view, last))
            engine.let_go()
            expect(last).not_to_have_attribute("style", before)
            if looks_around:
                page.wait_for_timeout(300)
                expect(view).to_have_attribute("style", seen)
            else:
                expect(last).to_be_in_viewport(ratio=0.9)
        console.was_clean()


def test_a_task_shows_that_it_has_the_focus(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open(a_graph_that_is_arranged(console.base))
        task = page.locator(".react-flow__node").first
        expect(task).to_be_visible()
        page.keyboard.press("Tab")  # from here on the keyboard leads
        task.focus()
        expect(task).to_have_css("outline-style", "solid")
        console.was_clean()


def test_a_graph_is_shown_below_its_tools_and_a_connection_shows_that_it_has_the_focus(
    tmp_path: Path,
) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        expect(page.locator(".page-head")).to_contain_text("by local")
        first = page.locator(".react-flow__node[data-id=reception]")
        expect(first).to_be_visible()
        for _ in ("at first", "fitted again"):
            tools, seen = page.get_by_role("toolbar").bounding_box(), first.bounding_box()
            assert tools is not None
            assert seen is not None
            assert seen["y"] >= tools["y"] + tools["height"]
            page.get_by_role("button", name="Fit View").click()
        way = page.locator(".react-flow__edge").first
        page.keyboard.press("Tab")  # from here on the keyboard leads
        way.focus()
        expect(way.locator(".react-flow__edge-path")).to_have_css("stroke-width", "3px")
        console.was_clean()


def test_what_is_not_there_is_told_within_a_small_phone(tmp_path: Path) -> None:
    with opened_console(tmp_path, width="narrow") as console:
        console.open(f"/flows/{'f' * 64}/versions/v1")
        page = console.page
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("main").get_by_role("link", name="Flows")).to_be_visible()
        told = page.get_by_role("alert")
        expect(told).to_contain_text("ffff")
        assert told.evaluate("element => element.scrollWidth <= element.clientWidth")
        within_its_width(page)


def test_a_graph_on_a_small_phone(tmp_path: Path) -> None:
    with opened_console(tmp_path, width="narrow") as console:
        page = console.page
        page.set_viewport_size({"width": 360, "height": 740})
        console.open(a_graph_that_is_arranged(console.base))
        canvas, tools = page.locator(".canvas"), page.get_by_role("toolbar")
        expect(page.locator(".react-flow__node").first).to_be_visible()
        frame, bar = canvas.bounding_box(), tools.bounding_box()
        assert frame is not None
        assert bar is not None
        assert bar["x"] + bar["width"] <= frame["x"] + frame["width"] - 12
        page.locator(".react-flow__node").first.focus()
        page.keyboard.press("Enter")
        close = page.get_by_role("button", name="Close")
        page.keyboard.press("Tab")
        expect(close).to_be_focused()  # of the tasks behind the panel none
        page.keyboard.press("Shift+Tab")
        assert canvas.evaluate("element => !element.contains(document.activeElement)")
        close.click()
        expect(page.get_by_role("button", name="Zoom In")).to_be_visible()
        page.get_by_label("Search tasks").focus()
        assert page.evaluate(FOCUSED_IS_SEEN)
        console.was_clean()


def test_the_fields_of_a_split_are_of_one_height(tmp_path: Path) -> None:
    with opened_console(tmp_path, width="narrow") as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        document = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1")
        versions = f"/v1/flows/{flow_id}/versions?parentVersionId=clinic-v1"
        call(console.base, "POST", versions, {**document, "_id": "clinic-v2"})
        console.open(f"/flows/{flow_id}/publishing")
        page.get_by_role("button", name="Split").first.click()
        side = page.locator(".side-form").first
        version, weight = side.locator("select").bounding_box(), side.locator("input").bounding_box()
        assert version is not None
        assert weight is not None
        assert (version["y"], round(version["height"])) == (weight["y"], 36)
        console.was_clean()


def test_what_is_chosen_is_seen_in_the_systems_own_colours(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        page.emulate_media(forced_colors="active")
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        page.locator(".react-flow__node[data-id=reception]").click()
        page.get_by_role("button", name="Settings").press("Enter")
        page.keyboard.press("ArrowDown")
        for name, chosen, other in (
            ("background-color", "a.active", ".main-navigation a:not(.active)"),
            ("background-color", ".tab[data-state=active]", ".tab[data-state=inactive]"),
            ("background-color", ".menu-item[data-highlighted]", ".menu-item:not([data-highlighted])"),
            ("border-top-color", ".task-node.selected", ".task-node:not(.selected)"),
        ):
            first, second = (page.locator(each).first for each in (chosen, other))
            style = f"element => getComputedStyle(element).getPropertyValue('{name}')"
            assert first.evaluate(style) != second.evaluate(style), chosen
        console.was_clean()


def test_on_a_page_enlarged_four_times_the_bar_goes_along(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        page.set_viewport_size({"width": 320, "height": 256})
        console.open(a_graph_that_is_arranged(console.base))
        expect(page.get_by_role("button", name="Publish")).to_be_visible()
        page.evaluate("scrollTo(0, 200)")
        expect(page.get_by_role("banner")).not_to_be_in_viewport()
        within_its_width(page)
        console.was_clean()


def test_an_address_that_leads_nowhere_is_called_so(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open("/flows")
        expect(page).to_have_title("Flows · Flow Engine")
        console.open("/nowhere")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        title = page.get_by_role("heading", level=1).inner_text()
        expect(page).to_have_title(f"{title} · Flow Engine")
        console.was_clean()
