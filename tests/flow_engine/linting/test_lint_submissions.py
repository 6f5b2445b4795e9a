"""What the linter finds refuses a save or is told with it."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest

from flow_engine.documents import DocumentLimits
from flow_engine.errors import CorrectTheInput
from flow_engine.use_cases.submissions import Submission, Submissions
from system_prompts.loader import load_system_prompts
from tests.flow_engine.linting.versions import JsonObject, sound_version, task


def submitted(raw: JsonObject) -> Submission:
    submissions = Submissions(load_system_prompts(), DocumentLimits(), lambda: "version-1")
    now = datetime(2026, 1, 31, tzinfo=UTC)
    return submissions.check(orjson.dumps(raw), flow_id="flow-1", created_by="designer", now=now)


def test_warnings_come_with_the_save_and_say_what_to_do() -> None:  # F9
    raw = sound_version()
    raw["tasks"].append(task("survey", ["welcome"]))
    [warning] = submitted(raw).warnings
    assert (warning.pointer, warning.code) == ("/tasks/3", "unreachable_task")
    assert "'survey'. Connect it" in warning.message


def test_errors_refuse_it_and_all_are_told() -> None:  # F9
    raw = sound_version(globalPrompt="{% set a = 1 %}", conversationalFlowId="other")
    raw["tasks"].append(task("survey", ["welcome"]))
    with pytest.raises(CorrectTheInput) as refusal:
        submitted(raw)
    told = [(finding.pointer, finding.code) for finding in refusal.value.findings]
    assert told == [("/globalPrompt", "template_forbidden"), ("/conversationalFlowId", "flow_mismatch")]


@pytest.mark.parametrize(
    "template", ["{{ cycler.__init__() }}", "{% if $task.name == 'welcome' %}small", "{# small"]
)
def test_a_voice_or_model_that_could_not_be_rendered_refuses_it(template: str) -> None:  # F3 F9 F22
    raw = sound_version()
    voice = {"provider": "google", "voice": template}
    raw["mediaConfig"]["audio"].update(tts={"default": voice, "fallback": voice}, llm={"model": template})
    raw["mediaConfig"]["text"]["llm"] = {"model": template}
    with pytest.raises(CorrectTheInput) as refusal:
        submitted(raw)
    assert {finding.pointer for finding in refusal.value.findings} == {
        "/mediaConfig/audio/llm/model",
        "/mediaConfig/audio/tts/default/voice",
        "/mediaConfig/audio/tts/fallback/voice",
        "/mediaConfig/text/llm/model",
    }
