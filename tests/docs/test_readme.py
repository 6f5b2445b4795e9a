"""The pages that a newcomer follows, run as they are written against a service of its own."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.models.scripted import CallsTools, Says
from flow_engine.ports.models import ToolCall
from tests.docs.walkthrough import assert_shows, follow
from tests.flow_engine.importing.originals import FOLDER, PACKAGE
from tests.flow_engine.listening.talking import scripted_openai
from tests.service_process import ROOT, running_service

README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    with running_service(tmp_path / "data") as base:
        yield base


def test_the_walkthrough_answers_what_the_readme_shows(service: str, tmp_path: Path) -> None:  # F28-F34, F42
    ran, compared = follow(README, service, tmp_path)
    assert (ran, compared) >= (13, 12)


def test_the_tutorial_goes_as_it_says(service: str, tmp_path: Path) -> None:  # F6, F9, F27
    ran, compared = follow(TUTORIAL, service, tmp_path)
    assert (ran, compared) >= (10, 10)


def test_the_agent_of_the_page_holds_a_conversation_with_a_model(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # F28-F31, F33
    page = (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")
    moves = [CallsTools([ToolCall(name, "change_task", {"task": name})]) for name in ("order", "take order")]
    with scripted_openai([Says("Hello!"), *moves, Says("Which tea?")]) as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        assert follow(page, service, tmp_path) == (1, 1)
        *_, told = (request.body["messages"] for request in fake.requests)
    assert [each["content"] for each in told[1:]][:3] == ["/start", "Hello!", "I'd like some tea, please"]
    commands = [each["content"] for each in told if each["role"] == "user"][2:]
    assert commands[0].startswith("/error there is no task 'order'")
    assert commands[1:] == ["/start_task take order AIO"]
    assert "## Current task" in told[0]["content"]


def test_the_page_about_tries_works_as_it_is_written(service: str, tmp_path: Path) -> None:  # F22, F42
    """Its conversation is there, and has the entry of the journal that the page asks for."""
    page = (ROOT / "docs" / "trying.md").read_text(encoding="utf-8")
    trying, rendering = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ids = {"contactId": "c-1", "conversationId": "call-17"}
    bodies = [{"channel": "phone", "flowId": "health-booking", "tag": "prod"}]
    said = {"ts": "2026-01-15T09:30:00Z", "type": "message", "src": "user", "body": "Buongiorno"}
    bodies += [{**said, "messageId": f"m-{number}"} for number in range(3)]
    for body in bodies:
        route = "handle-utterance" if "body" in body else "handle-new-contact"
        request = urllib.request.Request(f"{service}/v1/{route}", json.dumps({**ids, **body}).encode())
        urllib.request.urlopen(request, timeout=10).close()
    shown = f"""```sh\n{trying}```\n```json\n{{"turn": 2, "channel": "phone"}}\n```
```sh\n{rendering}```\n```json\n{{"seq": 4, "taskId": "prestazione"}}\n```"""
    assert follow(shown, service, tmp_path) == (2, 2)


def test_the_page_about_other_systems_goes_from_files_to_a_conversation(service: str, tmp_path: Path) -> None:
    (tmp_path / "data/flows").mkdir(parents=True)
    names = {"retell.json": "conversation-flow.json", "rasa-flows.yml": "data/flows/flows.yml"}
    names |= {"rasa-domain.yml": "domain.yml", "pipecat.yaml": "flow.yaml"}
    for original, name in names.items():
        shutil.copy(FOLDER / original, tmp_path / name)
    shutil.make_archive(str(tmp_path / "exported-agent"), "zip", PACKAGE)
    page = (ROOT / "docs" / "importing.md").read_text(encoding="utf-8")
    assert follow(page, service, tmp_path) == (2, 1)  # F27, F28


def test_the_comparison_notices_a_difference() -> None:
    with pytest.raises(AssertionError):
        assert_shows({"a": {"b": "x…"}}, {"a": {"b": "yx"}}, "")


def test_a_page_that_shows_something_else_is_noticed(service: str, tmp_path: Path) -> None:
    page = '```sh\ncurl -s http://127.0.0.1:8080/health/live\n```\n```json\n{"status": "no"}\n```\n'
    with pytest.raises(AssertionError):
        follow(page, service, tmp_path)


def test_commands_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
        for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            headings = re.findall(
                r"^#+ (.+)$", (page.parent / link if link else page).read_text(), re.MULTILINE
            )
            assert anchor in {_anchor(heading) for heading in headings}, (page.name, link, anchor)


def _anchor(heading: str) -> str:
    """As the reader of Markdown makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
