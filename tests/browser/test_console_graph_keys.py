"""The graph of a flow by the keyboard: what is chosen has its panel, and the focus is never lost."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.console import IN_A_BROWSER, opened_console
from tests.browser.test_console_canvas import drawn
from tests.browser.test_console_late import Held
from tests.browser.test_console_narrow import FOCUSED_IS_SEEN

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


def test_tab_leads_from_what_is_chosen_to_its_panel_and_escape_back(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        node = page.locator(".react-flow__node[data-id=supervised]")
        close = page.get_by_role("region", name="supervised").get_by_role("button", name="Close")
        page.keyboard.press("Tab")  # from here on the keyboard leads
        node.focus()
        page.keyboard.press("Enter")
        page.wait_for_function(FOCUSED_IS_SEEN)  # its panel would lie over it
        page.keyboard.press("Tab")
        expect(close).to_be_focused()
        page.keyboard.press("Shift+Tab")
        expect(node).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(node).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(close).to_have_count(0)
        expect(node).to_be_focused()
        way = page.locator(".react-flow__edge[data-id='reception → operator']")
        way.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="→ operator")).to_be_focused()
        page.keyboard.press("Escape")
        expect(way).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("region", name="reception")).to_have_count(0)
        expect(way).to_be_focused()
        page.get_by_label("Search tasks").fill("supervised")
        page.keyboard.press("Tab")
        expect(close).to_be_focused()
        console.is_accessible()
        console.was_clean()


def test_a_task_that_moves_behind_its_panel_on_a_slow_machine_is_brought_into_sight(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        slow = page.context.new_cdp_session(page)
        slow.send("Emulation.setCPUThrottlingRate", {"rate": 6})
        engine = Held(page, "**/assets/elk-worker*")
        drawn(console)
        page.keyboard.press("Tab")  # from here on the keyboard leads
        task = page.locator(".react-flow__node[data-id=supervised]")
        task.press("Enter")
        expect(page.get_by_role("region", name="supervised")).to_be_visible()
        before = task.get_attribute("style") or ""
        engine.let_go()
        expect(task).not_to_have_attribute("style", before)
        page.wait_for_function(FOCUSED_IS_SEEN)
        console.was_clean()


def test_a_task_is_made_named_connected_and_deleted_where_the_focus_is(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        nodes = page.locator(".task-node")
        page.get_by_role("button", name="Add task").press("Enter")
        name = page.get_by_label("Name", exact=True)
        expect(name).to_be_focused()
        page.keyboard.press("Control+a")
        page.keyboard.type("booking")
        panel = page.get_by_role("region", name="booking")
        choice = panel.get_by_label("Connect to")
        choice.focus()
        for _ in range(3):  # the arrow keys choose, and connect nothing
            page.keyboard.press("ArrowDown")
        expect(choice).to_have_value("operator")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(panel.get_by_role("group", name="→")).to_have_count(1)
        page.keyboard.press("Escape")
        page.keyboard.press("Delete")
        expect(nodes).to_have_count(6)
        page.keyboard.press("Control+z")
        expect(nodes).to_have_count(7)
        console.was_clean()


BESIDE_ALL = """() => {
    const [one, ...others] = [...document.querySelectorAll(".task-node")]
        .sort((each, other) => other.matches(".selected") - each.matches(".selected"))
        .map(each => each.getBoundingClientRect())
    const panel = document.querySelector(".task-panel")?.getBoundingClientRect()
    const beside = (each, other) => each.right <= other.left || each.bottom <= other.top
    return one.right < panel?.left && others.every(other => beside(one, other) || beside(other, one))
}"""


def test_a_new_task_lies_on_no_other_and_not_behind_its_panel(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        for count in (7, 8):
            page.get_by_role("button", name="Add task").click()
            expect(page.locator(".task-node")).to_have_count(count)
            page.wait_for_function(BESIDE_ALL)
        console.was_clean()


def test_a_problem_of_a_whole_task_leads_into_its_panel_and_past_the_graph_there_is_a_way(
    tmp_path: Path,
) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        page.get_by_label("Search tasks").focus()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip the graph")).to_be_focused()
        page.keyboard.press("Enter")
        problems = page.get_by_role("region", name="Problems")
        expect(problems).to_be_focused()
        problems.get_by_role("button", name="to 'island'").press("Enter")
        panel = page.get_by_role("region", name="island")
        expect(panel.get_by_label("Name", exact=True)).to_be_focused()
        console.was_clean()


def test_the_graph_is_heard_in_the_readers_language(tmp_path: Path) -> None:
    with opened_console(tmp_path, locale="it-IT") as console:
        drawn(console)
        page = console.page
        told = page.locator(".react-flow__node[data-id=island]")
        expect(told).to_have_accessible_name("island, Solo IA, Irraggiungibile, ha avvisi")
        expect(told).to_have_attribute("aria-roledescription", "compito")
        expect(told).to_have_accessible_description(re.compile("^Invio lo seleziona"))
        expect(page.get_by_role("button", name="Ingrandisci")).to_be_visible()
        console.was_clean()


IN_ITS_FRAME = """() => {
    const [way, frame] = [document.activeElement, document.querySelector(".canvas")].map(
        each => each.getBoundingClientRect())
    const across = way.right > frame.left && way.left < frame.right
    return across && way.bottom > frame.top && way.top < frame.bottom
}"""


def test_a_connection_that_has_the_focus_is_brought_into_view(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        page.wait_for_load_state("networkidle")
        for _ in range(6):
            page.get_by_role("button", name="Zoom In").press("Enter")
        page.wait_for_timeout(500)  # until it is zoomed
        ways = page.locator(".react-flow__edge")
        for number in range(ways.count()):
            ways.nth(number).focus()
            page.wait_for_function(IN_ITS_FRAME)
        console.was_clean()
