"""What is done on the canvas beyond drawing: tasks copied and pasted, what the panel of one writes, and what
flow tests have reached."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.browser.console import IN_A_BROWSER, Console, call, opened_console, published, within_its_width
from tests.service_process import ROOT

pytestmark = IN_A_BROWSER

REACHES_THREE = """\
scenarios:
  - name: A visit is wanted by somebody who has said nothing
    steps:
      - change_task: supervised
      - change_task: reception
      - change_task: operator
      - expect: {task: operator}
"""
CANNOT_PASS = """\
scenarios:
  - name: The island is a way off
    steps:
      - change_task: supervised
      - expect: {task: island}
"""


def drawn(console: Console) -> str:
    """Opens the graph of the clinic; the id of its flow."""
    flow_id = published(console.base, "clinic-v1")
    console.open(f"/flows/{flow_id}/versions/clinic-v1")
    expect(console.page.locator(".task-node")).to_have_count(6)
    return flow_id


def colour(node: Locator) -> str:
    return node.evaluate("node => getComputedStyle(node).backgroundColor")


def tasks_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["_id"]: task for task in document["tasks"]}


def of_a_sample(console: Console, changes: dict[str, Any]) -> str:
    """Opens the graph of the sample of orders; the id of its flow."""
    flow = call(console.base, "POST", "/v1/flows", {"name": "Tea", "campaignId": "c", "updatedBy": "ada"})
    sample = json.loads((ROOT / "flows" / "samples" / "order.en.json").read_text("utf-8"))["version"]
    document = {name: value for name, value in sample.items() if name != "conversationalFlowId"} | changes
    call(console.base, "POST", f"/v1/flows/{flow['id']}/versions", document)
    console.open(f"/flows/{flow['id']}/versions/{document['_id']}")
    expect(console.page.locator(".task-node")).to_have_count(len(document["tasks"]))
    return flow["id"]


ON_NO_TASK = """() => ![...document.querySelectorAll(".react-flow__edge-textwrapper")].some(label => {
    const one = label.getBoundingClientRect()
    return [...document.querySelectorAll(".task-node")].some(task => {
        const other = task.getBoundingClientRect()
        return one.left < other.right && one.right > other.left &&
            one.top < other.bottom && one.bottom > other.top
    })
})"""


def test_labels_of_connections_lie_on_no_task_and_are_whole_when_selected(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        of_a_sample(console, {})
        page = console.page
        labels = page.locator(".react-flow__edge-textwrapper")
        expect(labels).to_have_count(7)
        page.wait_for_function(ON_NO_TASK)
        way = page.locator(".react-flow__edge[data-id='delivery → payment']")
        expect(way).to_contain_text("suggest [cart, d…")
        way.focus()
        page.keyboard.press("Enter")
        expect(way.locator("text")).to_have_text("→ suggest [cart, deliveryMethod]")
        page.set_viewport_size({"width": 1920, "height": 1080})
        assert page.locator(".canvas").evaluate("canvas => canvas.clientWidth") > 1400
        console.was_clean()


ON_ITS_WAY = """way => {
    const path = way.querySelector(".react-flow__edge-path")
    for (let part = 0.3; part > 0; part -= 0.01) {  // where the panel does not cover it
        const at = path.getPointAtLength(path.getTotalLength() * part)
        const seen = new DOMPoint(at.x, at.y).matrixTransform(path.getScreenCTM())
        if (way.contains(document.elementFromPoint(seen.x, seen.y))) return [seen.x, seen.y]
    }
}"""


def test_a_connection_that_is_chosen_in_the_graph_shows_its_form_and_alone_is_deleted(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = of_a_sample(console, {})
        page = console.page
        page.locator("[data-task=welcome]").click()
        way = page.locator(".react-flow__edge[data-id='take-order → goodbye']")
        way.focus()
        page.keyboard.press("Enter")
        panel = page.get_by_role("region", name="take order")
        form = panel.get_by_role("group", name="→ goodbye")
        expect(form).to_be_in_viewport(ratio=0.9)
        expect(form).to_have_class(re.compile(r"\bchosen\b"))
        console.is_accessible()
        form.get_by_label("Condition").fill("vars.quantity > 1")
        expect(way).to_contain_text("vars.quantity")
        panel.get_by_role("button", name="Close").click()
        expect(panel).to_have_count(0)
        other = page.locator(".react-flow__edge[data-id='take-order → delivery']")
        page.mouse.click(*other.evaluate(ON_ITS_WAY))
        delivery, name = panel.get_by_role("group", name="→ delivery"), panel.get_by_label("Name").first
        expect(delivery).to_be_in_viewport(ratio=0.9)
        for by_key in (False, True):  # one that is chosen is asked for again
            name.scroll_into_view_if_needed()
            expect(delivery).not_to_be_in_viewport()
            if by_key:
                other.press("Enter")
            else:
                page.mouse.click(*other.evaluate(ON_ITS_WAY))
            expect(delivery).to_be_in_viewport(ratio=0.9)
        page.keyboard.press("Delete")
        expect(other).to_have_count(0)
        expect(page.locator("[data-task=take-order]")).to_have_count(1)
        task = saved_task(console, flow_id, "take-order")
        assert task["connectionConditions"]["goodbye"]["when"] == "vars.quantity > 1"
        assert "delivery" not in task["connectedTasks"]
        console.was_clean()


def test_the_way_to_a_global_task_has_its_condition_and_can_be_done_without(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = of_a_sample(console, {"globalTasks": ["complaint"]})
        page = console.page
        page.get_by_label("Search tasks").fill("payment")
        panel = page.get_by_role("region", name="payment")
        panel.get_by_text("1 way to a global task").click()
        way = panel.get_by_role("group", name="→ complaint")
        way.get_by_label("Condition").fill("vars.quantity > 10")
        way.get_by_label("Once it can be taken").select_option("the model is told to go on")
        task = saved_task(console, flow_id, "payment")
        condition = {"when": "vars.quantity > 10", "advance": "suggest"}
        assert task["connectionConditions"]["complaint"] == condition
        assert "complaint" not in task["connectedTasks"]
        console.is_accessible()
        panel.get_by_role("button", name="Not to complaint from here").click()
        expect(way).to_have_count(0)
        task = saved_task(console, flow_id, "payment")
        assert task["excludedGlobalTasks"] == ["complaint"]
        assert "complaint" not in task["connectionConditions"]
        console.was_clean()


def saved_task(console: Console, flow_id: str, task_id: str) -> dict[str, Any]:
    console.page.get_by_role("button", name="Save draft").click()
    expect(console.page.get_by_text("Draft saved")).to_be_visible()
    expect(console.page.get_by_text("Unsaved changes")).to_have_count(0)
    version = console.page.url.rpartition("/")[2]
    return tasks_of(call(console.base, "GET", f"/v1/flows/{flow_id}/versions/{version}"))[task_id]


def test_variables_and_checkpoints_are_made_in_forms_and_used_by_name(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = of_a_sample(console, {"variables": [], "checkpoints": []} | without_names())
        page = console.page
        page.get_by_role("tab", name="Settings").click()
        settings = page.get_by_role("tabpanel", name="Settings")
        for name in ("age", "member"):
            settings.get_by_role("button", name="Add: Variables").click()
            variable = settings.get_by_role("group", name="Variable", exact=True).last
            variable.get_by_label("Name", exact=True).fill(name)
            variable.get_by_label("Prompt").fill(f"The caller's {name}")
        expect(variable.locator(".hint code").last).to_have_text("custom")
        settings.get_by_role("button", name="Add: Checkpoints").click()
        settings.get_by_role("group", name="Checkpoint", exact=True).get_by_label("Name").fill("Greeted")
        console.is_accessible()
        page.get_by_role("tab", name="Graph").click()
        for _ in range(2):  # the checkpoint's name, then the checkpoint: what was typed before stays
            page.get_by_role("button", name="Undo").click()
        page.get_by_role("button", name="Redo").click()
        page.get_by_label("Search tasks").fill("welcome")
        panel = page.get_by_role("region", name="welcome")
        panel.get_by_text("All other properties").click()
        panel.get_by_label("checkpoint", exact=True).check()
        panel.get_by_role("button", name="Add: Transition parameters").click()
        expect(page.get_by_text("no variable is chosen")).to_be_visible()
        panel.get_by_label("Variable id").select_option("member")
        task = saved_task(console, flow_id, "welcome")
        assert task["transitionParameters"][0]["variableId"] == "variable-2"
        assert [each["_id"] for each in task["enabledCheckpoints"]] == ["checkpoint"]
        console.was_clean()


def test_a_problem_leads_to_the_form_where_it_is_put_right(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        of_a_sample(console, {})
        page = console.page
        graph, settings = page.get_by_role("tab", name="Graph"), page.get_by_role("tab", name="Settings")
        problems = page.get_by_role("region", name="Problems")
        page.locator(".react-flow__edge[data-id='take-order → goodbye']").focus()
        page.keyboard.press("Enter")
        form = page.get_by_role("group", name="→ goodbye")
        form.get_by_label("Condition").fill("vars.nobody > 1")
        settings.click()
        page.get_by_role("button", name="Add: Variables").click()
        graph.click()
        problems.get_by_role("button", name="/variables/").first.click()
        expect(settings).to_have_attribute("aria-selected", "true")
        variable = page.get_by_role("group", name="Variable", exact=True)
        expect(variable.get_by_label("Id", exact=True)).to_have_value("variable")
        expect(variable.get_by_label("Prompt")).to_be_focused()
        problems.get_by_role("button", name="/connectionConditions/goodbye").first.click()
        expect(form.get_by_label("Condition")).to_be_focused()
        settings.click()
        expect(settings).to_be_focused()
        console.is_accessible()
        expect(problems.locator("code").get_by_text("_id", exact=True)).to_be_visible()
        expect(problems).not_to_contain_text("`")
        console.was_clean()


def without_names() -> dict[str, Any]:
    """What names no variable."""
    tasks = [
        {
            "_id": each,
            "name": each,
            "type": "AIO",
            "description": "Enter it.",
            "prompt": "Talk.",
            "transitionParameters": [],
            "closureConfig": {"multiContact": False},
            "enabledCheckpoints": [],
            "connectedTasks": [other],
        }
        for each, other in (("welcome", "goodbye"), ("goodbye", "welcome"))
    ]
    return {"tasks": tasks, "firstTask": "welcome", "mcpServers": []}


BESIDE_ITS_PANEL = """() => {
    const [task, panel] = [".task-node.selected", ".task-panel"].map(
        each => document.querySelector(each)?.getBoundingClientRect())
    return panel?.left - (task?.left + task?.right) / 2 > 100
}"""


def test_the_search_goes_on_to_the_next_task_and_says_when_there_is_none(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        of_a_sample(console, {})
        page, search = console.page, console.page.get_by_label("Search tasks")
        search.fill("order")
        for found in ("take order", "order status", "take order"):
            expect(page.get_by_role("region", name=found)).to_be_visible()
            page.wait_for_function(BESIDE_ITS_PANEL)
            search.press("Enter")
        search.fill("nowhere")
        expect(search).to_have_attribute("aria-invalid", "true")
        console.was_clean()


def test_copied_tasks_are_pasted_with_the_connections_among_them(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = drawn(console)
        page = console.page
        nodes = page.locator(".task-node")
        page.locator(".react-flow__node", has_text="visit").first.focus()
        page.keyboard.press("Control+v")  # nothing was copied yet
        expect(nodes).to_have_count(6)
        page.locator("[data-task=visit]").click()
        page.locator("[data-task=reception]").click(modifiers=["Control"])
        expect(page.locator(".task-node.selected")).to_have_count(2)
        page.keyboard.press("Control+c")
        page.keyboard.press("Control+v")
        expect(nodes).to_have_count(8)
        assert set(
            page.locator(".task-node.selected").evaluate_all("all => all.map(e => e.dataset.task)")
        ) == {
            "reception-2",
            "visit-2",
        }, "what was pasted is chosen"
        page.get_by_role("button", name="Undo").click()
        expect(nodes).to_have_count(6)
        page.get_by_role("button", name="Redo").click()
        expect(nodes).to_have_count(8)

        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        version_id = page.url.rpartition("/")[2]
        saved = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/{version_id}")
        tasks = tasks_of(saved)
        assert tasks["visit-2"]["connectedTasks"] == ["reception-2"], "among the copies, not to the original"
        assert set(tasks["reception-2"]["connectedTasks"]) == {
            "visit-2",
            "operator",
            "supervised",
            "written",
        }
        assert tasks["visit-2"]["transitionParameters"] == tasks["visit"]["transitionParameters"]
        assert tasks["visit-2"]["name"] != tasks["visit"]["name"]
        assert (
            tasks["visit"]
            == tasks_of(call(console.base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1"))["visit"]
        ), "the original stays as it was"
        console.was_clean()


def test_a_task_that_is_dragged_takes_its_connections_along_and_none_else(
    tmp_path: Path,
) -> None:  # what must be shown: 2
    """What is dragged has layers of its own: the others are not painted anew with each frame."""
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1")
        path = f"/v1/flows/{flow_id}/versions"
        document = call(console.base, "GET", f"{path}/clinic-v1")
        places = {task["_id"]: {"x": 300 * n, "y": 150 * (n % 3)} for n, task in enumerate(document["tasks"])}
        changes = {"draft": True, "uiMetadata": {"positions": places}}
        version_id = call(console.base, "POST", path, {**document, "_id": "placed", **changes})["versionId"]
        console.open(f"/flows/{flow_id}/versions/{version_id}")
        page = console.page
        task = page.locator(".react-flow__node[data-id=visit]")
        layers = page.locator(".react-flow__edges svg")
        expect(page.locator(".task-node")).to_have_count(6)
        expect(layers.first).to_be_attached()

        def in_own_layers() -> set[str]:
            return set(
                layers.evaluate_all(
                    """all => all.filter(each => getComputedStyle(each).willChange === "transform")
                        .map(each => each.querySelector(".react-flow__edge").dataset.id)"""
                )
            )

        before = task.bounding_box()
        assert before is not None
        x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 30, y + 60, steps=5)
        expect(task).to_have_class(re.compile(r"\bdragging\b"))
        ends = {(one["_id"], to) for one in document["tasks"] for to in one.get("connectedTasks") or []}
        assert in_own_layers() == {f"{one} → {to}" for one, to in ends if "visit" in (one, to)} != set()
        page.mouse.up()
        expect(page.locator(".react-flow__edge.dragged")).to_have_count(0)
        assert in_own_layers() == set()
        after = task.bounding_box()
        assert after is not None
        assert after["x"] > before["x"]
        assert after["y"] > before["y"]

        other = page.locator(".react-flow__node[data-id=reception]")
        there = other.bounding_box()
        assert there is not None
        page.mouse.move(there["x"] + there["width"] / 2, there["y"] + there["height"] / 2)
        page.mouse.down()
        page.mouse.move(there["x"] + there["width"] / 2, there["y"] + there["height"] + 60, steps=5)
        page.mouse.up()
        page.get_by_role("button", name="Undo").click()  # the one that was dragged last, and no other
        assert (other.bounding_box(), task.bounding_box()) == (there, after)
        page.get_by_role("button", name="Undo").click()
        expect(page.get_by_text("Unsaved")).to_have_count(0)
        console.was_clean()


def test_what_is_selected_is_deleted_from_the_graph_and_from_nowhere_else(
    tmp_path: Path,
) -> None:  # what must be shown: 2
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        nodes = page.locator(".task-node")
        page.locator("[data-task=visit]").click()
        for place in (
            page.get_by_role("button", name="Send"),
            page.get_by_role("tab", name="Graph"),
            page.get_by_role("button", name="Publish"),
        ):
            place.focus()
            page.keyboard.press("Delete")
            page.keyboard.press("Backspace")
        page.get_by_role("button", name="Publish").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").focus()
        page.keyboard.press("Delete")
        page.keyboard.press("Escape")
        expect(page.get_by_text("Unsaved changes")).to_have_count(0)
        expect(nodes).to_have_count(6)

        page.get_by_role("region", name="Visita").get_by_role("button", name="Close").click()
        page.locator("[data-task=visit]").click()
        page.keyboard.press("Delete")
        expect(nodes).to_have_count(5)
        page.get_by_role("button", name="Undo").click()
        expect(nodes).to_have_count(6)
        page.locator("[data-task=reception]").click(modifiers=["Control"])
        page.keyboard.press("Backspace")
        expect(nodes).to_have_count(4)
        page.get_by_role("button", name="Undo").click()
        expect(nodes).to_have_count(6)
        edges = page.locator(".react-flow__edge")
        ways = edges.count()
        edges.first.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Backspace")
        expect(edges).to_have_count(ways - 1)
        page.get_by_label("Search tasks").fill("visit")
        page.keyboard.press("Backspace")
        expect(page.get_by_label("Search tasks")).to_have_value("visi")
        expect(nodes).to_have_count(6)
        console.was_clean()


def written(page: Page) -> str:
    """The text of the document as its editor shows it, whole."""
    return page.evaluate(
        "document.querySelector('.document-view .cm-content').cmTile.view.state.doc.toString()"
    )


def test_undo_goes_through_what_was_drawn_and_what_was_typed(tmp_path: Path) -> None:  # what must be shown: 2
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        graph, text = page.get_by_role("tab", name="Graph"), page.get_by_role("tab", name="Document")
        nodes, editor = page.locator(".task-node"), page.get_by_role("textbox", name="Document")
        unsaved = page.get_by_text("Unsaved changes")
        undo, redo = page.get_by_role("button", name="Undo"), page.get_by_role("button", name="Redo")
        expect(undo).to_be_disabled()
        page.get_by_role("button", name="Add task").click()
        expect(nodes).to_have_count(7)
        expect(undo).to_be_enabled()
        expect(redo).to_be_disabled()
        text.click()
        editor.click()
        before = written(page)
        page.keyboard.press("Control+Home")
        page.keyboard.press("Control+Enter")
        page.keyboard.press("Control+z")
        assert written(page) == before
        now = datetime.now(tz=UTC)
        page.clock.set_fixed_time(now)  # however long a slow machine takes for a key
        page.keyboard.press("Control+Home")
        page.keyboard.type("never")
        page.keyboard.press("ArrowLeft")  # what is typed after the cursor was elsewhere is another step
        page.keyboard.press("ArrowRight")
        page.clock.set_fixed_time(now + timedelta(milliseconds=100))
        page.keyboard.type(" goes on")
        assert written(page).startswith("never goes on{")
        graph.click()
        expect(page.get_by_role("status").filter(has_text="is not JSON at the moment")).to_be_visible()
        console.is_accessible()
        expect(page.get_by_role("button", name="Add task")).to_be_disabled()
        nodes.first.click()
        expect(page.get_by_label("When to enter it")).to_be_disabled()
        page.keyboard.press("Delete")
        expect(nodes).to_have_count(7)
        text.click()
        assert written(page).startswith("never goes on{")

        editor.click()
        page.keyboard.press("Control+z")
        assert written(page).startswith("never{")
        page.keyboard.press("Control+z")
        assert written(page) == before
        page.keyboard.press("Control+z")  # the task
        expect(unsaved).to_have_count(0)
        assert len(json.loads(written(page))["tasks"]) == 6
        page.keyboard.press("Control+y")
        assert written(page) == before
        page.keyboard.press("Control+Shift+Z")
        assert written(page).startswith("never{")
        page.keyboard.press("Control+z")
        graph.click()
        expect(nodes).to_have_count(7)
        expect(page.get_by_role("button", name="Add task")).to_be_enabled()
        undo.click()
        expect(nodes).to_have_count(6)
        expect(undo).to_be_disabled()
        expect(redo).to_be_enabled()
        expect(unsaved).to_have_count(0)
        console.was_clean()


def test_a_field_of_json_writes_what_was_typed_in_it_and_into_its_own_task(
    tmp_path: Path,
) -> None:  # what must be shown: 2
    mapped = {"toolName": "book", "resultMapping": {"from": "visit"}}
    chosen = {"mcpServerName": "crm", "selectedTools": [mapped]}
    helpers = {"visit": [{"n": 1}, {"n": 2}, {"n": 3}], "reception": [{"of": "reception"}]}
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1")
        path = f"/v1/flows/{flow_id}/versions"
        document = call(console.base, "GET", f"{path}/clinic-v1")
        for task in document["tasks"]:
            task["aiHelpers"] = helpers.get(task["_id"], [])
        tasks_of(document)["visit"]["mcpToolSelection"] = [chosen]
        changed = {**document, "_id": "helped", "draft": True}
        version_id = call(console.base, "POST", path, changed)["versionId"]
        console.open(f"/flows/{flow_id}/versions/{version_id}")
        page = console.page
        fields = page.get_by_role("region", name="Ai helpers").get_by_role("textbox")
        page.get_by_label("Search tasks").fill("visit")
        page.get_by_text("All other properties").click()
        expect(fields).to_have_count(3)
        mapping = page.get_by_label("Result mapping")
        expect(mapping).to_have_value(re.compile('"visit"'))
        for field in (fields.first, mapping):
            field.focus()
            page.keyboard.press("Tab")
        expect(page.get_by_text("Unsaved changes")).to_have_count(0)

        page.get_by_label("Search tasks").fill("reception")
        expect(fields).to_have_count(1)
        expect(fields).to_have_value(re.compile('"reception"'))
        fields.focus()
        page.keyboard.press("Tab")
        expect(page.get_by_text("Unsaved changes")).to_have_count(0)

        page.get_by_label("Search tasks").fill("visit")
        page.get_by_role("button", name="Remove: Ai helper 1").click()
        expect(fields).to_have_count(2)
        fields.first.focus()
        page.keyboard.press("Tab")
        expect(fields.first).to_have_value(re.compile('"n": 2'))
        fields.last.fill('{"n": 4}')
        mapping.fill('{"to": "visit"}')
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        saved = tasks_of(call(console.base, "GET", f"{path}/{page.url.rpartition('/')[2]}"))
        assert saved["visit"]["aiHelpers"] == [{"n": 2}, {"n": 4}]
        assert saved["visit"]["mcpToolSelection"][0]["selectedTools"][0]["resultMapping"] == {"to": "visit"}
        assert saved["reception"]["aiHelpers"] == helpers["reception"]
        console.was_clean()


def test_tasks_that_the_flow_tests_reach_are_coloured(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        talk = page.get_by_role("region", name="Talk")
        talk.get_by_text("Flow tests").click()
        assert page.locator(".task-node.covered").count() == 0
        talk.get_by_label("Tests (YAML)").fill(REACHES_THREE)
        talk.get_by_role("button", name="Run").click()
        expect(talk.get_by_text("1 passed")).to_be_visible()
        expect(talk.get_by_text("3 of 6 tasks reached")).to_be_visible()
        covered = page.locator(".task-node.covered")
        assert set(covered.evaluate_all("all => all.map(e => e.dataset.task)")) == {
            "reception",
            "supervised",
            "operator",
        }
        page.locator(".react-flow__pane").click(position={"x": 5, "y": 200})
        reached, untouched = (colour(page.locator(f"[data-task={task}]")) for task in ("operator", "visit"))
        assert reached != untouched
        console.is_accessible()
        within_its_width(page)

        talk.get_by_label("Tests (YAML)").fill(CANNOT_PASS)
        talk.get_by_role("button", name="Run").click()
        expect(talk.get_by_text("1 failed")).to_be_visible()
        failure = talk.get_by_role("listitem").filter(has_text="The island is a way off")
        expect(failure).to_contain_text("supervised")
        expect(page.locator("[data-task=operator].covered")).to_have_count(0)
        expect(page.locator("[data-task=supervised].covered")).to_have_count(1)

        talk.get_by_label("Tests (YAML)").fill("scenarios: [{name: no steps}]")
        talk.get_by_role("button", name="Run").click()
        expect(talk.get_by_role("alert")).to_contain_text("steps")
        console.errors = [line for line in console.errors if "422" not in line and "400" not in line]
        console.was_clean()


def test_a_talk_saved_as_a_test_passes_on_the_flow_that_was_talked_to(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        drawn(console)
        page = console.page
        talk = page.get_by_role("region", name="Talk")
        talk.get_by_text("Flow tests").click()
        expect(talk.get_by_role("button", name="Save the talk as a test")).to_be_disabled()
        message = talk.get_by_role("textbox", name="Message")
        for text in ("I want a visit", "/task visit", "/task supervised", "/hangup"):
            message.fill(text)
            talk.get_by_role("button", name="Send").click()
            if text != "/hangup":  # nobody writes any more after it
                expect(message).to_have_value("")
        expect(talk.get_by_role("status").first).to_contain_text("closed")
        talk.get_by_role("button", name="Save the talk as a test").click()
        expect(talk.get_by_label("Tests (YAML)")).not_to_have_value("")
        yaml = talk.get_by_label("Tests (YAML)").input_value()
        assert "change_task: supervised" in yaml
        assert "I want a visit" in yaml
        assert "refused: missing_variables" in yaml, "what was refused is expected to be refused"
        talk.get_by_role("button", name="Run").click()
        expect(talk.get_by_text("1 passed")).to_be_visible()
        with page.expect_download() as download:
            talk.get_by_role("button", name="Download").click()
        assert download.value.suggested_filename == "flow-test.yaml"
        assert Path(download.value.path()).read_text("utf-8") == yaml
        talk.get_by_label("Tests (YAML)").fill("mine: by hand")
        talk.get_by_role("button", name="Save the talk as a test").click()
        expect(talk.get_by_label("Tests (YAML)")).to_have_value(f"{yaml}# mine: by hand")
        console.was_clean()
