"""Who the console lets in, and what it shows when the service or the key is away."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect

from api.console import BUILT
from tests.browser.console import call, needs_a_browser, needs_a_build, opened_console, published

pytestmark = [needs_a_build, pytest.mark.filterwarnings("default")]

KEY = "a-designer's-own-key"
MOST_BYTES = 350 * 1024


@needs_a_browser
def test_a_key_is_asked_for_and_kept_by_choice_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    entries = [{"key": KEY, "tenant": "acme", "scopes": ["designer"], "name": "ada"}]
    keys.write_text(json.dumps({"keys": entries}))
    with opened_console(tmp_path / "data", FLOW_ENGINE_API_KEYS_FILE=str(keys)) as console:
        page = console.page
        console.open("/flows")
        page.get_by_label("API key").fill("nobody knows this one")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("This key is not known here.")).to_be_visible()
        console.is_accessible()
        for odd in ("a key—with a dash", "ключ", "a\u200bkey", "clé"):
            page.get_by_label("API key").fill(odd)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_text("This key is not known here.")).to_be_visible()
            expect(page.get_by_text("No connection to the service")).to_have_count(0)
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Flows", exact=True)).to_be_visible()
        assert page.evaluate("Object.values(localStorage).concat(Object.values(sessionStorage))") == []
        page.reload()
        page.get_by_label("API key").fill(KEY)
        page.get_by_label("Keep it until this tab is closed").check()
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Flows", exact=True)).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Flows", exact=True)).to_be_visible()
        assert console.foreign == []


@needs_a_browser
def test_a_proxy_may_have_the_service_below_a_path_of_its_own(tmp_path: Path) -> None:
    """Which it takes away before it passes a request on, and passes nothing else on."""
    with opened_console(tmp_path) as console:
        flow_id = published(console.base, "clinic-v1")
        page, base = console.page, console.base

        def pass_on(route: Route) -> None:
            path = route.request.url.removeprefix(f"{base}/engine")
            route.continue_(url=base + path) if path != route.request.url else route.abort()

        page.route(f"{base}/**", pass_on)
        page.goto(f"{base}/engine/console")
        page.wait_for_url("**/engine/console/flows")
        page.get_by_role("link", name="Operations").click()
        expect(page.get_by_role("heading", name="Operations", exact=True)).to_be_visible()
        page.goto(f"{base}/engine/console/flows/{flow_id}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.goto(f"{base}/engine/docs")
        page.get_by_role("button", name="GET /health/live The process").click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".request-url")).to_contain_text(f"{base}/engine/health/live")
        expect(page.locator(".live-responses-table").get_by_text("200")).to_be_visible()
        console.was_clean()


@needs_a_browser
def test_a_lost_connection_is_told_and_mended_by_itself(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        page.route("**/v1/flows", lambda route: route.abort())
        console.open("/flows")
        expect(page.get_by_role("heading", name="No connection to the service")).to_be_visible()
        page.unroute("**/v1/flows")
        expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()


@needs_a_browser
def test_what_was_not_done_for_want_of_a_connection_says_so_and_keeps_what_was_typed(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        page.get_by_role("button", name="Add task").click()
        page.route("**/v1/**", lambda route: route.abort())
        page.get_by_role("button", name="Save draft").click()
        unsaved = page.get_by_role("dialog", name="Not saved")
        expect(unsaved).to_contain_text("No answer came, and it is not tried again by itself.")
        expect(unsaved).not_to_contain_text("It is tried again by itself")
        page.keyboard.press("Escape")
        expect(page.get_by_text("Unsaved changes")).to_be_visible()

        talk = page.get_by_role("region", name="Talk")
        message = talk.get_by_role("textbox", name="Message")
        message.fill("I want a visit")
        talk.get_by_role("button", name="Send").click()
        expect(talk.get_by_text("No answer came, and it is not tried again by itself.")).to_be_visible()
        expect(message).to_have_value("I want a visit")
        page.unroute("**/v1/**")
        page.get_by_role("button", name="Undo").click()  # a new task has errors
        expect(page.get_by_role("region", name="Problems").get_by_text("error")).to_have_count(0)
        talk.get_by_role("button", name="Send").click()
        expect(talk.get_by_role("log")).to_contain_text("I want a visit")
        expect(message).to_have_value("")


@needs_a_browser
def test_what_a_browser_offline_did_not_do_is_not_done_once_it_is_online(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id = published(console.base, "clinic-v1")
        console.open(f"/flows/{flow_id}/versions/clinic-v1")
        problems = page.get_by_role("region", name="Problems")
        expect(problems).to_contain_text("warning")
        page.context.set_offline(True)
        page.locator("[data-task=visit]").click()
        page.get_by_label("When to enter it").fill("Typed offline.")
        expect(problems.get_by_role("alert")).to_contain_text("No connection to the service")
        page.get_by_role("button", name="Publish").click()
        dialog = page.get_by_role("dialog", name="Publish")
        dialog.get_by_role("button", name="Publish").click()
        expect(dialog.get_by_role("alert")).to_contain_text("it is not tried again by itself")
        page.keyboard.press("Escape")
        page.context.set_offline(False)
        expect(problems.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_label("When to enter it")).to_have_value("Typed offline.")
        page.get_by_role("button", name="Save draft").click()
        expect(page.get_by_text("Draft saved")).to_be_visible()
        rows = call(console.base, "GET", f"/v1/flows/{flow_id}/versions")
        assert len({row["versionId"] for row in rows}) == 2, rows


@needs_a_browser
def test_the_service_is_asked_while_the_code_is_under_way_and_once(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page, asked, held = console.page, list[str](), list[Route]()

        def hold(route: Route) -> None:
            held.append(route)

        page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        page.route("**/console/assets/start-*.js", hold)
        with page.expect_response("**/v1/flows"):
            page.goto(f"{console.base}/console/flows", wait_until="commit")
        while not held:
            page.wait_for_timeout(10)
        held[0].continue_()
        expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()
        assert [path for path in asked if path in ("/v1/key", "/v1/flows")] == ["/v1/key", "/v1/flows"]
        console.was_clean()


@needs_a_browser
def test_dark_and_light_are_chosen_and_kept(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        page.emulate_media(color_scheme="dark")
        console.open("/flows")
        expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        console.is_accessible()
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("menuitemradio", name="Light").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        page.reload()
        expect(page.get_by_role("heading", name="There are no flows yet")).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        console.was_clean()


def _transferred(name: str, seen: set[str]) -> int:
    """Compressed bytes of a file of the build and of what it imports at once; what it loads later is not."""
    if name in seen:
        return 0
    seen.add(name)
    text = (BUILT / name).read_text("utf-8")
    static = re.findall(r"(?:from|import)\s*[\"']\./([\w.-]+\.js)[\"']", text)
    own = len(gzip.decompress((BUILT / f"{name}.gz").read_bytes())) and (BUILT / f"{name}.gz").stat().st_size
    return own + sum(_transferred(f"assets/{each}", seen) for each in static)


def test_the_first_load_is_small() -> None:
    page = (BUILT / "index.html").read_text("utf-8")
    files = re.findall(r"\./(assets/[\w.-]+\.(?:js|css))", page)
    assert len(files) >= 2
    seen: set[str] = set()
    total = sum(_transferred(name, seen) for name in files)
    menus = next(path.name for path in (BUILT / "assets").glob("Settings-*.js"))  # right after the page
    assert total + _transferred(f"assets/{menus}", seen) < MOST_BYTES


def test_the_lock_of_packages_names_no_address() -> None:
    lock = json.loads((BUILT.parents[1] / "console" / "package-lock.json").read_text("utf-8"))
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
