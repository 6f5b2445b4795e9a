"""The human part of a task: outcomes that follow, outcomes that do not, and time that runs out (F34)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flow_engine.errors import ReloadAndDecide
from flow_engine.runtime.compiled import LONGEST_S
from flow_engine.runtime.events import task_status, transcription_suspended
from flow_engine.vocabulary import HUMAN_OUTCOMES
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation

SKILLS = {"timeout": 60, "agentSkills": ["radiology"]}
"""Whom a supervision asks for: without it nobody is looked for."""


def ward(**routing: JsonObject) -> JsonObject:
    """reception → operator (HUM), supervised (AIS); both lead back."""
    back = {"connectedTasks": ["reception"]}
    tasks = [
        aio_task(connectedTasks=["operator", "supervised"]),
        hum_task("operator", suspendTranscription=True, **back),
        hum_task("supervised", type="AIS", **back),
    ]
    for task in tasks[1:]:
        if task["_id"] in routing:
            task["routingParameters"] = routing[task["_id"]]
    return minimal_version(tasks=tasks)


def talk_in(prompts: FileSystemPrompts, task: str, *outcomes: str, **routing: JsonObject) -> Conversation:
    talk = Conversation(prompts, ward(**routing))
    if task != "reception":
        talk.change(task)
    for outcome in outcomes:
        talk.human(outcome)
    return talk


PATHS = [
    pytest.param("operator", (), "routing", ("connected", "failed"), id="HUM-routing"),
    pytest.param("operator", ("connected",), "connected", ("completed", "failed"), id="HUM-connected"),
    pytest.param("operator", ("connected", "completed"), "completed", (), id="HUM-completed"),
    pytest.param("operator", ("failed",), "failed", (), id="HUM-failed-to-find"),
    pytest.param("operator", ("connected", "failed"), "failed", (), id="HUM-failed-later"),
    pytest.param("supervised", (), "ai", ("taken_over",), id="AIS-ai"),
    pytest.param("supervised", ("taken_over",), "human", ("released",), id="AIS-human"),
    pytest.param("supervised", ("taken_over", "released"), "ai", ("taken_over",), id="AIS-ai-again"),
    pytest.param("reception", (), None, (), id="AIO"),
]
REPEATABLE = {
    "connected": {"connected"},
    "completed": {"completed"},
    "failed": {"failed"},
    "ai": {"released"},
    "human": {"taken_over"},
}
"""Outcomes that have come true already in a sub-state: their sender repeats them."""


class TestOutcomes:
    @pytest.mark.parametrize(("task", "outcomes", "status", "accepted"), PATHS)
    def test_each_part_of_a_task_accepts_its_own(
        self,
        prompts: FileSystemPrompts,
        task: str,
        outcomes: tuple[str, ...],
        status: str | None,
        accepted: tuple[str, ...],
    ) -> None:
        runner = talk_in(prompts, task, *outcomes).runner()
        assert runner.status == status  # F10, F34
        assert runner.flow.chart.accepted_outcomes(runner.session.states) == accepted

    @pytest.mark.parametrize(("task", "outcomes", "status", "accepted"), PATHS)
    @pytest.mark.parametrize("asked", HUMAN_OUTCOMES)
    def test_what_does_not_follow_is_refused_with_what_does(
        self,
        prompts: FileSystemPrompts,
        task: str,
        outcomes: tuple[str, ...],
        status: str | None,
        accepted: tuple[str, ...],
        asked: str,
    ) -> None:
        talk = talk_in(prompts, task, *outcomes)
        if asked in accepted or asked in REPEATABLE.get(status or "", ()):
            talk.human(asked)
            return
        before, kind = talk.session, {"operator": "HUM", "supervised": "AIS"}.get(task, "AIO")
        with pytest.raises(ReloadAndDecide) as raised:
            talk.human(asked)
        assert raised.value.code == "outcome_not_possible"  # F34
        where = f"{kind}, {status}" if status else kind
        assert raised.value.detail == f"{asked!r} does not follow in task {task!r} ({where})"
        assert raised.value.accepted == accepted
        assert raised.value.state["taskStatus"] == status
        assert talk.session == before

    @pytest.mark.parametrize(
        ("task", "outcomes", "last", "reason", "command"),
        [
            ("operator", (), "connected", None, None),
            ("operator", ("connected",), "completed", None, "/human_task_completed"),
            ("operator", ("connected",), "completed", "all well", "/human_task_completed"),
            ("operator", (), "failed", "nobody is there", "/human_task_failed nobody is there"),
            ("operator", (), "failed", None, "/human_task_failed unknown"),
            ("operator", (), "failed", "", "/human_task_failed unknown"),
            ("operator", (), "failed", "two\nlines", "/human_task_failed two lines"),
            ("operator", ("connected",), "failed", "cut off", "/human_task_failed cut off"),
            ("supervised", (), "taken_over", "too hard", None),
            ("supervised", ("taken_over",), "released", None, None),
        ],
    )
    def test_the_model_is_told_how_it_ended(
        self,
        prompts: FileSystemPrompts,
        task: str,
        outcomes: tuple[str, ...],
        last: str,
        reason: str | None,
        command: str | None,
    ) -> None:
        talk = talk_in(prompts, task, *outcomes)
        assert talk.human(last, reason) == command  # F25
        told: JsonObject = {"outcome": last} | ({} if reason is None else {"reason": reason})
        assert talk.told == [("human_task", "call-1", told)]  # F40

    def test_a_repeated_outcome_changes_nothing_and_is_answered_alike(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = talk_in(prompts, "operator")
        first = talk.human("failed", "nobody is there")
        before = talk.session
        assert talk.human("failed", "another reason") == first  # F34
        assert (talk.session, talk.told) == (before, [])


class TestTimeThatRunsOut:
    @pytest.mark.parametrize(
        ("seconds", "status"), [(0, "routing"), (59.9, "routing"), (60, "failed"), (6000, "failed")]
    )
    def test_a_transfer_fails_at_its_deadline_whoever_looks(
        self, prompts: FileSystemPrompts, seconds: float, status: str
    ) -> None:
        talk = talk_in(prompts, "operator")
        runner = talk.runner(NOW + timedelta(seconds=seconds))
        assert runner.status == status  # F34
        assert runner.changed is (status == "failed")
        failed = status == "failed"
        assert runner.session.pending_command == ("/human_task_failed timeout" if failed else None)  # D4
        assert runner.session.task.human_reason == ("timeout" if failed else None)

    def test_it_is_told_once(self, prompts: FileSystemPrompts) -> None:
        talk = talk_in(prompts, "operator")
        talk.now = NOW + timedelta(seconds=61)
        assert talk.step(lambda runner: runner.take_command()) == "/human_task_failed timeout"  # D4
        assert talk.told == [("human_task", "call-1", {"outcome": "failed", "reason": "timeout"})]
        assert talk.step(lambda runner: runner.take_command()) is None
        assert talk.told == []

    @pytest.mark.parametrize("outcomes", [("connected",), ("connected", "completed"), ("failed",)])
    def test_a_transfer_that_found_somebody_does_not_fail_by_time(
        self, prompts: FileSystemPrompts, outcomes: tuple[str, ...]
    ) -> None:
        talk = talk_in(prompts, "operator", *outcomes)
        assert talk.session.task.routing_deadline is None  # F34
        runner = talk.runner(NOW + timedelta(hours=1))
        assert (runner.status, runner.changed) == (outcomes[-1], False)

    def test_a_supervision_that_finds_nobody_goes_on_with_the_ai(self, prompts: FileSystemPrompts) -> None:
        talk = talk_in(prompts, "supervised", supervised=SKILLS)
        assert talk.due == [("routing", "", 60.0)]  # D8
        talk.now = NOW + timedelta(seconds=60)
        assert talk.step(lambda runner: runner.status) == "ai"
        assert talk.told == [("human_task", "call-1", {"outcome": "failed", "reason": "timeout"})]
        assert talk.session.task.routing_deadline is None
        assert talk.session.pending_command is None
        talk.now = NOW + timedelta(seconds=120)
        assert not talk.runner().changed

    def test_a_supervision_that_names_nobody_looks_for_nobody(self, prompts: FileSystemPrompts) -> None:
        talk = talk_in(prompts, "supervised", supervised={"timeout": 60})
        assert (talk.due, talk.session.task.routing_deadline) == ([], None)  # D8
        assert [subtype for subtype, _, _ in talk.told] == ["task_changed"]

    @pytest.mark.parametrize("timeout", [1, 90.5, LONGEST_S])
    def test_the_deadline_is_the_tasks_own(self, prompts: FileSystemPrompts, timeout: float) -> None:
        talk = talk_in(prompts, "operator", operator={"timeout": timeout})
        assert talk.session.task.routing_deadline == NOW + timedelta(seconds=timeout)  # F34
        assert talk.due == [("routing", "", timeout)]


class TestWhoLeads:
    """What events say of a task: an AIS task that a human has taken over counts as HUM (F40)."""

    @pytest.mark.parametrize(
        ("task", "outcomes", "status"),
        [
            ("reception", (), "AIO"),
            ("supervised", (), "AIS"),
            ("supervised", ("taken_over",), "HUM"),
            ("supervised", ("taken_over", "released"), "AIS"),
            ("operator", (), "HUM"),
            ("operator", ("connected",), "HUM"),
            ("operator", ("failed",), "HUM"),
        ],
    )
    def test_the_status_of_a_task_is_the_type_of_who_leads(
        self, prompts: FileSystemPrompts, task: str, outcomes: tuple[str, ...], status: str
    ) -> None:
        talk = talk_in(prompts, task, *outcomes)
        assert task_status(talk.flow, talk.session) == status  # F40

    @pytest.mark.parametrize(
        ("task", "outcomes", "suspended"),
        [
            ("reception", (), False),
            ("operator", (), False),
            ("operator", ("connected",), True),
            ("operator", ("connected", "completed"), False),
            ("operator", ("failed",), False),
            ("supervised", ("taken_over",), False),
        ],
    )
    def test_dialogue_is_suspended_while_a_human_is_connected(
        self, prompts: FileSystemPrompts, task: str, outcomes: tuple[str, ...], suspended: bool
    ) -> None:
        talk = talk_in(prompts, task, *outcomes)
        assert transcription_suspended(talk.flow, talk.session) is suspended  # F40

    @pytest.mark.parametrize(("task", "suspended"), [("operator", True), ("reception", False)])
    def test_after_the_contacts_end_what_still_comes_is_from_before(
        self, prompts: FileSystemPrompts, task: str, suspended: bool
    ) -> None:
        talk = talk_in(prompts, task)
        talk.end(closes=True)
        assert transcription_suspended(talk.flow, talk.session) is suspended  # F40
