"""Simulated users in the console: a persona from its file, a verdict, a failed run that leads to its task."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from flow_engine.testing.simulation import Persona, Recording, read_file
from flows.samples import load_samples
from tests.browser.console import IN_A_BROWSER, WIDTHS, Console, call, opened_console
from tests.service_process import ROOT

pytestmark = IN_A_BROWSER

FITS = "document.documentElement.scrollWidth <= window.innerWidth"
PERSONAS = ROOT / "flows" / "samples" / "personas"


def saved_sample(console: Console) -> tuple[str, str]:
    """The ids of a flow with the order sample, and of its version."""
    flow = {"name": "Orders", "campaignId": "c", "updatedBy": "ada"}
    flow_id: str = call(console.base, "POST", "/v1/flows", flow)["id"]
    [document] = [json.loads(sample.document) for sample in load_samples() if sample.flow_id == "order"]
    del document["conversationalFlowId"]
    saved = call(console.base, "POST", f"/v1/flows/{flow_id}/versions", document)
    return flow_id, saved["versionId"]


def downloaded(console: Console, button: str) -> bytes:
    panel = console.page.get_by_role("region", name="Simulated users")
    with console.page.expect_download() as begun:
        panel.get_by_role("button", name=button).click()
    return Path(begun.value.path()).read_bytes()


def test_a_persona_is_simulated_a_failed_run_leads_to_its_task_and_a_refusal_says_why(tmp_path: Path) -> None:
    with opened_console(tmp_path) as console:
        page = console.page
        flow_id, version_id = saved_sample(console)
        console.open(f"/flows/{flow_id}/versions/{version_id}")
        expect(page.locator("[data-task=welcome]")).to_be_visible()
        panel = page.get_by_role("region", name="Simulated users")
        panel.get_by_role("heading", name="Simulated users").click()

        name = "order-present"
        panel.get_by_label("Open a persona's file").set_input_files(PERSONAS / f"{name}.yaml")
        expect(panel.get_by_role("textbox", name="Name", exact=True)).to_have_value(
            "Ruth, who wants a present"
        )
        panel.get_by_label("Open a recording").set_input_files(PERSONAS / f"{name}.recorded.yaml")
        panel.get_by_label("Runs").fill("2")
        panel.get_by_role("button", name="Simulate", exact=True).click()
        status = panel.get_by_role("status")
        expect(status.get_by_text("pass^2 1")).to_be_visible()
        panel.get_by_text("Run 1, turns: 4").click()
        expect(panel.get_by_text("Express then. Where to?").first).to_be_visible()
        assert page.evaluate(FITS)
        console.is_accessible()
        panel.scroll_into_view_if_needed()
        console.picture("simulations")
        recording = read_file(Recording, downloaded(console, "Save the recording"))
        assert len(recording.runs) == 2
        assert read_file(Persona, downloaded(console, "Save the persona")).name == "Ruth, who wants a present"

        panel.get_by_text("What holds at the end").click()
        panel.get_by_role("textbox", name="Task", exact=True).fill("payment")
        panel.get_by_label("Runs").fill("1")
        panel.get_by_label("How").select_option("voice")
        panel.get_by_role("button", name="Simulate", exact=True).click()
        expect(status.get_by_text("pass^1 0")).to_be_visible()
        expect(panel.get_by_text("at the end, task: expected 'payment', found 'goodbye'")).to_be_visible()
        panel.get_by_role("button", name="Go to “goodbye”").click()
        expect(page.get_by_role("region", name="goodbye")).to_be_visible()

        page.set_viewport_size(WIDTHS["narrow"])  # type: ignore[arg-type]
        panel.get_by_role("button", name="Simulate", exact=True).scroll_into_view_if_needed()
        assert page.evaluate(FITS)
        console.is_accessible()
        console.was_clean()

        page.goto("about:blank")
        console.open(f"/flows/{flow_id}/versions/{version_id}")
        panel.get_by_role("heading", name="Simulated users").click()
        panel.get_by_role("button", name="Simulate", exact=True).click()
        expect(panel.get_by_role("alert").get_by_role("listitem")).to_contain_text(
            ["Name must", "Goal must", "Mood must"]
        )
        for field in ("Name", "Goal", "Mood"):
            panel.get_by_role("textbox", name=field, exact=True).fill("anything")
        knowledge = panel.get_by_role("textbox", name="Knowledge")
        expect(knowledge).to_have_accessible_description(re.compile("JSON"))
        knowledge.fill("her address is 4 Quay Street")
        panel.get_by_label("Runs").focus()
        expect(knowledge).to_have_accessible_description(re.compile("^This is not JSON, so it was not taken"))
        console.is_accessible()
        knowledge.fill('{"address": "4 Quay Street"}')
        panel.get_by_label("Runs").focus()
        expect(knowledge).to_have_accessible_description(re.compile("^JSON"))
        panel.get_by_role("button", name="Simulate", exact=True).click()
        expect(panel.get_by_role("alert")).to_contain_text("FLOW_ENGINE_LLM_MODEL")
        console.is_accessible()
