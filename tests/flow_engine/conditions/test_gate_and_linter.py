"""Gate, linter and a second engine agree: tasks, connections, tools, checkpoints, what leads on by itself."""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from flow_engine.conditions.evaluation import Facts
from flow_engine.documents import parse_version
from flow_engine.linting import lint
from flow_engine.listening.effects import mining_effects
from flow_engine.listening.mining import MiningResult
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.conditions.flow_reference import (
    CHANNEL,
    CONTACT,
    TENANT,
    Reference,
    document_of,
    documents,
    steps,
)
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, aio_task
from tests.flow_engine.listening.test_reading import request_of, turn
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation, entries

Findings = Set[tuple[str, str]]


def findings_of(raw: JsonObject) -> Findings:
    return {(finding.pointer, finding.code) for finding in lint(parse_version(raw), ENVIRONMENT)}


class Walk:
    """The engine and the reference, side by side through the same steps. `findings` are the linter's."""

    def __init__(
        self, prompts: FileSystemPrompts, raw: JsonObject, reference: type[Reference], findings: Findings
    ) -> None:
        self.raw, self.findings = raw, findings
        self.places = {each["_id"]: number for number, each in enumerate(raw["tasks"])}
        self.engine = Conversation(
            prompts, raw, channel=CHANNEL, tenant=TENANT, data=CONTACT, language="it-IT"
        )
        self.reference = reference(raw, NOW)
        self.turns = 0
        self.compare()

    def take(self, kind: str, what: Any) -> None:
        engine, reference = self.engine, self.reference
        match kind:
            case "write":
                written = entries(what)
                engine.step(lambda runner: runner.take_values({}, written))
                engine.load(tools={**engine.loaded.tools, **written})
                reference.written(what, engine.now)
            case "change":
                done = engine.step(lambda runner: runner.change_task(what))
                assert done == reference.changed(what, engine.now)
            case "turn":
                self.turns += 1
                said = turn(self.turns, "user", "well")
                engine.load(turns=(said,), last_user_turn=said.name)
                request = request_of(engine)
                effects = mining_effects(engine.runner(), request, MiningResult(), engine.now)
                engine.step(lambda runner: runner.take_values({}, {}))
                engine.load(mining=effects.state)
                reference.heard(engine.now, self.raw["aiHelpers"][0]["stalledAfter"])
            case _:
                engine.now += timedelta(seconds=what)
        self.compare()

    def compare(self) -> None:
        runner, reference = self.engine.runner(), self.reference
        assert runner.task.id == reference.task
        facts, source = reference.facts(self.engine.now), reference.task
        opened = [target for target in reference.ways(source) if reference.opens(source, target, facts)]
        others = [target for target in runner.task.connected if target != source]
        assert [target for target in others if runner.guard.allows(target)] == opened
        assert [task.id for task in runner.suggested] == reference.suggested(facts)
        data = self.engine.agent_data()
        offered = [each["toolName"] for server in data["mcpTools"] for each in server["tools"]]
        tools = reference.tools(facts)
        assert offered == tools
        points = [point.id for point in runner.task.document.enabled_checkpoints if runner.applies(point)]
        assert points == reference.checkpoints(facts)
        for target in reference.ways(source):
            self.compare_connection(source, target, facts, opened=target in opened)
        at = f"/tasks/{self.places[source]}"
        for selection in reference.tasks[source].get("mcpToolSelection", []):
            for number, tool in enumerate(selection["selectedTools"]):
                place = f"{at}/mcpToolSelection/0/selectedTools/{number}/when"
                self.verdict(place, holds=tool["toolName"] in tools)
        for point in reference.tasks[source]["enabledCheckpoints"]:
            place = f"{at}/enabledCheckpoints/0/when" if "when" in point else "/checkpoints/0/when"
            self.verdict(place, holds=bool(points))

    def compare_connection(self, source: str, target: str, facts: Facts, *, opened: bool) -> None:
        reference = self.reference
        on_the_way = f"/tasks/{self.places[source]}/connectionConditions/{target}/when"
        own = f"/tasks/{self.places[target]}/entryCondition/when"
        if reference.asked(target, facts):
            for place, when in zip((on_the_way, own), reference.conditions(source, target), strict=True):
                if when is not None:
                    self.verdict(place, holds=reference.holds(when, facts))
        if opened:
            never_open = {place for place, code in self.findings if code == "connection_never_open"}
            connected = reference.tasks[source]["connectedTasks"]
            of_list = f"/connectedTasks/{connected.index(target)}" if target in connected else "none"
            assert not never_open & {on_the_way, f"/tasks/{self.places[source]}{of_list}"}

    def verdict(self, place: str, *, holds: bool) -> None:
        wrong = "condition_never_true" if holds else "condition_always_true"
        assert (place, wrong) not in self.findings, (place, wrong)


# Without making a failing story shorter, which takes minutes.
bounded = settings(
    max_examples=60,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


@bounded
@given(raw=documents, story=steps)
def test_gate_linter_and_reference_agree(
    prompts: FileSystemPrompts, raw: JsonObject, story: list[tuple[str, Any]]
) -> None:
    walk = Walk(prompts, raw, Reference, findings_of(raw))
    for kind, what in story:
        walk.take(kind, what)


# --- a wrong reading is noticed -----------------------------------------------------------------


class UnknownHolds(Reference):
    def holds(self, when: str | None, facts: Facts) -> bool:
        return super().holds(when, facts) or not super().holds(f"not ({when})", facts)


class OwnConditionForgotten(Reference):
    def conditions(self, source: str, target: str) -> tuple[str | None, str | None]:
        return super().conditions(source, target)[0], None


class ToolsAlwaysThere(Reference):
    def tools(self, facts: Facts) -> list[str]:
        return ["look", "book"]


class CheckpointsByTheVersionAlone(Reference):
    def checkpoints(self, facts: Facts) -> list[str]:
        (point,) = self.raw["checkpoints"]
        return [point["_id"]] if self.holds(point.get("when"), facts) else []


class MovesByWhatHeldBefore(Reference):
    def advance(self, now: Any, before: Facts | None) -> None:
        super().advance(now, None)


class OnlySuggests(Reference):
    def advance(self, now: Any, before: Facts | None) -> None:
        return


class StallsOneTurnLater(Reference):
    def heard(self, now: Any, stalled_after: int) -> None:
        super().heard(now, stalled_after + 1)


WRONG = (UnknownHolds, OwnConditionForgotten, ToolsAlwaysThere, CheckpointsByTheVersionAlone, OnlySuggests)
RARE = (MovesByWhatHeldBefore, StallsOneTurnLater)
"""Few stories show these: one that does is told."""


def noticed(prompts: FileSystemPrompts, reference: type[Reference], accused: str | None = None) -> bool:
    """Whether some example tells the reference, or a linter that accuses every condition, from the engine."""

    @settings(bounded, max_examples=200)
    @given(raw=documents, story=steps)
    def compared(raw: JsonObject, story: list[tuple[str, Any]]) -> None:
        conditions = parse_version(raw).conditions()
        findings = {(each.pointer, accused) for each in conditions} if accused is not None else set()
        walk = Walk(prompts, raw, reference, findings)
        for kind, what in story:
            walk.take(kind, what)

    try:
        compared()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("reference", WRONG)
def test_a_planted_mistake_of_the_reference_is_found(
    prompts: FileSystemPrompts, reference: type[Reference]
) -> None:
    assert noticed(prompts, reference)


@pytest.mark.parametrize("reference", RARE)
def test_a_planted_mistake_that_few_stories_show_is_found(
    prompts: FileSystemPrompts, reference: type[Reference]
) -> None:
    need = [{"variableId": "name", "required": True}]
    first = aio_task("menu", connectedTasks=["a task"])
    named = aio_task("a task", connectedTasks=["third"], transitionParameters=need)
    named["connectionConditions"] = {"third": {"when": "has(vars.name)", "advance": "auto"}}
    raw = document_of([first, named, aio_task("third")], stalled_after=1)
    story = [("write", {"name": "a"}), ("turn", None), ("change", "a task")]

    def walked(reading: type[Reference]) -> None:
        walk = Walk(prompts, raw, reading, findings_of(raw))
        for kind, what in story:
            walk.take(kind, what)

    walked(Reference)
    with pytest.raises(AssertionError):
        walked(reference)


@pytest.mark.parametrize("accused", ["condition_never_true", "condition_always_true"])
def test_a_planted_mistake_of_the_linter_is_found(prompts: FileSystemPrompts, accused: str) -> None:
    assert noticed(prompts, Reference, accused)
