"""A flow test of a recorded conversation: the same steps, and what they came to then.

The names are those of the version that the test is for, so that it can be read by it. What that version
lacks is left out: a variable's value is, and a task is asked for by its old name, which is refused.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import cast

import orjson
import yaml

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.json_values import as_object
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.platform import Platform
from flow_engine.testing.format import TOOL
from flow_engine.use_cases.recording_format import RecordedEntry, Recording
from flow_engine.use_cases.replaying import Compiled, Moment, Side, adapted
from flow_engine.values import utc_text
from flow_engine.vocabulary import TEXT_REFUSALS

LINE_WIDTH = 100

_Step = Mapping[str, object]


def test_of(recording: Recording, flow: CompiledFlow, platform: Platform) -> str:
    """A file of one scenario, as YAML. Raises CorrectTheInput `recording_incomplete` for one whose beginning
    is not kept, and as `Compiled.by_name`."""
    if recording.start is not None:
        message = "the beginning of the conversation is not kept, and a flow test starts there"
        raise CorrectTheInput("recording_incomplete", message, [Finding("/start", "not_complete", message)])
    writer = _Writer(recording, flow, platform)
    asyncio.run(writer.write())
    scenario: dict[str, object] = {
        "name": f"As recorded: {recording.conversation_id}"[:512],
        "start": utc_text(recording.entries[0].at),
        "tenant": recording.entries[0].input.get("tenant") or {},
        "steps": writer.steps,
    }
    plain = orjson.loads(orjson.dumps({"scenarios": [scenario]}))  # no anchors for what is there twice
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=LINE_WIDTH)


class _Writer:
    def __init__(self, recording: Recording, flow: CompiledFlow, platform: Platform) -> None:
        self.recording = recording
        self.flow = flow
        self.side = Side(recording, Compiled(), platform)
        self.steps: list[_Step] = []
        self._at: datetime = recording.entries[0].at
        self._said: RecordedEntry | None = None

    async def write(self) -> None:
        entries = self.recording.entries
        moment = await self.side.now()
        for entry, following in zip(entries, (*entries[1:], None), strict=True):
            before, moment = moment, await self.side.take(entry, entry.input)
            steps = list(self._steps_of(entry, before, following))
            if steps:
                # Less than a second is not told: it adds up.
                passed = round((entry.at - self._at).total_seconds(), 3)
                if passed >= 1:
                    self.steps.append({"wait": passed})
                    self._at = entry.at
                self.steps += steps
                self._expect(entry, before, moment)
        if moment.runner is None:
            return
        known: dict[str, object] = {}
        for spec in moment.runner.flow.variables:
            stored, here = moment.runner.memory.get(spec.id), self.flow.variables.resolve(spec.id)
            if stored is not None and stored.value is not None and here is not None:
                known[here.name] = stored.value
        if known:
            self.steps.append({"expect": {"memory": known}})

    def _steps_of(
        self, entry: RecordedEntry, before: Moment, following: RecordedEntry | None
    ) -> Iterator[_Step]:
        asked = adapted(entry, before.flow, self.flow, set())
        if asked is None:
            return
        match entry.op:
            case "handle-new-contact":
                names = {"contactId": "id", "channel": "channel", "language": "language", "contact": "data"}
                yield {"contact": {to: asked[name] for name, to in names.items() if asked.get(name)}}
            case "change-task":
                task = self.flow.tasks.get(str(asked["task"]))
                yield {"change_task": asked["task"] if task is None else task.name}
            case "memory":
                yield {"memory": [*map(self._write, cast("Sequence[object]", asked["writes"]))]}
            case "handle-utterance":
                body = asked["body"]
                text = body if isinstance(body, str) else orjson.dumps(body).decode()
                said = {"body": text, "language": asked.get("language")}
                next_read = following.input if following and following.op == "extraction" else None
                if next_read is not None and next_read.get("messageId") == entry.input.get("messageId"):
                    self._said = following
                    yield {"say": _given({**said, "model": self._model(following)})}
                else:
                    yield {"utterance": _given({**said, "src": asked["src"]})}
            case "extraction" if entry is not self._said:
                yield {"read": self._model(entry)}
            case "handle-human-task":
                yield {
                    "human_task": _given({name: asked.get(name) for name in ("outcome", "reason", "text")})
                }
            case "handle-end-contact":
                ended = {"reason": asked.get("reason"), "closes": _verdict(entry, before)}
                yield {"end_contact": _given(ended)}
            case _:
                return

    def _write(self, sent: object) -> _Step:
        write = as_object(sent)
        spec = self.flow.variables.resolve(str(write["varId"]))
        author, described = write.get("updatedBy"), write.get("descriptionForLLM")
        return _given(
            {
                "varId": write["varId"] if spec is None else spec.name,
                "updatedBy": None if author == TOOL else author,
                "descriptionForLLM": described or None,
            }
        ) | {"value": write["value"]}

    def _model(self, entry: RecordedEntry | None) -> _Step | None:
        """What the model found, the rules find their own again."""
        heard = None if entry is None else entry.heard
        if heard is None:
            return None
        found = {
            self.flow.variables.name_of(id): found
            for id, found in heard.values.items()
            if found.source == "model" or id in self.flow.sensitive  # which is not in the text any more
        }
        values = {name: each.value for name, each in found.items()}
        sure = {name: each.confidence for name, each in found.items() if each.confidence is not None}
        told: dict[str, object] = {"values": values or None, "confidence": sure or None}
        told |= {"checkpoints": heard.checkpoints or None, "fails": True if heard.failed else None}
        return _given(told) or None

    def _expect(self, entry: RecordedEntry, before: Moment, moment: Moment) -> None:
        if moment.runner is None:
            return
        task = self.flow.counterpart(moment.runner.task)
        expected: dict[str, object] = {}
        if moment.code is not None:
            is_refusal = entry.op == "change-task" or moment.code in TEXT_REFUSALS
            expected["refused" if is_refusal else "error"] = moment.code
        stays = entry.op in ("memory", "handle-utterance", "extraction") and before.task is moment.task
        if task is not None and not stays:
            expected["task"] = task.name
        if entry.op == "handle-human-task":
            expected["status"] = moment.runner.status
        if entry.op == "handle-end-contact":
            expected["conversation"] = moment.runner.session.states.phase
        if expected:
            self.steps.append({"expect": expected})


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _verdict(entry: RecordedEntry, before: Moment) -> bool | str | None:
    """What the closure handler answered; None where nobody asked it."""
    runner, outcome = before.runner, entry.outcome
    if runner is None or not runner.closure.multi_contact or runner.closure.custom_handler is None:
        return None
    deadline = runner.session.deadline  # which passed by the time of the entry, not of the one before
    expired = deadline is not None and entry.at >= deadline
    if expired or entry.input.get("contactId") != runner.session.active_contact_id:
        return None
    return "fails" if outcome.get("handler") is not None else outcome.get("closes") is True
