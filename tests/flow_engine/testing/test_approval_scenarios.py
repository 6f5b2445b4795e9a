"""Flow tests of tasks with approval: decisions of a person and time that runs out are steps like others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flow_engine.testing.scene import ORDER, complaints


@pytest.fixture
def order(tmp_path: Path) -> Path:
    """The sample of orders, whose complaints are answered with approval, within 2 minutes."""
    whole = json.loads(ORDER.read_text("utf-8"))
    for task in whole["version"]["tasks"]:
        if task["_id"] == "complaint":
            task.update(approval=True, approvalTimeout=120)
    file = tmp_path / "order.json"
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


STORY = """
- change_task: complaint
- expect: {task: complaint, status: ai, prompt_contains: your next message goes to staff first}
- human_task: {outcome: waiting, text: "We refund 20."}
- expect: {status: waiting, command: null, prompt_contains: "«We refund 20.» waits"}
- human_task: {outcome: waiting, text: "Something else."}
- expect: {refused: already_waiting}
- change_task: colleague
- expect: {refused: waiting_for_approval, task: complaint}
- human_task: {outcome: edited, text: "We refund 25.", reason: it was late}
- expect: {status: edited, command: /human_task_edited it was late, prompt_contains: "«We refund 25.»"}
- human_task: approved
- expect: {refused: already_decided, status: edited}
- human_task: {outcome: waiting, text: "Anything else?"}
- human_task: {outcome: rejected, reason: not yet}
- expect: {status: rejected, command: /human_task_rejected not yet}
- human_task: {outcome: waiting, text: "Goodbye."}
- wait: 3 minutes
- expect: {status: timeout}
- human_task: approved
- expect: {refused: already_decided}
- change_task: colleague
- expect: {task: colleague}
"""


def test_a_story_of_texts_that_wait(tmp_path: Path, order: Path) -> None:
    assert complaints(tmp_path, STORY, flow=order, head="channel: chat") == []


def test_a_decision_that_is_not_taken_says_why_and_what_would_be(tmp_path: Path, order: Path) -> None:
    steps = """
    - change_task: complaint
    - human_task: {outcome: waiting, text: "We refund 20."}
    - human_task: {outcome: approved, text: "We refund 200."}
    """
    told = complaints(tmp_path, steps, flow=order, head="channel: chat")
    assert told[0] == "7 human_task"
    assert told[1].startswith("refused with another_text: the decision is on another text than ")
    assert told[2] == "expected: it to be taken, or `expect: {refused: another_text}` after it"
    assert told[3] == "accepted now: 'approved', 'edited', 'rejected', 'timeout', 'taken_over'"
