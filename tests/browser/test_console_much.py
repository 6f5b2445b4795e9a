"""What the console makes of much: long journals, names, replays; and of a service of another release."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Request, Route, expect

from tests.browser.console import (
    CALL,
    IN_A_BROWSER,
    Console,
    a_conversation,
    call,
    opened_console,
    published,
    within_its_width,
)

pytestmark = IN_A_BROWSER


def test_the_reasons_of_refusals_are_asked_for_as_they_are_seen(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page, asked = console.page, []
        flow_id = published(console.base, "clinic-v1")
        a_conversation(console.base, flow_id)
        for _ in range(40):
            call(console.base, "POST", "/v1/change-task", {**CALL, "task": "island", "reason": "Lost"})
        page.on("request", lambda request: _noted(request, asked))
        console.open("/conversations/conv-1")
        refused = page.get_by_role("region", name="Timeline").get_by_role("button", name="Refused: island")
        expect(refused).to_have_count(40)
        expect(refused.last).to_contain_text("cannot follow")
        assert len(asked) < 30, asked
        page.get_by_label("Only the 41 refusals").check()
        expect(page.get_by_role("region", name="Timeline").get_by_role("listitem")).to_have_count(41)
        console.is_accessible()
        console.was_clean()


def _noted(request: Request, asked: list[str]) -> None:
    if "/at/" in request.url:
        asked.append(request.url)


def test_an_entry_that_comes_takes_nobody_away_who_has_looked_around(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page, entries = console.page, console.page.locator(".timeline")
        page.add_init_script("""
            window.formats = 0;
            Intl.DateTimeFormat = new Proxy(Intl.DateTimeFormat, {
                construct: (of, given) => { window.formats += 1; return new of(...given); },
            });""")
        a_conversation(console.base, published(console.base, "clinic-v1"))
        for number in range(160):
            lost = {**CALL, "task": "island", "reason": f"No {number}."}
            call(console.base, "POST", "/v1/change-task", lost)
        console.open("/conversations/conv-1")
        expect(entries.get_by_text("No 159.")).to_be_in_viewport()
        assert page.evaluate("window.formats") < 10, "one for each style, not for each entry"

        def comes(said: str) -> None:
            call(console.base, "POST", "/v1/change-task", {**CALL, "task": "reception", "reason": said})
            expect(entries.get_by_text(said)).to_have_count(1)
            page.evaluate("new Promise(requestAnimationFrame)")

        comes("Followed")
        expect(entries.get_by_text("Followed")).to_be_in_viewport()
        entries.evaluate("list => list.scrollTo(0, 0)")
        expect(entries.get_by_text("No 0.")).to_be_in_viewport()
        comes("Beside")
        expect(entries.get_by_text("No 0.")).to_be_in_viewport()
        page.get_by_role("slider", name="Entry").press("Home")
        page.get_by_role("button", name="Latest").click()
        expect(entries.get_by_text("Beside")).to_be_in_viewport()
        console.was_clean()


def test_a_list_of_flows_asks_for_no_flow_of_it(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page, asked = console.page, list[str]()
        for number in range(60):
            flow = {"name": f"Flow {number}", "campaignId": "c", "updatedBy": "ada"}
            call(console.base, "POST", "/v1/flows", flow)
        flow_id = published(console.base, "clinic-v1")
        draft = {**call(console.base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1"), "draft": True}
        call(console.base, "POST", f"/v1/flows/{flow_id}/versions", {**draft, "_id": "clinic-v2"})
        page.on("request", lambda request: "/versions" in request.url and asked.append(request.url))
        console.open("/flows")
        rows = page.get_by_role("row")
        expect(rows).to_have_count(62)
        expect(page.get_by_text("not published").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("row", name="Clinic")).to_contain_text("1 draft")
        assert asked == []
        console.was_clean()


def test_live_conversations_that_were_not_all_counted_are_told_as_so_many_or_more(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1", "clinic-v2")
        counted = {"flowId": flow_id, "versionId": "clinic-v1", "conversations": 1000}
        answer = json.dumps({"versions": [counted], "cut": True})
        page.route("**/live-conversations", lambda route: route.fulfill(body=answer))
        console.open("/flows")
        expect(page.get_by_text("1,000+ live conversations")).to_be_visible()
        page.get_by_role("link", name="Clinic").click()
        expect(page.get_by_role("link", name="1,000+")).to_be_visible()
        expect(page.get_by_text("0+", exact=True)).to_have_count(0)
        console.was_clean()


def test_tasks_with_long_names_do_not_cover_each_other(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1")
        document = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1")
        for task in document["tasks"][1:]:
            task["name"] = f"{task['_id']} " + "a name that goes on and on " * 6
        path = f"/v1/flows/{flow_id}/versions?parentVersionId=clinic-v1&tag=long"
        call(console.base, "POST", path, {**document, "_id": "long-v1"})
        console.open(f"/flows/{flow_id}/versions/long-v1")
        nodes = console.page.locator(".task-node")
        expect(nodes).to_have_count(6)
        boxes = sorted(
            (box["x"], box["y"], box["height"]) for each in nodes.all() if (box := each.bounding_box())
        )
        below = [(one, other) for one, other in pairwise(boxes) if one[0] == other[0]]
        assert below
        assert all(one[1] + one[2] <= other[1] for one, other in below), boxes


def test_a_conversation_names_its_flow_and_version_and_a_version_leads_to_its_conversations(
    tmp_path: Path,
) -> None:  # what must be shown: 1
    with opened_console(tmp_path) as console:
        page, base = console.page, console.base
        flow_id = published(base, "clinic-v1", "clinic-v2")
        path = f"/v1/flows/{flow_id}/versions"
        document = call(base, "GET", f"{path}/clinic-v2")
        del document["_id"]
        made = call(base, "POST", path, document)["versionId"]
        call(base, "PUT", f"/v1/flows/{flow_id}/tags/prod", {"versionId": made, "updatedBy": "ada"})
        a_conversation(base, flow_id)
        console.open(f"/flows/{flow_id}")
        page.get_by_role("link", name="1", exact=True).click()
        expect(page.get_by_role("combobox", name="Version")).to_have_value(made)
        row = page.get_by_role("link", name="conv-1")
        expect(row).to_contain_text(f"local · latest, prod · {made[:8]}")
        expect(row).to_contain_text("Clinic · prod · ")
        expect(row).not_to_contain_text(made)
        row.click()
        version = page.get_by_role("link", name=f"local · latest, prod · {made[:8]}")
        expect(version).to_contain_text("Clinic · ")
        version.click()
        expect(page).to_have_url(f"{base}/console/flows/{flow_id}/versions/{made}")
        console.open(f"/flows/{flow_id}/publishing")
        expect(page.get_by_role("region", name="prod").get_by_role("link")).to_contain_text(
            "local · latest, prod"
        )
        console.is_accessible()
        console.was_clean()


def test_a_flow_is_found_by_its_campaign_and_leads_to_its_newest_version(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        published(console.base, "clinic-v1", "clinic-v2")
        for name, campaign in (("Tea", "shop"), ("Coffee", "bar")):
            flow = {"name": name, "campaignId": campaign, "updatedBy": "ada"}
            call(console.base, "POST", "/v1/flows", flow)
        console.open("/flows")
        page.get_by_label("Search flows").fill("SHOP")
        expect(page.get_by_role("row")).to_have_count(2)
        expect(page.get_by_role("link", name="Tea")).to_be_visible()
        page.get_by_label("Search flows").fill("clin")
        page.get_by_role("link", name="Clinic").click()
        page.get_by_role("link", name="Open the newest version").click()
        expect(page).to_have_url(re.compile("/versions/clinic-v2$"))
        console.was_clean()


def test_what_a_replay_made_otherwise_stands_first(tmp_path: Path) -> None:
    rows = {"like": {}, "prompts": {"promptsDiffer": [2]}, "refused": {}, "astray": {"path": "other"}}
    rows["refused"] = {"newRefusals": [{"seq": 3, "task": "visit", "code": "missing_variables"}]}
    none = {"firstFork": None, "newRefusals": [], "variablesGone": [], "promptsDiffer": []}
    none |= {"checkpointsLost": [], "notReplayed": [], "notReproduced": False, "path": "same"}
    figures = ("samePath", "otherPath", "newRefusals", "variablesGone", "promptsDiffer")
    report = {
        "conversations": [{**none, "conversationId": each, **row} for each, row in rows.items()],
        "summary": dict.fromkeys(figures, 1),
    }
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        page.route("**/replays", lambda route: route.fulfill(body=json.dumps(report)))
        console.open(f"/flows/{flow_id}/publishing?show=replay")
        page.get_by_role("button", name="Replay", exact=True).click()
        told = page.locator("details summary")
        expect(told).to_have_count(4)
        names = [each.split()[0] for each in told.all_text_contents()]
        assert names == ["astray", "refused", "prompts", "like"]


def test_a_release_that_has_a_part_no_more_takes_no_work_with_it(tmp_path: Path) -> None:
    """A merge is asked for by who has worked for long, maybe over an upgrade of the service."""
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        page.get_by_role("button", name="Add task").click()
        theirs = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1")
        del theirs["_id"]
        call(console.base, "POST", f"/v1/flows/{flow_id}/versions", theirs)
        page.route("**/MergeView-*.js", _gone)
        page.get_by_role("button", name="Save draft").click()
        dialog = page.get_by_role("dialog", name="Someone saved meanwhile")
        dialog.get_by_role("button", name="Merge").click()
        expect(dialog.get_by_role("heading", name="The console is of another release now")).to_be_visible()
        expect(dialog.get_by_role("button", name="Load the page anew")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".task-node")).to_have_count(7)


def _gone(route: Route) -> None:
    route.fulfill(status=404, body="")


def test_a_language_that_cannot_be_fetched_leaves_english(tmp_path: Path) -> None:
    with opened_console(tmp_path, locale="it-IT") as console:
        console.page.route("**/it-*.js", _gone)
        console.open("/flows")
        expect(console.page.get_by_role("heading", name="There are no flows yet")).to_be_visible()


def test_the_map_is_there_where_tasks_are_out_of_view(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        page, overview = console.page, console.page.locator(".react-flow__minimap")
        expect(page.locator(".task-node")).to_have_count(6)
        expect(overview).to_have_count(0)
        for _ in range(4):
            page.get_by_role("button", name="Zoom In").click()
        expect(overview).to_be_visible()


def test_a_graph_too_large_to_be_read_as_a_whole_is_shown_at_its_first_task_and_a_talk_is_followed(
    tmp_path: Path,
) -> None:
    """And what was looked at is in view again when another tab was."""
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1")
        document = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/clinic-v1")
        first = {**document["tasks"][0], "transitionParameters": [], "mcpToolSelection": []}
        row = [f"task-{number}" for number in range(12)]
        tasks = [
            {**first, "_id": each, "name": each, "connectedTasks": [then]} for each, then in pairwise(row)
        ]
        tasks.append({**first, "_id": row[-1], "name": row[-1], "connectedTasks": []})
        changes = {"_id": "row", "draft": True, "tasks": tasks, "firstTask": row[0], "uiMetadata": {}}
        call(console.base, "POST", f"/v1/flows/{flow_id}/versions", {**document, **changes})
        page = console.page
        console.open(f"/flows/{flow_id}/versions/row")
        view = page.locator(".react-flow__viewport")
        expect(view).to_have_attribute("style", re.compile(r"scale\(0\.75\)"))
        expect(page.locator("[data-task=task-0]")).to_be_in_viewport(ratio=0.9)
        expect(page.locator(".react-flow__minimap")).to_be_visible()
        for task in row[1:5]:
            page.get_by_role("textbox", name="Message").fill(f"/task {task}")
            page.keyboard.press("Enter")
            active = page.locator(f"[data-task={task}][aria-current]")
            expect(active).to_be_in_viewport(ratio=0.9)
        page.wait_for_timeout(500)  # until it is moved
        seen = view.get_attribute("style") or ""
        page.get_by_role("tab", name="Settings").click()
        page.get_by_role("tab", name="Graph").click()
        expect(view).to_have_attribute("style", seen)
        expect(active).to_be_in_viewport(ratio=0.9)
        page.get_by_role("button", name="Fit View").click()
        expect(page.locator("[data-task=task-11]")).to_be_in_viewport(ratio=0.9)
        console.was_clean()


def test_a_text_runs_as_its_script_does_and_a_long_name_stays_within_the_page(tmp_path: Path) -> None:
    with opened_console(tmp_path, width="narrow") as console:
        page = console.page
        flow_id = published(console.base, "v" * 60)
        long = {**CALL, "conversationId": "c" * 200}
        start = {**long, "flowId": flow_id, "tag": "prod", "channel": "phone"}
        call(console.base, "POST", "/v1/handle-new-contact", start)
        said = {"messageId": "m-1", "ts": "2026-01-15T09:31:00Z", "type": "message", "src": "user"}
        call(console.base, "POST", "/v1/handle-utterance", {**long, **said, "body": "أريد موعدا، رقم 12."})
        console.open(f"/conversations/{long['conversationId']}")
        said_there = page.get_by_text("أريد موعدا")
        expect(said_there).to_be_visible()
        assert _starts_at_the_right(console, "span.bubble")
        within_its_width(page)
        console.is_accessible()
        console.was_clean()


def _starts_at_the_right(console: Console, text: str) -> bool:
    """Whether its first letter is to the right of its last."""
    return console.page.locator(text).evaluate(
        """element => {
          const at = (index) => {
            const range = document.createRange();
            range.setStart(element.firstChild, index);
            range.setEnd(element.firstChild, index + 1);
            return range.getBoundingClientRect().left;
          };
          return at(0) > at(element.firstChild.length - 1);
        }"""
    )
