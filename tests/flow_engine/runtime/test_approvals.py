"""Texts of the AI that wait for a person in AIS tasks with `approval`: what moves them, and what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.errors import ReloadAndDecide
from flow_engine.runtime.agent_data import get_refusal, get_text_refusal
from flow_engine.runtime.events import task_status
from flow_engine.runtime.human_part import HumanReport, text_fault
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import decode_session, encode_session
from flow_engine.vocabulary import DECISIONS, HUMAN_OUTCOMES
from system_prompts.loader import FileSystemPrompts, load_system_prompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version, variables
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation, entries, read

KEPT = {
    "multiContact": True,
    "conversationTimeLimit": 86400 * 30,
    "customHandler": "https://hooks.example.com/close",
}
DRAFT, BETTER = "We refund 20 €.", "We refund 25 €."


def desk(**changes: Any) -> JsonObject:
    """reception → answers (AIS with approval) → refund, which needs a variable and is entered by itself."""
    answers = hum_task(
        "answers",
        type="AIS",
        approval=True,
        connectedTasks=["reception", "refund"],
        connectionConditions={"refund": {"advance": "auto"}},
        closureConfig=KEPT,
    )
    tasks = [
        aio_task(connectedTasks=["answers"]),
        answers | {"routingParameters": {"timeout": 60}} | changes,
        aio_task("refund", transitionParameters=[{"variableId": "var_string", "required": True}]),
    ]
    version = minimal_version(tasks=tasks, variables=variables())
    return {**version, "closureConfig": KEPT, "systemPromptsLanguage": "en-US"}


def answering(prompts: FileSystemPrompts, *outcomes: str, **changes: Any) -> Conversation:
    talk = Conversation(prompts, desk(**changes), channel="chat")
    talk.change("answers")
    for outcome in outcomes:
        talk.human(outcome, **TEXTS.get(outcome, {}))
    return talk


TEXTS: Mapping[str, Mapping[str, str]] = {"waiting": {"text": DRAFT}, "edited": {"text": BETTER}}


def approval(talk: Conversation) -> Any:
    return talk.agent_data().get("approval")


def refused(talk: Conversation, outcome: str, **details: Any) -> JsonObject:
    """What a report about a text is refused with; nothing is changed by it."""

    def report(runner: ConversationalFlowRunner) -> JsonObject:
        assert runner.apply_human_outcome(HumanReport(outcome, **details)) is None  # type: ignore[arg-type]
        assert not runner.changed
        return read(get_text_refusal(runner))

    return talk.step(report)


class TestOfOneText:
    def test_a_text_waits_and_the_agent_is_told_until_when(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts)
        assert talk.agent_data()["approvalRequired"] is True
        assert talk.human("waiting", text=DRAFT) is None
        assert approval(talk) == {
            "approvalId": talk.session.revision,
            "taskId": "answers",
            "status": "waiting",
            "text": DRAFT,
            "draft": DRAFT,
            "reason": None,
            "askedAt": "2026-01-15T23:30:00Z",
            "until": "2026-01-15T23:35:00Z",
            "decidedAt": None,
        }
        told = {"outcome": "waiting", "approvalId": talk.session.revision, "text": DRAFT, "timeout": 300}
        assert talk.told == [("human_task", "call-1", told)]
        assert talk.due == [("routing", "", 300.0)]
        assert talk.agent_data()["taskStatus"] == "waiting"
        assert task_status(talk.flow, talk.session) == "AIS"

    @pytest.mark.parametrize(
        ("outcome", "details", "text", "command"),
        [
            ("approved", {}, DRAFT, "/human_task_approved"),
            ("approved", {"reason": "fine", "text": DRAFT}, DRAFT, "/human_task_approved fine"),
            ("edited", {"text": BETTER}, BETTER, "/human_task_edited"),
            ("rejected", {"reason": "too\nmuch"}, DRAFT, "/human_task_rejected too much"),
            ("rejected", {}, DRAFT, "/human_task_rejected"),
            ("timeout", {}, DRAFT, "/human_task_timeout"),
        ],
    )
    def test_a_decision_is_told_with_the_text_that_holds(
        self, prompts: FileSystemPrompts, outcome: str, details: Any, text: str, command: str
    ) -> None:
        talk = answering(prompts, "waiting")
        assert talk.human(outcome, **details) == command
        told = {"outcome": outcome, "approvalId": approval(talk)["approvalId"], "text": text}
        told |= {"draft": DRAFT} if outcome == "edited" else {}
        told |= {"reason": details["reason"]} if "reason" in details else {}
        assert talk.told == [("human_task", "call-1", told)]
        found = approval(talk)
        assert (found["status"], found["text"], found["draft"]) == (outcome, text, DRAFT)
        assert (found["reason"], found["decidedAt"]) == (details.get("reason"), "2026-01-15T23:30:00Z")
        assert talk.agent_data()["taskStatus"] == outcome
        assert talk.step(lambda runner: runner.take_command()) == command
        assert talk.step(lambda runner: runner.take_command()) is None

    @pytest.mark.parametrize(("after_s", "status"), [(0, "waiting"), (299.9, "waiting"), (300, "timeout")])
    def test_nobody_decides_in_time(self, prompts: FileSystemPrompts, after_s: float, status: str) -> None:
        talk = answering(prompts, "waiting")
        talk.now += timedelta(seconds=after_s)
        assert talk.step(lambda runner: runner.status) == status
        if status == "timeout":
            told = {"outcome": "timeout", "approvalId": approval(talk)["approvalId"], "text": DRAFT}
            assert talk.told == [("human_task", "call-1", told)]
            assert talk.session.pending_command == "/human_task_timeout"

    @pytest.mark.parametrize("timeout", [1, 0.5, 86_400])
    def test_the_time_is_the_tasks_own(self, prompts: FileSystemPrompts, timeout: float) -> None:
        talk = answering(prompts, "waiting", approvalTimeout=timeout)
        assert talk.due == [("routing", "", timeout)]
        assert talk.session.task.routing_deadline == NOW + timedelta(seconds=timeout)

    @pytest.mark.parametrize("before", [(), ("approved",), ("edited",), ("rejected",), ("timeout",)])
    def test_another_text_waits_after_each_decision(
        self, prompts: FileSystemPrompts, before: tuple[str, ...]
    ) -> None:
        talk = answering(prompts, *(("waiting", *before) if before else ()))
        assert talk.human("waiting", text="Another one.") is None
        assert (approval(talk)["status"], approval(talk)["text"]) == ("waiting", "Another one.")
        assert talk.session.pending_command is None  # what was decided on the one before is not told any more
        assert talk.human("approved") == "/human_task_approved"


class TestWhatIsRefused:
    def test_one_text_waits_at_a_time(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting")
        reply = refused(talk, "waiting", text="Something else.")
        assert (reply["result"], reply["code"]) == (False, "already_waiting")
        assert reply["reason"] == "another text waits for a person's decision until 2026-01-15T23:35:00Z"
        assert reply["command"] == f"/error {reply['reason']}"
        assert reply["accepted"] == [*DECISIONS, "taken_over"]
        assert (reply["taskName"], reply["taskStatus"]) == ("answers", "waiting")
        assert (reply["approval"], reply["revision"]) == (approval(talk), talk.session.revision)

    def test_the_same_text_again_is_a_repetition(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting")
        before = talk.session
        assert talk.human("waiting", text=DRAFT) is None
        assert (talk.session, talk.told) == (before, [])

    @pytest.mark.parametrize("first", DECISIONS)
    @pytest.mark.parametrize("second", DECISIONS)
    def test_a_text_gets_one_decision(self, prompts: FileSystemPrompts, first: str, second: str) -> None:
        talk = answering(prompts, "waiting", first)
        before = talk.session
        if first == second:  # a repetition
            command = talk.human(second, **TEXTS.get(second, {}))
            assert command == before.pending_command
        else:
            reply = refused(talk, second, **TEXTS.get(second, {}))
            assert reply["code"] == "already_decided"
            assert reply["approval"]["status"] == first
            assert reply["accepted"] == ["waiting", "taken_over"]
        assert talk.session == before

    def test_another_edit_is_another_decision(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting", "edited")
        assert refused(talk, "edited", text="We refund 30 €.")["code"] == "already_decided"

    def test_a_late_decision_finds_the_time_over(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting")
        talk.now += timedelta(minutes=6)

        def late(runner: ConversationalFlowRunner) -> JsonObject:
            assert runner.apply_human_outcome(HumanReport("approved")) is None
            return read(get_text_refusal(runner))

        reply = talk.step(late)
        assert (reply["code"], reply["approval"]["status"]) == ("already_decided", "timeout")
        assert [body["outcome"] for _, _, body in talk.told] == ["timeout"]

    @pytest.mark.parametrize(
        ("outcome", "details"),
        [
            ("approved", {"text": BETTER}),
            ("rejected", {"text": BETTER}),
            ("approved", {"approval_id": 1}),
            ("edited", {"text": BETTER, "approval_id": 99}),
        ],
    )
    def test_a_decision_on_another_text(self, prompts: FileSystemPrompts, outcome: str, details: Any) -> None:
        talk = answering(prompts, "waiting")
        assert refused(talk, outcome, **details)["code"] == "another_text"
        assert approval(talk)["status"] == "waiting"

    def test_a_repeated_decision_never_reaches_the_next_text(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting")
        first = approval(talk)["approvalId"]
        talk.human("approved", approval_id=first)
        talk.human("waiting", text="Another one.")
        assert refused(talk, "approved", approval_id=first)["code"] == "another_text"

    @pytest.mark.parametrize("outcome", DECISIONS)
    def test_without_a_text_there_is_nothing_to_decide(
        self, prompts: FileSystemPrompts, outcome: str
    ) -> None:
        talk = answering(prompts)
        with pytest.raises(ReloadAndDecide) as raised:
            talk.human(outcome, **TEXTS.get(outcome, {}))
        assert raised.value.code == "outcome_not_possible"  # F34
        assert raised.value.accepted == ("waiting", "taken_over")

    @pytest.mark.parametrize("changes", [{"approval": False}, {"type": "HUM"}])
    def test_only_a_supervised_task_with_approval_takes_texts(
        self, prompts: FileSystemPrompts, changes: Any
    ) -> None:
        talk = answering(prompts, **changes)
        assert "approvalRequired" not in talk.agent_data()
        with pytest.raises(ReloadAndDecide):
            talk.human("waiting", text=DRAFT)

    @pytest.mark.parametrize(
        ("outcome", "text", "fault"),
        [
            ("waiting", None, True),
            ("waiting", " \n", True),
            ("edited", None, True),
            ("edited", BETTER, False),
            ("approved", None, False),
            ("approved", DRAFT, False),
            ("connected", DRAFT, True),
            ("taken_over", None, False),
            (None, "x", False),
        ],
    )
    def test_where_a_text_may_stand(self, outcome: Any, text: str | None, fault: bool) -> None:
        assert (text_fault(outcome, text) is not None) is fault


class TestWhileItWaits:
    @pytest.mark.parametrize("task", ["reception", "refund", "back"])
    def test_the_task_is_not_left(self, prompts: FileSystemPrompts, task: str) -> None:
        talk = answering(prompts, "waiting")

        def change(runner: ConversationalFlowRunner) -> JsonObject:
            assert not runner.change_task(task)
            return read(get_refusal(runner))

        reply = talk.step(change)
        assert reply["code"] == "waiting_for_approval"  # F12
        assert (
            reply["reason"] == "a text waits for a person's decision: until then task 'answers' is not left"
        )
        assert talk.session.task.task_id == "answers"

    @pytest.mark.parametrize(
        ("task", "code"),
        [("nowhere", "task_unknown"), ("answers", "already_in_task"), ("refund", "task_not_connected")],
    )
    def test_what_could_never_be_entered_is_refused_as_ever(
        self, prompts: FileSystemPrompts, task: str, code: str
    ) -> None:
        talk = answering(prompts, "waiting", connectedTasks=["reception"], connectionConditions={})

        def change(runner: ConversationalFlowRunner) -> JsonObject:
            assert not runner.change_task(task)
            return read(get_refusal(runner))

        assert talk.step(change)["code"] == code

    @pytest.mark.parametrize("decision", DECISIONS)
    def test_what_comes_to_hold_leads_on_after_the_decision(
        self, prompts: FileSystemPrompts, decision: str
    ) -> None:
        talk = answering(prompts, "waiting")
        talk.step(lambda runner: runner.take_values({}, entries({"var_string": "now"})))
        talk.load(tools=entries({"var_string": "now"}))
        assert talk.session.task.task_id == "answers"
        assert talk.agent_data()["reachableTasks"] != []
        talk.human(decision, **TEXTS.get(decision, {}))
        assert talk.session.task.task_id == "refund"
        assert [subtype for subtype, _, _ in talk.told] == ["human_task", "task_changed"]
        assert (approval(talk)["status"], approval(talk)["taskId"]) == (decision, "answers")
        assert talk.session.pending_command == f"/human_task_{decision}"

    def test_nothing_is_suggested(self, prompts: FileSystemPrompts) -> None:
        suggesting = {"refund": {"advance": "suggest"}}
        talk = answering(prompts, connectionConditions=suggesting)
        talk.load(tools=entries({"var_string": "now"}))
        assert [task.id for task in talk.runner().suggested] == ["refund"]
        talk.human("waiting", text=DRAFT)
        assert talk.runner().suggested == ()

    def test_a_human_who_takes_over_withdraws_it(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting", "taken_over")
        assert [body["outcome"] for _, _, body in talk.told] == ["withdrawn", "taken_over"]
        found = approval(talk)
        assert (found["status"], found["reason"]) == ("withdrawn", "taken_over")
        assert refused(talk, "approved")["code"] == "already_decided"
        assert task_status(talk.flow, talk.session) == "HUM"
        talk.human("released")
        assert talk.agent_data()["taskStatus"] == "ai"
        assert talk.runner(NOW + timedelta(hours=1)).changed is False
        talk.human("waiting", text="Another one.")
        assert approval(talk)["status"] == "waiting"

    @pytest.mark.parametrize("closes", [True, False])
    def test_the_end_of_the_contact_withdraws_it(self, prompts: FileSystemPrompts, closes: bool) -> None:
        talk = answering(prompts, "waiting")
        talk.end(closes=closes)
        subtypes = [(subtype, body.get("outcome"), body.get("reason")) for subtype, _, body in talk.told]
        assert subtypes[:2] == [("human_task", "withdrawn", "contact_ended"), ("contact_ended", None, None)]
        assert not talk.runner(NOW + timedelta(hours=1)).changed

    def test_a_contact_that_comes_instead_begins_without_it(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting")
        talk.contact("call-2", "chat")
        assert talk.told[0] == (
            "human_task",
            "call-1",
            {
                "outcome": "withdrawn",
                "reason": "contact_superseded",
                "approvalId": talk.session.revision - 1,
                "text": DRAFT,
            },
        )
        assert talk.session.approval is None
        assert talk.agent_data()["taskStatus"] == "ai"  # F10
        talk.human("waiting", text=DRAFT)
        assert approval(talk)["status"] == "waiting"

    def test_a_supervisor_who_is_looked_for_is_not_missed_while_a_text_waits(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = answering(prompts, routingParameters={"timeout": 60, "agentSkills": ["refunds"]})
        assert ("routing", "", 60.0) in talk.due  # D8
        talk.human("waiting", text=DRAFT)
        assert not talk.runner(NOW + timedelta(seconds=61)).changed
        talk.human("approved")
        assert not talk.runner(NOW + timedelta(hours=1)).changed


class TestWhatTheModelReads:
    @pytest.mark.parametrize(
        ("outcomes", "words"),
        [
            ((), "<approval_needed en-US>"),
            (("waiting",), f"<approval_waiting en-US> «{DRAFT}» 23:35"),
            (("waiting", "approved"), f"<approval_approved en-US> «{DRAFT}»"),
            (("waiting", "edited"), f"<approval_edited en-US> «{BETTER}»"),
            (("waiting", "timeout"), f"<approval_timeout en-US> «{DRAFT}»"),
            (("waiting", "taken_over"), "<human_in_control en-US>"),
        ],
    )
    def test_the_prompt_tells_what_waits_or_was_decided(
        self, prompts: FileSystemPrompts, outcomes: tuple[str, ...], words: str
    ) -> None:
        talk = answering(prompts, *outcomes)
        prompt = talk.prompt()
        assert words in prompt.volatile
        assert "<transfer_approval en-US>" in prompt.prefix
        assert prompt.prefix_hash == answering(prompts).prompt().prefix_hash  # F24

    def test_a_rejection_is_told_with_its_reason(self, prompts: FileSystemPrompts) -> None:
        talk = answering(prompts, "waiting")
        talk.human("rejected", "We promise no sums.")
        told = f"<approval_rejected en-US> «We promise no sums.» «{DRAFT}»"
        assert told in talk.prompt().volatile

    @pytest.mark.parametrize("language", ["en-US", "it-IT", "es-ES"])
    @pytest.mark.parametrize("outcome", DECISIONS)
    def test_in_every_language(self, language: str, outcome: str) -> None:
        raw = {**desk(), "systemPromptsLanguage": language}
        talk = Conversation(load_system_prompts(), raw, channel="chat")
        talk.change("answers")
        talk.human("waiting", text=DRAFT)
        assert f"«{DRAFT}»" in talk.prompt().volatile
        talk.human(outcome, **TEXTS.get(outcome, {}))
        assert "«We refund" in talk.prompt().volatile


# --- whatever people do, in any order ---------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(HUMAN_OUTCOMES), st.sampled_from(("a", "b")), st.none() | st.integers(1, 6)
        ),
        st.tuples(st.just("pass"), st.sampled_from((1.0, 299.0, 301.0))),
        st.tuples(st.just("change"), st.sampled_from(("reception", "answers", "refund", "back"))),
        st.tuples(st.just("know")),
        st.tuples(st.just("end")),
        st.tuples(st.just("come")),
    ),
    max_size=14,
)


def walked(talk: Conversation, steps: Sequence[Any]) -> list[JsonObject]:
    """The events about texts, of all steps that were taken."""
    told: list[JsonObject] = []
    for number, (name, *details) in enumerate(steps):
        talk.told = []
        try:
            match name:
                case "pass":
                    talk.now += timedelta(seconds=details[0])
                    talk.step(lambda runner: runner.status)
                case "change" if talk.session.active_contact_id is not None:
                    talk.step(lambda runner, task=details[0]: runner.change_task(task))
                case "know":
                    talk.step(lambda runner: runner.take_values({}, entries({"var_string": "x"})))
                    talk.load(tools=entries({"var_string": "x"}))
                case "end":
                    if talk.session.active_contact_id is not None:
                        talk.end()
                case "come":
                    talk.contact(f"call-{number + 2}", "chat")
                case _ if name in HUMAN_OUTCOMES and talk.session.active_contact_id is not None:
                    text, number_of = details
                    talk.human(name, text=text, approval_id=number_of)
        except ReloadAndDecide:
            talk.told = []
        told += [body for subtype, _, body in talk.told if subtype == "human_task" and "approvalId" in body]
        stored = decode_session(encode_session(talk.session))
        assert stored == talk.session
        talk.flow.chart.check(talk.session.states)
        waits = talk.session.approval is not None and talk.session.approval.status == "waiting"
        assert waits == talk.runner().held
    return told


@given(steps=STEPS)
@settings(deadline=None, max_examples=150)
def test_any_order_of_events_gives_each_text_one_decision_and_leaves_a_way_on(
    prompts: FileSystemPrompts, steps: Sequence[Any]
) -> None:
    talk = answering(prompts)
    told = walked(talk, steps)
    asked = [body["approvalId"] for body in told if body["outcome"] == "waiting"]
    decided = [body["approvalId"] for body in told if body["outcome"] != "waiting"]
    assert len(set(asked)) == len(asked)
    assert len(set(decided)) == len(decided)
    assert set(decided) <= set(asked)
    open_texts = set(asked) - set(decided)
    assert open_texts == ({talk.session.approval.id} if talk.runner().held else set())  # type: ignore[union-attr]
    # From wherever this has led a text can be approved: nothing is stuck.
    if talk.session.active_contact_id is None:
        talk.contact("call-last", "chat")
    talk.now += timedelta(days=1)
    talk.step(lambda runner: runner.status)
    if talk.session.task.task_id == "refund":
        return  # from which nothing leads
    if talk.session.task.task_id != "answers":
        talk.change("answers")
    if talk.runner().status == "human":
        talk.human("released")
    talk.human("waiting", text="The last one.")
    assert talk.human("approved") == "/human_task_approved"
