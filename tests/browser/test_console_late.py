"""What a slow line, a late answer, a second click or leaving meanwhile must not do in the console."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from tests.browser.console import (
    CALL,
    IN_A_BROWSER,
    WITHIN_MS,
    Console,
    a_conversation,
    call,
    opened_console,
    published,
)
from tests.browser.test_console_keys import ADMIN, DESIGNER, NEW_DESIGNER, signed_in, with_keys

pytestmark = IN_A_BROWSER


class Held:
    """Requests that are under way until they are let go."""

    def __init__(self, page: Page, url: str, method: str = "GET") -> None:
        self.routes: list[Route] = []
        self._page = page
        self._method = method
        self._held = True
        page.route(url, self._take)

    def _take(self, route: Route) -> None:
        if self._held and route.request.method == self._method:
            self.routes.append(route)
        else:
            route.fallback()

    def wait(self) -> None:
        for _ in range(WITHIN_MS // 10):
            if self.routes:
                return
            self._page.wait_for_timeout(10)
        raise AssertionError("nothing was asked")

    def let_go(self) -> None:
        self._held = False
        for route in self.routes:
            route.continue_()


def opened_version(console: Console) -> str:
    """Opens the graph of the clinic; the id of its flow."""
    flow_id = published(console.base, "clinic-v1", "clinic-v2")
    console.open(f"/flows/{flow_id}/versions/clinic-v1")
    expect(console.page.locator(".task-node")).to_have_count(6)
    return flow_id


def refusing(route: Route, status: int, code: str) -> None:
    """Answers as the service refuses."""
    problem = {"type": "about:blank", "title": code, "status": status, "code": code}
    route.fulfill(status=status, json={**problem, "detail": f"It is {code}.", "errors": []})


def test_what_is_changed_while_a_save_is_under_way_is_not_taken_for_saved(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        flow_id = opened_version(console)
        page = console.page
        saves = Held(page, "**/versions*", "POST")
        page.get_by_role("button", name="Add task").click()
        page.get_by_role("button", name="Save draft").click()
        saves.wait()
        page.get_by_label("When to enter it").fill("Written while it was saved.")
        saves.let_go()
        page.wait_for_url(lambda url: not url.endswith("clinic-v1"))
        expect(page.get_by_text("Unsaved changes")).to_be_visible()
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        saved = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/{page.url.rpartition('/')[2]}")
        assert "Written while it was saved." in [task["description"] for task in saved["tasks"]]
        console.was_clean()


def test_who_has_left_while_a_save_was_under_way_is_not_brought_back(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        opened_version(console)
        page = console.page
        saves = Held(page, "**/versions*", "POST")
        page.get_by_role("button", name="Add task").click()
        page.get_by_role("button", name="Save draft").click()
        saves.wait()
        page.get_by_role("banner").get_by_role("link", name="Flows").click()
        page.get_by_role("dialog").get_by_role("button", name="Leave").click()
        expect(page.get_by_role("heading", name="Flows", exact=True)).to_be_visible()
        with page.expect_response("**/v1/flows"):  # the list is read again behind a save
            saves.let_go()
        expect(page.get_by_text("1 draft")).to_be_visible()
        assert page.url.endswith("/console/flows")
        console.was_clean()


def test_a_fork_that_was_left_meanwhile_is_not_gone_to(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        a_conversation(console.base, flow_id)
        console.open("/conversations/conv-1")
        forks = Held(page, "**/fork", "POST")
        page.get_by_role("button", name="Fork").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Id of the new conversation").fill("another")
        dialog.get_by_role("button", name="Fork").click()
        forks.wait()
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("banner").get_by_role("link", name="Conversations").click()
        expect(page.get_by_text("Live · 1 conversation")).to_be_visible()
        forks.let_go()
        expect(page.get_by_role("link", name="another")).to_be_visible()
        assert page.url.endswith("/console/conversations")
        console.was_clean()


def test_a_merge_that_was_put_off_may_still_be_saved_beside(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = opened_version(console)
        path = f"/v1/flows/{flow_id}/versions"
        theirs = call(console.base, "GET", f"{path}/clinic-v2")
        call(console.base, "POST", path, {**theirs, "_id": "theirs", "draft": True})
        page.get_by_role("button", name="Add task").click()
        page.get_by_role("button", name="Save draft").click()
        meanwhile = page.get_by_role("dialog", name="Someone saved meanwhile")
        meanwhile.get_by_role("button", name="Merge").click()
        expect(meanwhile.get_by_role("button", name="Merge")).to_have_count(0)
        meanwhile.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Save draft").click()
        meanwhile.get_by_role("button", name="Save mine beside it").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        console.was_clean()


def test_what_could_not_be_published_is_told_once(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        opened_version(console)
        page.route("**/versions?*", lambda route: refusing(route, 503, "away"))
        publish = page.get_by_role("button", name="Publish")
        publish.click()
        dialog = page.get_by_role("dialog", name="Publish")
        dialog.get_by_role("button", name="Publish").click()
        expect(dialog.get_by_role("alert")).to_contain_text("It is away.")
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        publish.click()
        expect(dialog).to_be_visible()
        expect(dialog.get_by_role("alert")).to_have_count(0)


def test_what_was_saved_and_not_tagged_is_tagged_when_it_is_published_again(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = opened_version(console)
        page.get_by_role("button", name="Add task").click()
        page.get_by_label("When to enter it").fill("For whoever asks twice.")
        page.route("**/tags/prod", lambda route: refusing(route, 503, "away"))
        page.get_by_role("button", name="Publish").click()
        dialog = page.get_by_role("dialog", name="Publish")
        dialog.get_by_label("Tag").fill("prod")
        dialog.get_by_role("button", name="Publish").click()
        expect(dialog.get_by_role("alert")).to_contain_text("It is away.")
        page.unroute("**/tags/prod")
        dialog.get_by_role("button", name="Publish").click()
        expect(page.get_by_text("Published", exact=True)).to_be_visible()
        rows = call(console.base, "GET", f"/v1/flows/{flow_id}/versions")
        made = {row["versionId"] for row in rows} - {"clinic-v1", "clinic-v2"}
        assert made == {row["versionId"] for row in rows if row["tag"] == "prod"}


def test_a_save_whose_answer_was_lost_is_no_work_of_somebody_else(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = opened_version(console)
        page.route("**/versions?*", lambda route: (route.fetch(), route.abort()), times=1)
        page.get_by_role("button", name="Add task").click()
        save = page.get_by_role("button", name="Save draft")
        save.click()
        page.get_by_role("dialog", name="Not saved").get_by_role("button", name="Close").click()
        save.click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        made = [row["versionId"] for row in call(console.base, "GET", f"/v1/flows/{flow_id}/versions")]
        assert page.url.endswith(f"/{made[-1]}")
        assert len(made) == 3


def test_a_flow_whose_answer_was_lost_is_created_once(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open("/flows")
        page.get_by_role("button", name="Create a flow").click()
        page.route(
            "**/v1/flows",
            lambda route: (
                (route.fetch(), route.abort()) if route.request.method == "POST" else route.continue_()
            ),
        )
        dialog = page.get_by_role("dialog", name="Create a flow")
        dialog.get_by_label("Name").fill("Refunds")
        dialog.get_by_label("Campaign").fill("c")
        dialog.get_by_role("button", name="Create a flow").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        page.unroute("**/v1/flows")
        dialog.get_by_role("button", name="Create a flow").click()
        expect(page.get_by_text("Start drawing")).to_be_visible()
        flows = call(console.base, "GET", "/v1/flows")
        assert [page.url.rpartition("/")[2]] == [flow["id"] for flow in flows]


def test_a_document_is_typed_on_when_its_schema_comes_late(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        schemas = Held(page, "**/schemas/flow-version.json")
        opened_version(console)
        page.get_by_role("tab", name="Document").click()
        document = page.get_by_role("textbox", name="Document")
        document.press("Control+Home")
        document.press("ArrowRight")
        page.keyboard.type('"glob')
        schemas.wait()
        with page.expect_response("**/schemas/flow-version.json"):
            schemas.let_go()
        page.wait_for_timeout(200)
        page.keyboard.type("alP")
        expect(document).to_contain_text('{"globalP')
        expect(page.get_by_role("option", name='"globalPrompt"')).to_be_visible()
        console.was_clean()


def test_what_was_saved_is_told_though_the_versions_cannot_be_listed_then(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = opened_version(console)
        page.get_by_role("button", name="Add task").click()
        saves = Held(page, "**/versions*", "POST")
        page.get_by_role("button", name="Save draft").click()
        saves.wait()
        page.route("**/versions", lambda route: route.abort())
        saves.let_go()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        first = page.url
        page.unroute("**/versions")
        page.get_by_role("button", name="Add task").click()
        page.get_by_role("button", name="Save draft").click()
        page.wait_for_url(lambda url: url != first)
        rows = call(console.base, "GET", f"/v1/flows/{flow_id}/versions")
        assert [row["parentVersionId"] for row in rows if row["draft"]] == ["clinic-v1", "clinic-v1"]


def test_a_part_that_cannot_be_fetched_takes_no_work_with_it_and_comes_with_the_connection(
    tmp_path: Path,
) -> None:
    with opened_console(tmp_path) as console:
        opened_version(console)
        page = console.page
        page.get_by_role("button", name="Add task").click()
        expect(page.get_by_role("region", name="task", exact=True)).to_be_visible()
        page.context.set_offline(True)
        with page.expect_event("requestfailed", lambda request: "DocumentView" in request.url):
            page.get_by_role("tab", name="Document").click()
        expect(page.get_by_text("Unsaved changes")).to_be_visible()
        page.context.set_offline(False)
        expect(page.get_by_role("textbox", name="Document")).to_be_visible()

        page.context.set_offline(True)
        page.get_by_role("tab", name="Graph").click()
        expect(page.locator(".task-node")).to_have_count(7)
        with page.expect_event("requestfailed", lambda request: "OperationsPage" in request.url):
            page.get_by_role("link", name="Operations").click()
            page.get_by_role("dialog").get_by_role("button", name="Leave").click()
        page.context.set_offline(False)
        expect(page.get_by_role("tab", name="Health")).to_be_visible()


def test_the_menu_that_cannot_be_fetched_takes_no_page_with_it(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        menus = Held(page, "**/assets/Settings-*.js")
        console.open("/flows")
        menus.wait()
        expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()
        page.context.set_offline(True)
        with page.expect_event("requestfailed", lambda request: "/health/" in request.url):
            menus.routes.pop().abort()
        menus.let_go()
        expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()
        page.context.set_offline(False)
        expect(page.get_by_role("button", name="Settings")).to_be_enabled()


def test_arranging_takes_back_nothing_that_was_done_meanwhile(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        path = f"/v1/flows/{flow_id}/versions"
        document = call(console.base, "GET", f"{path}/clinic-v1")
        places = {task["_id"]: {"x": 300 * n, "y": 150 * (n % 3)} for n, task in enumerate(document["tasks"])}
        changes = {"draft": True, "uiMetadata": {"positions": places}}
        call(console.base, "POST", path, {**document, "_id": "placed", **changes})
        engine = Held(page, "**/assets/elk-worker*")
        console.open(f"/flows/{flow_id}/versions/placed")
        nodes = page.locator(".task-node")
        expect(nodes).to_have_count(6)
        page.get_by_role("button", name="Arrange").click()
        engine.wait()
        page.get_by_role("button", name="Add task").click()
        expect(nodes).to_have_count(7)
        first = page.locator(".react-flow__node[data-id=reception]")
        before = first.get_attribute("style") or ""
        engine.let_go()
        expect(first).not_to_have_attribute("style", before)
        expect(nodes).to_have_count(7)
        console.was_clean()


def test_a_conversation_is_followed_again_by_the_next_key_and_once_the_store_is_back(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, _):
        page = console.page
        answers = [401, 503]

        def away(route: Route) -> None:
            if answers:
                refusing(route, answers.pop(0), "away")
            else:
                route.continue_()

        page.route("**/stream?*", away)
        console.open("/conversations/conv-1")
        page.get_by_label("API key").fill(ADMIN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("Your key is no longer accepted.")).to_be_visible()
        page.get_by_label("API key").fill(ADMIN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        assert answers == []


def test_what_ended_while_a_list_was_not_followed_is_not_listed_as_active(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page, cut = console.page, [True]
        flow_id = published(console.base, "clinic-v1")
        ids = [{"conversationId": f"conv-{n}", "contactId": f"contact-{n}"} for n in range(3)]
        for each in ids:
            start = {**each, "flowId": flow_id, "tag": "prod", "channel": "phone"}
            call(console.base, "POST", "/v1/handle-new-contact", start)

        def streamed(route: Route) -> None:
            """Cut off once the first is followed; meanwhile the second ends."""
            if "event-stream" in route.request.headers["accept"] and cut:
                cut.clear()
                call(console.base, "POST", "/v1/handle-end-contact", ids[1])
                route.fulfill(content_type="text/event-stream", body=": open\n\n")
            else:
                route.continue_()

        page.route("**/v1/conversations?*", streamed)
        console.open("/conversations?status=active")
        rows = page.locator(".conversation-row")
        expect(rows).to_have_count(2)
        page.get_by_text("conv-0").click()
        expect(page.get_by_role("heading", name="conv-0")).to_be_visible()
        call(console.base, "POST", "/v1/handle-end-contact", ids[0])
        page.go_back()
        expect(rows).to_have_count(1)
        expect(page.locator(".list-note")).to_contain_text("Live")
        console.was_clean()


def test_the_list_of_conversations_is_followed_again_by_the_next_key(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, _):
        page, withdrawn = console.page, [True]

        def streamed(route: Route) -> None:
            if "event-stream" in route.request.headers["accept"] and withdrawn:
                withdrawn.clear()
                refusing(route, 401, "unauthorized")
            else:
                route.continue_()

        page.route("**/v1/conversations?*", streamed)
        console.open("/conversations")
        for told in ("This service wants an API key.", "Your key is no longer accepted."):
            expect(page.get_by_text(told)).to_be_visible()
            expect(page.get_by_label("API key")).to_be_focused()
            page.get_by_label("API key").fill(ADMIN)
            page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text(re.compile(r"^\s*Live · 1 conversation"))).to_be_visible()


def test_a_late_refusal_of_the_key_before_does_not_end_the_session_of_the_next(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, flow_id):
        page = console.page
        signed_in(console, f"/flows/{flow_id}/versions/clinic-v1", DESIGNER)
        expect(page.locator(".task-node")).to_have_count(6)
        late = Held(page, "**/simulations", "POST")
        panel = page.get_by_role("region", name="Simulated users")
        panel.get_by_role("heading", name="Simulated users").click()
        panel.get_by_role("button", name="Simulate", exact=True).click()
        late.wait()
        page.route("**/try", lambda route: refusing(route, 401, "unauthorized"))
        page.get_by_role("textbox", name="Message").fill("Hello")
        page.get_by_role("button", name="Send").click()
        page.get_by_label("API key").fill(NEW_DESIGNER)
        page.get_by_role("button", name="Sign in").click()
        expect(panel).to_be_visible()
        refusing(late.routes[0], 401, "unauthorized")
        expect(panel.get_by_role("alert")).to_be_visible()
        expect(page.get_by_label("API key")).to_have_count(0)


def test_one_key_is_tried_at_a_time(tmp_path: Path) -> None:
    """The late refusal of a mistyped one took the right one with it."""
    with with_keys(tmp_path) as (console, _):
        page = console.page
        console.open("/flows")
        key = page.get_by_label("API key")
        key.fill("a mistyped one")
        asked = Held(page, "**/v1/key")
        key.press("Enter")
        asked.wait()
        key.fill(DESIGNER)
        key.press("Enter")
        expect(page.get_by_role("button", name="Sign in")).to_be_disabled()
        asked.let_go()
        expect(page.get_by_text("This key is not known here.")).to_be_visible()
        expect(key).to_have_value(DESIGNER)
        key.press("Enter")
        expect(page.get_by_role("link", name="Clinic")).to_be_visible()


def test_a_filter_keeps_the_space_before_a_pause(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        console.open("/conversations")
        task = page.get_by_label("Task")
        task.press_sequentially("visita ")
        page.wait_for_url("**?task=visita")
        clear = page.get_by_role("button", name="Clear the filters")
        expect(clear).to_be_visible()
        task.press_sequentially("perché")
        page.wait_for_url("**?task=visita+perch*")
        expect(task).to_have_value("visita perché")
        clear.click()
        expect(task).to_have_value("")
        console.was_clean()


def test_a_talk_that_was_started_over_does_not_come_back_with_a_late_answer(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        opened_version(console)
        page = console.page
        talk = page.get_by_role("region", name="Talk")
        message = talk.get_by_role("textbox", name="Message")
        message.fill("Hello")
        message.press("Enter")
        expect(talk.get_by_role("log")).to_contain_text("Hello")
        turns = Held(page, "**/try/*", "POST")
        message.fill("I want a visit")
        message.press("Enter")
        turns.wait()
        talk.get_by_role("button", name="Start over").click()
        message.fill("Good morning")
        message.press("Enter")
        turns.let_go()
        log = talk.get_by_role("log")
        expect(log).to_contain_text("Good morning")
        expect(log).not_to_contain_text("I want a visit")
        expect(talk.get_by_role("status").first).to_contain_text("reception")
        console.was_clean()


def test_a_way_is_taken_once_however_often_it_is_clicked(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        opened_version(console)
        page = console.page
        talk = page.get_by_role("region", name="Talk")
        message = talk.get_by_role("textbox", name="Message")
        message.fill("Hello")
        message.press("Enter")
        way = talk.get_by_role("button", name="→ supervised")
        expect(way).to_be_enabled()
        turns = Held(page, "**/try/*", "POST")
        way.click()
        turns.wait()
        expect(way).to_be_disabled()
        turns.let_go()
        expect(talk.get_by_role("status").first).to_contain_text("supervised")
        expect(talk.get_by_role("log")).to_contain_text("Hello")
        console.was_clean()


def test_a_late_promotion_closes_no_dialog_that_was_opened_meanwhile(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1", "clinic-v2")
        console.open(f"/flows/{flow_id}/publishing")
        puts = Held(page, "**/tags/prod", "PUT")
        card = page.get_by_role("region", name="prod")
        card.get_by_role("button", name="Promote").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Promote").click()
        puts.wait()
        dialog.get_by_role("button", name="Cancel").click()
        card.get_by_role("button", name="Split").click()
        weight = dialog.get_by_label("Weight").first
        weight.fill("70")
        puts.let_go()
        expect(card.locator("strong", has_text="clinic-v2")).to_be_attached()
        expect(weight).to_have_value("70")
        console.was_clean()


def test_simulated_users_stop_when_their_page_is_left(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        opened_version(console)
        runs = Held(page, "**/simulations", "POST")
        panel = page.get_by_role("region", name="Simulated users")
        panel.get_by_role("heading", name="Simulated users").click()
        panel.get_by_label("Runs").fill("3")
        panel.get_by_role("button", name="Simulate", exact=True).click()
        runs.wait()
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/simulations")):
            page.get_by_role("link", name="Conversations").click()
        expect(page.get_by_role("heading", name="There are no conversations yet")).to_be_visible()
        console.was_clean()


def test_what_was_refused_is_what_is_tried_again(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        a_conversation(console.base, flow_id)
        for refused, path, shown in (
            ("**/journal?*", "/conversations/conv-1", page.get_by_role("region", name="Timeline")),
            ("**/v1/flows", f"/flows/{flow_id}/publishing", page.get_by_role("region", name="prod")),
        ):
            page.route(refused, lambda route: refusing(route, 409, "away"))
            console.open(path)
            expect(page.get_by_text("It is away.")).to_be_visible()
            page.unroute(refused)
            page.get_by_role("button", name="Try again").click()
            expect(shown).to_be_visible()


def test_a_page_that_there_was_no_store_or_no_room_for_is_shown_once_there_is(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        for status in (503, 429):

            def away(route: Route, *, status: int = status) -> None:
                refusing(route, status, "away")

            page.route("**/v1/flows", away)
            console.open("/flows")
            expect(page.get_by_text("It is away.")).to_be_visible()
            page.unroute("**/v1/flows")
            expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()


def test_what_could_not_be_saved_is_tried_again_from_where_that_is_told(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        page.get_by_role("button", name="Add task").click()
        page.route("**/versions?*", lambda route: refusing(route, 503, "away"))
        page.get_by_role("button", name="Save draft").click()
        unsaved = page.get_by_role("dialog", name="Not saved")
        expect(unsaved).to_contain_text("It is away.")
        page.unroute("**/versions?*")
        unsaved.get_by_role("button", name="Try again").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        rows = call(console.base, "GET", f"/v1/flows/{flow_id}/versions")
        assert [row["draft"] for row in rows].count(True) == 1


def test_a_next_page_of_conversations_that_is_refused_is_told_and_tried_again_when_asked(
    tmp_path: Path,
) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        a_conversation(console.base, published(console.base, "clinic-v1"))
        asked: list[str] = []

        def two_pages(route: Route) -> None:
            if "text/event-stream" in route.request.headers["accept"]:
                route.continue_()
            elif "cursor=" not in route.request.url:
                listed = route.fetch().json()
                route.fulfill(json={**listed, "nextCursor": "older"})
            elif not asked:
                asked.append(route.request.url)
                refusing(route, 503, "away")
            else:
                asked.append(route.request.url)
                listed = route.fetch(url=route.request.url.replace("&cursor=older", "")).json()
                older = [{**row, "conversationId": "conv-0"} for row in listed["conversations"]]
                route.fulfill(json={**listed, "conversations": older})

        page.route("**/v1/conversations?*", two_pages)
        console.open("/conversations")
        refused = page.get_by_role("alert")
        expect(refused).to_contain_text("It is away.")
        expect(page.get_by_text("Live · ")).to_be_visible()
        call(console.base, "POST", "/v1/handle-human-task", {**CALL, "outcome": "taken_over"})
        page.wait_for_timeout(1_500)
        assert len(asked) == 1
        expect(page.get_by_role("link", name="conv-1")).to_be_visible()
        refused.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("link", name="conv-0")).to_be_visible()
        expect(refused).to_have_count(0)


def test_a_replay_is_shown_of_the_version_that_it_was_of(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1", "clinic-v2")
        a_conversation(console.base, flow_id)
        console.open("/conversations/conv-1")
        page.get_by_role("button", name="Replay").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Replay", exact=True).click()
        expect(dialog.get_by_text("The same path")).to_be_visible()
        dialog.get_by_role("combobox", name="Version").select_option("clinic-v2")
        expect(dialog.get_by_text("The same path")).to_have_count(0)
        dialog.get_by_role("button", name="Replay", exact=True).click()
        expect(dialog.get_by_text("Prompts differ at entries")).to_be_visible()
        console.was_clean()
