"""Originals of each format, as files and decoded, and the verdict of a save on what is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from flow_engine.documents import DocumentLimits
from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.importing import IMPORTERS, ImportedDraft, OriginalFormat, gathered
from flow_engine.testing.yaml_text import read_yaml
from flow_engine.use_cases.submissions import Submissions
from system_prompts.loader import load_system_prompts

FOLDER = Path(__file__).parent / "originals"
PACKAGE = FOLDER / "dialogflow-cx"


def decoded(name: str) -> Any:
    path = FOLDER / name
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    root, mistakes = read_yaml(path.read_bytes())
    assert not mistakes
    return root.value


def package() -> JsonValue:
    files = {each.relative_to(PACKAGE).as_posix(): each for each in PACKAGE.rglob("*.json")}
    return gathered({name: json.loads(each.read_text("utf-8")) for name, each in files.items()})


def originals() -> Mapping[str, tuple[OriginalFormat, Any]]:
    return {
        "retell": ("retell", decoded("retell.json")),
        "dialogflow-cx": ("dialogflow-cx", package()),
        "rasa": ("rasa", {**decoded("rasa-domain.yml"), **decoded("rasa-flows.yml")}),
        "pipecat": ("pipecat", decoded("pipecat.json")),
        "pipecat of today": ("pipecat", decoded("pipecat.yaml")),
    }


def imported(name: str) -> Imported:
    kind, raw = originals()[name]
    return Imported(IMPORTERS[kind](raw))


class Imported:
    """A draft, with short ways to its parts."""

    def __init__(self, draft: ImportedDraft) -> None:
        self.draft = draft
        self.document: Any = draft.document
        self.tasks: Mapping[str, Any] = {each["_id"]: each for each in self.document["tasks"]}
        self.variables: Mapping[str, Any] = {each["name"]: each for each in self.document["variables"]}

    def remark(self, pointer: str) -> tuple[str, str]:
        (found,) = (each for each in self.draft.remarks if each["pointer"] == pointer)
        return found["kept"], found["message"]

    def condition(self, source: str, target: str) -> Mapping[str, str]:
        return self.tasks[source].get("connectionConditions", {}).get(target, {})


def errors_of(document: Mapping[str, object]) -> list[Finding]:
    """What a save of the document as a finished version refuses; nothing where it takes it."""
    body = json.dumps({**document, "draft": False}).encode()
    checks = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version-1")
    try:
        checks.check(body, flow_id="flow-1", created_by="tests", now=datetime(2026, 1, 1, tzinfo=UTC))
    except CorrectTheInput as refusal:
        return list(refusal.findings) or [Finding("", refusal.code, refusal.detail)]
    return []


def pointed_at(raw: Any, pointer: str) -> bool:
    """Whether a pointer leads somewhere in the original."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(raw, list) and key.isdigit() and int(key) < len(raw):
            raw = raw[int(key)]
        elif isinstance(raw, dict) and key in raw:
            raw = raw[key]
        else:
            return False
    return True


def places(raw: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a decoded document."""
    yield path
    rows = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for key, value in rows:
        yield from places(value, (*path, key))
