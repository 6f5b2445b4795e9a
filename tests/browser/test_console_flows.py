"""A stranger's way through the console: from an empty list to a published flow that was tried by talking."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.console import IN_A_BROWSER, Console, call, opened_console

pytestmark = IN_A_BROWSER


def created(console: Console) -> None:
    """From the empty list to the first version's graph."""
    page = console.page
    console.open()
    expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()
    console.is_accessible()
    page.get_by_role("button", name="Create a flow").click()
    page.get_by_label("Name").fill("Bookings")
    page.get_by_label("Campaign").fill("clinic")
    page.get_by_role("dialog").get_by_role("button", name="Create a flow").click()
    page.get_by_role("button", name="Start drawing").click()
    expect(page.locator("[data-task=welcome]")).to_be_visible()


def mistake_found_and_fixed(console: Console) -> None:
    """In the text; the task that was meant is named by the problem."""
    page = console.page
    page.get_by_role("tab", name="Document").click()
    text = page.get_by_role("textbox", name="Document")
    text.click()
    document: dict[str, Any] = json.loads(draft_of(console))
    document["tasks"][0]["connectedTasks"] = ["goodby"]
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(json.dumps(document, indent=2))
    problems = page.get_by_role("region", name="Problems")
    expect(problems.get_by_text("goodby").first).to_be_visible()
    console.is_accessible()
    problems.get_by_role("button", name="Use “goodbye”").first.click()
    expect(problems.get_by_text("goodby'")).to_have_count(0)


def draft_of(console: Console) -> str:
    """The document of the page's version."""
    flow, version = console.page.url.split("/flows/")[1].split("/versions/")
    return json.dumps(call(console.base, "GET", f"/v1/flows/{flow}/versions/{version}"))


def condition_added(console: Console) -> None:
    """A variable in the text, a condition on the connection in the task's panel."""
    page = console.page
    page.get_by_role("textbox", name="Document").click()
    document: dict[str, Any] = json.loads(draft_of(console))
    document["variables"] = [{"_id": "age", "name": "age", "type": "number", "prompt": "The caller's age"}]
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(json.dumps(document))
    page.get_by_role("tab", name="Graph").click()
    page.locator("[data-task=welcome]").click()
    panel = page.get_by_role("region", name="welcome")
    panel.get_by_role("textbox", name="Condition").fill("vars.age >= 18")
    panel.get_by_role("textbox", name="Reason").fill("only for adults")
    panel.get_by_label("Once it can be taken").select_option("the model is told to go on")
    console.picture("task")
    console.is_accessible()
    panel.get_by_role("button", name="Close").click()


def tried_by_talking(console: Console) -> None:
    page = console.page
    talk = page.get_by_role("region", name="Talk")

    def say(text: str) -> None:
        talk.get_by_role("textbox", name="Message").fill(text)
        talk.get_by_role("button", name="Send").click()

    say("/task goodbye")
    expect(talk.get_by_role("status").first).to_contain_text("welcome")
    expect(page.locator("[data-task=welcome]")).to_have_attribute("aria-current", "true")
    expect(talk.get_by_role("log")).to_contain_text("only for adults")
    say("/set age 30")
    expect(talk.get_by_text("Memory (1 of 1)")).to_be_visible()
    say("/task goodbye")
    expect(page.locator("[data-task=goodbye]")).to_have_attribute("aria-current", "true")
    expect(talk.get_by_role("status").first).to_contain_text("goodbye")
    console.picture("talk")
    console.is_accessible()
    say("/hangup")
    expect(talk.get_by_role("status").first).to_contain_text("closed")


def published(console: Console) -> None:
    page = console.page
    page.get_by_role("button", name="Save draft").click()
    expect(page.get_by_text("Draft saved")).to_be_visible()
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Published", exact=True)).to_be_visible()
    [flow] = call(console.base, "GET", "/v1/flows")
    [tag] = flow["tags"]
    assert (flow["name"], tag["tag"]) == ("Bookings", "latest")
    saved = call(console.base, "GET", f"/v1/flows/{flow['id']}/versions/{tag['versionId']}")
    assert saved["draft"] is False
    assert saved["tasks"][0]["connectionConditions"] == {
        "goodbye": {"when": "vars.age >= 18", "reason": "only for adults", "advance": "suggest"}
    }
    assert page.url.endswith(tag["versionId"])


@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_a_stranger_goes_from_an_empty_list_to_a_published_flow(tmp_path: Path, width: str) -> None:
    with opened_console(tmp_path, width=width) as console:
        created(console)
        mistake_found_and_fixed(console)
        condition_added(console)
        tried_by_talking(console)
        published(console)
        console.was_clean()


def test_a_first_version_that_is_listed_late_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page, listings, drawn = console.page, list[Route](), False

        def late(asked: Route) -> None:
            if asked.request.method == "GET" and not drawn:
                listings.append(asked)
            else:
                asked.continue_()

        flow = call(
            console.base, "POST", "/v1/flows", {"name": "Late", "campaignId": "c", "updatedBy": "ada"}
        )
        console.open(f"/flows/{flow['id']}")
        page.get_by_role("button", name="Start drawing").wait_for()
        page.route(f"**/v1/flows/{flow['id']}/versions", late)
        page.get_by_role("button", name="Start drawing").click()
        expect(page.locator("[data-task=welcome]")).to_be_visible()
        drawn = True
        assert listings
        for asked in listings:
            asked.continue_()
        expect(page.get_by_text("draft", exact=True)).to_be_visible()
        page.get_by_role("button", name="Add task").click()
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        console.was_clean()


def test_a_flow_is_drawn_by_keyboard_alone(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        created(console)
        page = console.page
        page.locator(".react-flow__node").first.focus()
        page.keyboard.press("n")  # a task
        panel = page.get_by_role("region", name="task")
        panel.get_by_role("textbox", name="Name").focus()
        page.keyboard.press("Control+a")
        page.keyboard.type("booking")
        page.get_by_role("region", name="booking").get_by_label("Connect to").focus()
        page.keyboard.type("goodbye")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(".react-flow__edge")).to_have_count(3)
        page.locator(".react-flow__node", has_text="booking").focus()
        page.keyboard.press("Delete")
        expect(page.locator(".react-flow__node")).to_have_count(2)
        page.locator(".react-flow__node").first.focus()
        page.keyboard.press("Control+z")
        expect(page.locator(".react-flow__node")).to_have_count(3)
        console.was_clean()


def test_what_somebody_else_saved_meanwhile_is_merged(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        created(console)
        page = console.page
        flow = page.url.split("/flows/")[1].split("/versions/")[0]
        theirs: dict[str, Any] = json.loads(draft_of(console))
        welcome, goodbye = theirs["tasks"]
        theirs["globalPrompt"] = "Theirs."
        welcome.update(prompt="Say hello, theirs.", name="hello")
        goodbye["prompt"] = "Bye, theirs."
        call(console.base, "POST", f"/v1/flows/{flow}/versions", theirs)
        page.locator("[data-task=welcome]").click()
        page.get_by_label("When to enter it").fill("Ours.")
        page.get_by_label("Name").first.fill("greeting")
        page.get_by_role("textbox", name="Prompt").fill("Say hello, ours.")
        page.get_by_role("button", name="Save draft").click()
        meanwhile = page.get_by_role("dialog", name="Someone saved meanwhile")
        meanwhile.get_by_role("button", name="Merge").click()
        expect(meanwhile.get_by_role("status")).to_contain_text("2 conflicts left to decide")
        go_on = meanwhile.get_by_role("button", name="Go on with this")
        expect(go_on).to_be_disabled()
        name = meanwhile.get_by_role("group", name="tasks › greeting › name")
        expect(name.locator("pre")).to_have_text(["welcome", "greeting", "hello"])
        name.get_by_role("radio", name="Before both").check()
        prompt = meanwhile.get_by_role("group", name="tasks › greeting › prompt")
        expect(prompt.locator("mark").last).to_have_text("Say hello, theirs")
        prompt.get_by_role("radio", name="Theirs").check()
        meanwhile.get_by_text("2 changes are taken over from theirs").click()
        expect(meanwhile.get_by_role("region", name="version globalPrompt")).to_contain_text("Theirs.")
        console.is_accessible()
        go_on.click()
        expect(meanwhile).to_have_count(0)
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        merged = json.loads(draft_of(console))
        first, last = merged["tasks"]
        assert (merged["globalPrompt"], last["prompt"]) == ("Theirs.", "Bye, theirs.")
        assert (first["description"], first["name"]) == ("Ours.", "welcome")
        assert first["prompt"] == "Say hello, theirs."
        console.was_clean()


def test_work_that_is_not_saved_is_left_on_purpose_only(tmp_path: Path) -> None:  # what must be shown: 2
    with opened_console(tmp_path) as console:
        created(console)
        page = console.page
        at, nodes = page.url, page.locator(".task-node")
        asked = page.get_by_role("dialog", name="Leave without saving?")
        page.get_by_role("button", name="Add task").click()
        expect(nodes).to_have_count(3)
        page.get_by_role("link", name="Conversations").click()
        expect(asked).to_be_visible()
        console.is_accessible()
        asked.get_by_role("button", name="Stay").click()
        expect(asked).to_have_count(0)
        page.go_back()
        expect(asked).to_be_visible()
        page.keyboard.press("Escape")
        expect(asked).to_have_count(0)
        assert page.url == at
        expect(nodes).to_have_count(3)

        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        expect(asked).to_have_count(0)
        assert page.url != at, "what was saved has its own address, on which the work goes on"
        page.get_by_role("button", name="Add task").click()
        expect(nodes).to_have_count(4)
        page.get_by_role("link", name="Conversations").click()
        asked.get_by_role("button", name="Leave").click()
        expect(page.get_by_role("heading", name="There are no conversations yet")).to_be_visible()
        page.go_back()
        expect(nodes).to_have_count(3)
        page.go_back()
        expect(page).not_to_have_url(re.compile("/versions/"))
        console.was_clean()


WRONG_TYPES = [
    ("/globalTasks", "x"),
    ("/variables", "x"),
    ("/variables", 5),
    ("/variables", [None]),
    ("/tasks/0/name", 5),
    ("/tasks/0/description", {}),
    ("/tasks/0/connectedTasks", "abc"),
    ("/tasks/0/connectedTasks", 5),
    ("/tasks/0/transitionParameters", {}),
    ("/tasks/0/transitionParameters", [None]),
    ("/tasks/0/excludedGlobalTasks", 5),
    ("/tasks/0/prompt", 5),
]


def test_a_value_of_a_wrong_type_is_a_problem_and_takes_no_work_away(
    tmp_path: Path,
) -> None:  # what must be shown: 2
    with opened_console(tmp_path) as console:
        created(console)
        page = console.page
        draft: dict[str, Any] = json.loads(draft_of(console))
        draft["tasks"][0]["prompt"] = "Unsaved work."
        problems = page.get_by_role("region", name="Problems")
        nodes = page.locator(".task-node")

        def write(document: dict[str, Any]) -> None:
            page.get_by_role("tab", name="Document").click()
            page.get_by_role("textbox", name="Document").click()
            page.keyboard.press("Control+a")
            page.keyboard.insert_text(json.dumps(document))

        for pointer, value in WRONG_TYPES:
            wrong: Any = json.loads(json.dumps(draft))
            *way, last = pointer.split("/")[1:]
            place = wrong
            for step in way:
                place = place[int(step) if step.isdecimal() else step]
            place[last] = value
            write(wrong)
            expect(problems.locator("code", has_text=pointer).first).to_be_visible()
            page.get_by_role("tab", name="Graph").click()
            told = page.get_by_role("heading", name="This cannot be drawn")
            if nodes.count() == 2:
                page.locator("[data-task=welcome]").click()
            expect(told.or_(page.get_by_role("region", name="welcome")).first).to_be_visible()
            expect(problems.locator("code", has_text=pointer).first).to_be_visible()
            write(draft)
            page.get_by_role("tab", name="Graph").click()
            expect(nodes).to_have_count(2)
            expect(told).to_have_count(0)
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        assert json.loads(draft_of(console))["tasks"][0]["prompt"] == "Unsaved work."
        assert console.foreign == []  # the browser's own lines name what could not be drawn


def test_it_speaks_the_browsers_language(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        browser = console.page.context.browser
        assert browser is not None
        for locale, title in (("it-IT", "Flussi"), ("es-MX", "Flujos"), ("de-DE", "Flows")):
            spoken = Console(browser.new_context(locale=locale).new_page(), console.base)
            spoken.open()
            expect(spoken.page.get_by_role("heading", name=title, exact=True)).to_be_visible()
            spoken.was_clean()


def large_flow(tasks: int) -> dict[str, Any]:
    """Each task leads to three later ones; nothing of it has a place yet."""
    return {
        "draft": True,
        "firstTask": "task-0",
        "tasks": [
            {
                "_id": f"task-{n}",
                "type": "AIO",
                "description": "A task among many",
                "prompt": "Go on.",
                "transitionParameters": [],
                "closureConfig": {"multiContact": False},
                "enabledCheckpoints": [],
                "connectedTasks": [f"task-{m}" for m in (2 * n + 1, 2 * n + 2, n + 7) if m < tasks],
            }
            for n in range(tasks)
        ],
    }


def test_three_hundred_tasks_are_drawn_at_once(tmp_path: Path) -> None:
    """By the browser's own clock, from the click to the drawing. The goal is a second, on a quiet machine."""
    with opened_console(tmp_path) as console:
        flow = call(
            console.base, "POST", "/v1/flows", {"name": "Large", "campaignId": "c", "updatedBy": "ada"}
        )
        path = f"/v1/flows/{flow['id']}/versions"
        version = call(console.base, "POST", path, large_flow(300))["versionId"]
        page = console.page
        console.open(f"/flows/{flow['id']}")
        page.get_by_role("link", name=version[:8]).wait_for()
        drawn_ms = page.evaluate(
            """async () => {
                const began = performance.now();
                document.querySelector("td a").click();
                const drawn = () => document.querySelectorAll(".task-node").length;
                while (drawn() < 300) await new Promise(requestAnimationFrame);
                return performance.now() - began;
            }"""
        )
        print(f"300 tasks drawn in {drawn_ms:.0f} ms")
        assert drawn_ms < 15_000
        page.get_by_role("searchbox", name="Search tasks").fill("task-299")
        expect(page.locator(".react-flow__node.selected")).to_have_count(1)
        console.was_clean()
