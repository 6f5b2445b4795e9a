"""The built console in a real Chromium, on a service of its own: what its tests share."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import ConsoleMessage, Page, TimeoutError, expect, sync_playwright

from api.console import BUILT
from tests.api.harness import CALL, clinic
from tests.service_process import ROOT, running_service

CHROMIUM = shutil.which("chromium") or ""
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
SHOTS = ROOT / "docs" / "images"
WITHIN_MS = 30_000
WIDTHS = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
CHECKED = "tags => axe.run(document, {runOnly: tags, rules: {'heading-order': {enabled: true}}})"
AT_REST = "document.getAnimations().forEach((each) => each instanceof CSSTransition && each.finish())"

needs_a_browser = pytest.mark.skipif(
    not (CHROMIUM or os.environ.get("CI")), reason="chromium is not installed"
)
needs_a_build = pytest.mark.skipif(
    not (BUILT / "index.html").is_file(), reason="the console is not built: `make console`"
)
IN_A_BROWSER = [needs_a_browser, needs_a_build, pytest.mark.filterwarnings("default")]
"""The marks of a module whose every test drives the console."""
expect.set_options(timeout=WITHIN_MS)


class Console:
    """A page of the console. `errors` are those of its browser, `foreign` the addresses of other hosts that
    it asked."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(WITHIN_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.foreign.append(url)

    def open(self, path: str = "") -> None:
        self.page.goto(f"{self.base}/console{path}")

    def is_accessible(self) -> None:
        """No violation of WCAG 2.2 AA that axe can see in the page at rest, and no level of headings left
        out. Halfway between two themes a button's text has its colour already and its ground does not."""
        self.page.evaluate(AXE.read_text("utf-8"))
        self.page.evaluate(AT_REST)
        found = self.page.evaluate(CHECKED, WCAG)
        told = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found["violations"]]
        assert told == [], told

    def picture(self, name: str) -> None:
        """Into the docs, of the wide page unless it is called narrow, where `FLOW_ENGINE_TEST_PICTURES` asks
        for new ones."""
        width = WIDTHS["narrow" if name.endswith("narrow") else "wide"]
        if os.environ.get("FLOW_ENGINE_TEST_PICTURES") and self.page.viewport_size == width:
            SHOTS.mkdir(exist_ok=True)
            self.page.screenshot(path=SHOTS / f"console-{name}.png")

    def told(self) -> str:
        """What a wait in vain does not say of itself: a page that computes, or one that is not drawn."""

        def comes(polling: float | Literal["raf"]) -> bool:
            try:
                self.page.wait_for_function("true", polling=polling, timeout=3_000)
            except TimeoutError:
                return False
            return True

        return f"scripts run: {comes(100)}, frames come: {comes('raf')}, errors: {self.errors}"

    def was_clean(self) -> None:
        assert (self.errors, self.foreign) == ([], []), (self.errors, self.foreign)


@contextmanager
def opened_console(
    data: Path, *, width: str = "wide", locale: str = "en-GB", **environment: str
) -> Iterator[Console]:
    """A service without samples, and a browser at its console that no one has used before."""
    environment = {"FLOW_ENGINE_SAMPLES": "false", **environment}
    with running_service(data, **environment) as base, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            context = browser.new_context(viewport=WIDTHS[width], locale=locale)  # type: ignore[arg-type]
            console = Console(context.new_page(), base)
            try:
                yield console
            except TimeoutError as in_vain:
                in_vain.add_note(console.told())
                raise
        finally:
            browser.close()


def call(base: str, method: str, path: str, body: object = None, key: str = "") -> Any:
    """A call of the API as another designer would make it; with `key` where the service asks for one."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    with urlopen(Request(base + path, content, headers, method=method)) as reply:
        return json.loads(reply.read())


def published(base: str, *version_ids: str, approval: bool = False, key: str = "") -> str:
    """The id of a flow with these versions, the first of which has the tag `prod`."""
    flow = call(base, "POST", "/v1/flows", {"name": "Clinic", "campaignId": "c", "updatedBy": "ada"}, key)
    flow_id: str = flow["id"]
    for number, version_id in enumerate(version_ids):
        changes: dict[str, Any] = {"globalPrompt": f"You answer the phone, {number}."} if number else {}
        document = {**clinic(_id=version_id), **changes}
        del document["conversationalFlowId"]
        if approval:
            next(task for task in document["tasks"] if task["type"] == "AIS")["approval"] = True
        call(base, "POST", f"/v1/flows/{flow_id}/versions", document, key)
    order = {"versionId": version_ids[0], "updatedBy": "ada"}
    call(base, "PUT", f"/v1/flows/{flow_id}/tags/prod", order, key)
    return flow_id


def a_conversation(base: str, flow_id: str, key: str = "") -> None:
    start = {**CALL, "flowId": flow_id, "tag": "prod", "channel": "phone"}
    call(base, "POST", "/v1/handle-new-contact", start, key)
    said = {"messageId": "m-1", "ts": "2026-01-15T09:31:00Z", "type": "message", "src": "user"}
    call(base, "POST", "/v1/handle-utterance", {**CALL, **said, "body": "I want a visit"}, key)
    for task, reason in (("Visita Perché", "Wants a visit"), ("supervised", "Not sure what it is")):
        call(base, "POST", "/v1/change-task", {**CALL, "task": task, "reason": reason}, key)


def within_its_width(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
