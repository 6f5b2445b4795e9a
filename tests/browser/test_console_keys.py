"""What the console does with the key that it has: one that is withdrawn meanwhile, and one of few scopes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Route, expect

from tests.browser.console import IN_A_BROWSER, Console, a_conversation, call, opened_console, published

pytestmark = IN_A_BROWSER

SCOPES = {
    "the-key-of-everything": ["admin"],
    "the-key-of-ada-the-designer": ["designer"],
    "the-new-key-of-the-designer": ["designer"],
    "the-key-of-some-operator": ["operator"],
    "the-key-of-some-voice-agent": ["agent"],
}
ADMIN, DESIGNER, NEW_DESIGNER, OPERATOR, AGENT = SCOPES


@contextmanager
def with_keys(tmp_path: Path) -> Iterator[tuple[Console, str]]:
    """A console of a service with these keys, and the id of its flow, which a conversation is on."""
    keys = tmp_path / "keys.json"
    entries = [{"key": key, "tenant": "acme", "scopes": scopes} for key, scopes in SCOPES.items()]
    keys.write_text(json.dumps({"keys": entries}))
    with opened_console(tmp_path / "data", FLOW_ENGINE_API_KEYS_FILE=str(keys)) as console:
        flow_id = published(console.base, "clinic-v1", key=ADMIN)
        a_conversation(console.base, flow_id, key=ADMIN)
        yield console, flow_id


def signed_in(console: Console, path: str, key: str) -> None:
    """On a page of the console, by a key that stays through reloads."""
    console.open(path)
    console.page.get_by_label("API key").fill(key)
    console.page.get_by_label("Keep it until this tab is closed").check()
    console.page.get_by_role("button", name="Sign in").click()
    expect(console.page.get_by_label("API key")).to_have_count(0)
    console.errors.clear()  # the browser's own line about the 401 of the first request


def test_work_goes_on_with_another_key_when_the_first_is_withdrawn(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, flow_id):
        page = console.page
        signed_in(console, f"/flows/{flow_id}/versions/clinic-v1", DESIGNER)
        page.locator("[data-task=visit]").click()
        page.get_by_label("When to enter it").fill("What was typed before the key ended.")

        saved = False

        def withdrawn(route: Route) -> None:
            """From the save on the service does not know the old key: its refusals are its own. Not before:
            the page also asks by itself, and who is refused then cannot save any more."""
            nonlocal saved
            headers = route.request.headers
            path = urlsplit(route.request.url).path
            saved = saved or (route.request.method == "POST" and path.endswith("/versions"))
            if saved and headers.get("authorization") == f"Bearer {DESIGNER}":
                headers = {**headers, "authorization": "Bearer a-key-that-was-withdrawn"}
            route.continue_(headers=headers)

        page.route("**/v1/**", withdrawn)
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Your key is no longer accepted.")).to_be_visible()
        expect(page.get_by_label("When to enter it")).to_be_hidden()
        console.is_accessible()
        page.get_by_label("API key").fill(DESIGNER)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("This key is not known here.")).to_be_visible()

        page.get_by_label("API key").fill(NEW_DESIGNER)
        page.get_by_role("button", name="Sign in").click()
        unsaved = page.get_by_role("dialog", name="Not saved")
        unsaved.get_by_role("button", name="Close").click()
        description = page.get_by_label("When to enter it")
        expect(description).to_have_value("What was typed before the key ended.")
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        rows = call(console.base, "GET", f"/v1/flows/{flow_id}/versions", key=ADMIN)
        [draft] = [row["versionId"] for row in rows if row["draft"]]
        saved = call(console.base, "GET", f"/v1/flows/{flow_id}/versions/{draft}", key=ADMIN)
        assert "What was typed before the key ended." in [task["description"] for task in saved["tasks"]]
        assert console.foreign == []


def test_who_stays_at_unsaved_work_instead_of_signing_out_can_save_it(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, flow_id):
        page = console.page
        signed_in(console, f"/flows/{flow_id}/versions/clinic-v1", DESIGNER)
        page.get_by_role("button", name="Add task").click()
        for stays in (True, False):
            page.once("dialog", lambda asked, stays=stays: asked.dismiss() if stays else asked.accept())
            page.get_by_role("button", name="Settings").click()
            page.get_by_role("menuitem", name="Sign out").click()
            if stays:
                assert page.evaluate("sessionStorage.getItem('flow-engine.key')") == DESIGNER
                page.get_by_role("button", name="Save draft").click()
                expect(page.get_by_text("Draft saved")).to_be_visible()
                page.get_by_role("button", name="Add task").click()
        expect(page.get_by_label("API key")).to_be_visible()
        page.go_back()
        expect(page.get_by_label("API key")).to_be_visible()
        assert page.evaluate("sessionStorage.getItem('flow-engine.key')") is None


def test_an_operator_sees_conversations_and_health_and_can_erase_or_edit_nothing(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, flow_id):
        page = console.page
        signed_in(console, "/conversations", OPERATOR)
        page.get_by_role("link", name="conv-1").click()
        expect(page.get_by_role("button", name="Fork")).to_be_visible()
        expect(page.get_by_text("Refused: Visita Perché")).to_be_visible()
        for action in ("Erase", "Take over"):
            expect(page.get_by_role("button", name=action)).to_have_count(0)
        page.get_by_role("tab", name="Path").click()
        expect(page.get_by_role("tabpanel", name="Path")).to_contain_text("reception")
        page.get_by_role("button", name="Fork").click()
        page.get_by_role("dialog").get_by_role("button", name="Fork").click()
        expect(page.get_by_role("link", name="fork of conv-1")).to_be_visible()
        page.get_by_role("button", name="Replay").click()
        page.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
        expect(page.get_by_text("The same path")).to_be_visible()

        console.open("/operations")
        expect(page.get_by_role("tab", name="Health")).to_be_visible()
        expect(page.get_by_role("tab", name="Mail runs")).to_have_count(0)
        for path in ("/flows", f"/flows/{flow_id}", f"/flows/{flow_id}/versions/clinic-v1"):
            console.open(path)
            expect(page.get_by_text("Your key does not open this")).to_be_visible()
            expect(page.get_by_text("the scope designer")).to_be_visible()
        console.is_accessible()
        console.was_clean()  # nothing was asked for that the key does not open


def test_an_agents_key_lists_flows_and_opens_nothing_else(tmp_path: Path) -> None:
    with with_keys(tmp_path) as (console, flow_id):
        page = console.page
        signed_in(console, "/flows", AGENT)
        expect(page.get_by_role("link", name="Clinic")).to_be_visible()
        expect(page.get_by_role("button", name="Create a flow")).to_have_count(0)
        page.get_by_role("link", name="Clinic").click()
        expect(page.get_by_role("link", name="clinic-v1")).to_be_visible()
        expect(page.get_by_role("link", name="Publishing")).to_have_count(0)
        for path, scope in (
            ("/conversations", "operator"),
            ("/conversations/conv-1", "operator"),
            ("/operations", "operator"),
            (f"/flows/{flow_id}/publishing", "designer"),
            (f"/flows/{flow_id}/versions/clinic-v1", "designer"),
        ):
            console.open(path)
            expect(page.get_by_text("Your key does not open this")).to_be_visible()
            expect(page.get_by_text(f"the scope {scope}")).to_be_visible()
        console.was_clean()
