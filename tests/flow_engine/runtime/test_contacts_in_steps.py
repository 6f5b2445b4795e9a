"""A conversation's contacts, step by step: begun, resumed, superseded, ended, closed (F10, F20, F28, F30)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from flow_engine.errors import CallTheOperator, CorrectTheInput, LookElsewhere, ReloadAndDecide
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.conversation_state import LATE_UTTERANCES_S
from flow_engine.runtime.mining_state import Conclusion, MiningState
from flow_engine.runtime.runner import CONTACTS_KEPT
from flow_engine.runtime.session import Contact
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.task_types import BETWEEN_CONTACTS, CLOSED
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation

HANDLER = "https://hooks.example.com/close"


def closure(limit_s: float | None = 7200) -> JsonObject:
    if limit_s is None:
        return {"multiContact": False}
    return {"multiContact": True, "conversationTimeLimit": limit_s, "customHandler": HANDLER}


def office(limit_s: float | None = 7200, **changes: Any) -> JsonObject:
    """reception → operator (HUM, by phone only), written (the chat only); both lead back."""
    shared = {"closureConfig": closure(limit_s)}
    tasks = [
        aio_task(connectedTasks=["operator", "written"], **shared),
        hum_task("operator", channels=["phone"], connectedTasks=["reception", "written"], **shared),
        aio_task("written", channels=["chat"], connectedTasks=["reception"], **shared),
    ]
    return minimal_version(**{"tasks": tasks, **shared, **changes})


def contacts_of(talk: Conversation) -> dict[str, tuple[str, str]]:
    return {id: (c.channel, c.status) for id, c in talk.session.contacts.items()}


class TestTheFirstContact:
    def test_it_starts_in_the_first_task_with_every_variable_empty(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(None), data={"callerId": "+39"}, language="it")
        session = talk.session
        assert session.contacts == {  # F14
            "call-1": Contact(
                channel="phone",
                status="active",
                started_at=NOW,
                data={"callerId": "+39"},
                tasks=("reception",),
            )
        }
        assert (session.active_contact_id, session.language, session.revision) == ("call-1", "it-IT", 1)
        assert (session.started_at, session.deadline) == (NOW, None)
        assert (session.entered, session.refused) == ({"reception": 1}, {})
        assert talk.told == [("contact_started", "call-1", {"channel": "phone"})]
        assert talk.due == []

    def test_one_with_a_time_limit_plans_its_end(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(7200))
        assert talk.session.deadline == NOW + timedelta(hours=2)  # F28, D1
        assert talk.due == [("expire", "", 7200.0)]

    @pytest.mark.parametrize(
        ("asked", "spoken"), [(None, "en-US"), ("it-IT", "it-IT"), ("it", "it-IT"), ("de-DE", "en-US")]
    )
    def test_it_speaks_a_supported_language_else_the_versions(
        self, prompts: FileSystemPrompts, asked: str | None, spoken: str
    ) -> None:
        assert Conversation(prompts, office(), language=asked).session.language == spoken  # F28

    def test_on_a_channel_that_the_first_task_lacks_it_is_put_where_it_can_be(
        self, prompts: FileSystemPrompts
    ) -> None:
        raw = office(None)
        raw["tasks"][0]["channels"] = ["phone"]
        talk = Conversation(prompts, raw, channel="chat")
        assert talk.session.task.task_id == "written"  # F28, D6
        assert talk.session.entered == {"written": 1}
        assert talk.told == [
            ("contact_started", "call-1", {"channel": "chat"}),
            ("task_changed", "call-1", {"from": "reception", "to": "written"}),
        ]

    def test_a_transfer_as_the_first_task_looks_for_somebody_at_once(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, office(None, firstTask="operator"))
        assert talk.session.task.routing_deadline == NOW + timedelta(seconds=60)  # F34
        assert talk.told[-1] == ("routing_requested", "call-1", {"timeout": 60.0})
        assert talk.due == [("routing", "", 60.0)]

    def test_a_channel_that_the_version_lacks_is_refused(self, prompts: FileSystemPrompts) -> None:
        with pytest.raises(CorrectTheInput) as raised:
            Conversation(prompts, office(), channel="sms")
        assert raised.value.code == "channel_not_supported"  # F28


class TestAnotherContact:
    def test_it_takes_the_place_of_one_that_is_still_there(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        talk.now = NOW + timedelta(minutes=5)
        talk.contact("call-2", data={"callerId": "+33"})
        assert contacts_of(talk) == {"call-1": ("phone", "superseded"), "call-2": ("phone", "active")}  # F28
        assert talk.session.contacts["call-1"].ended_at == talk.now
        assert talk.session.contacts["call-2"].data == {"callerId": "+33"}
        assert talk.told == [
            ("contact_superseded", "call-1", {"by": "call-2"}),
            ("contact_started", "call-2", {"channel": "phone"}),
        ]
        assert talk.due == [("conclude", "call-1", 1.0)]

    def test_it_goes_on_in_the_same_task_which_is_not_entered_again(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        talk.change("operator")
        talk.contact("call-2")
        assert talk.session.task.task_id == "operator"  # F28
        assert talk.session.entered == {"reception": 1, "operator": 1}
        assert talk.session.contacts["call-2"].tasks == ("operator",)

    def test_a_human_task_looks_for_somebody_again(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        talk.change("operator")
        talk.human("connected")
        talk.now = NOW + timedelta(minutes=1)
        talk.contact("call-2")
        assert talk.session.states.configuration[-1] == "active/operator/routing"  # F10
        assert talk.session.task.routing_deadline == talk.now + timedelta(seconds=60)
        assert talk.due == [("conclude", "call-1", 1.0), ("routing", "", 60.0)]

    def test_on_a_channel_that_the_task_lacks_it_is_put_where_it_can_be(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, office())
        talk.change("operator")
        talk.contact("chat-1", "chat")
        assert talk.session.task.task_id == "reception"  # F28, D6: the nearest that the chat has
        assert talk.told[-1] == ("task_changed", "chat-1", {"from": "operator", "to": "reception"})

    def test_what_the_agent_was_yet_to_be_told_is_not_told_to_another(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, office())
        talk.change("operator")
        talk.now = NOW + timedelta(seconds=61)
        talk.load(session=talk.runner().session)
        assert talk.session.pending_command == "/human_task_failed timeout"  # F34
        talk.contact("call-2")
        assert talk.session.pending_command is None  # F25

    def test_between_contacts_it_resumes_and_nobody_is_superseded(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        talk.end(summary="Asked for hours.")
        talk.now = NOW + timedelta(minutes=5)
        talk.contact("chat-1", "chat", language="it-IT")
        assert talk.session.states.phase == "active"  # F10, F28
        assert contacts_of(talk) == {"call-1": ("phone", "ended"), "chat-1": ("chat", "active")}
        assert talk.session.language == "it-IT"
        assert talk.told == [("contact_started", "chat-1", {"channel": "chat"})]
        assert talk.due == []

    def test_the_oldest_contacts_of_very_many_are_forgotten(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        ended = talk.session.contacts["call-1"].model_copy(update={"status": "ended"})
        many = {f"old-{number}": ended for number in range(CONTACTS_KEPT)}
        talk.load(session=talk.session.model_copy(update={"contacts": {**many, "call-1": ended}}))
        talk.contact("call-2")
        assert len(talk.session.contacts) == CONTACTS_KEPT + 1  # F14
        assert "old-0" not in talk.session.contacts
        assert {"old-1", "call-1", "call-2"} <= talk.session.contacts.keys()


class TestTheEndOfAContact:
    def test_between_contacts_the_conversation_waits_and_plans_its_own_end(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, office())
        talk.now = NOW + timedelta(minutes=10)
        talk.end("caller_hangup", summary="Asked for hours.")
        assert talk.session.states.phase == BETWEEN_CONTACTS  # F30
        assert talk.session.active_contact_id is None
        assert talk.session.contacts["call-1"].ended_at == talk.now
        details = {"by": "user", "reason": "caller_hangup", "status": "between_contacts"}
        assert talk.told == [("contact_ended", "call-1", details)]
        assert talk.due == [("conclude", "call-1", 1.0), ("expire", "", 6600.0)]
        assert [(p.date, p.channel, p.resume) for p in talk.loaded.previous_contacts] == [
            (NOW, "phone", "Asked for hours.")  # F20: the date is the contact's start
        ]

    def test_a_single_contact_closes_the_conversation(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(None))
        talk.end(None, closes=True)
        assert talk.session.closed  # F30
        assert talk.told == [
            ("contact_ended", "call-1", {"status": "closed"}),
            ("conversation_closed", "call-1", {}),
        ]
        assert talk.due == [("conclude", "call-1", 1.0)]
        assert talk.loaded.previous_contacts == ()

    def test_past_its_time_it_is_told_that_time_closed_it(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(60))
        talk.now = NOW + timedelta(seconds=60)
        assert talk.runner().expired  # F28: the limit itself is past it
        talk.end("bye", closes=True)
        assert talk.told[-1] == ("conversation_closed", "call-1", {"reason": "time_limit"})

    @pytest.mark.parametrize(("seconds", "expired"), [(0, False), (59.999, False), (60, True), (10**6, True)])
    def test_time_is_over_from_its_limit_on(
        self, prompts: FileSystemPrompts, seconds: float, expired: bool
    ) -> None:
        talk = Conversation(prompts, office(60))
        assert talk.runner(NOW + timedelta(seconds=seconds)).expired is expired  # F28

    def test_where_nobody_is_there_nobody_can_end(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        talk.end()
        with pytest.raises(LookupError, match="no contact is active"):
            talk.end()

    def test_a_conversation_whose_time_ran_out_closes_for_its_last_contact(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, office(60))
        talk.end()
        talk.now = NOW + timedelta(seconds=30)
        talk.contact("call-2")
        talk.end()
        talk.now = NOW + timedelta(seconds=60)
        talk.step(lambda runner: runner.close_expired())
        assert talk.session.closed  # D1
        assert talk.told == [("conversation_closed", "call-2", {"reason": "time_limit"})]
        assert talk.due == [("conclude", "call-2", 0.0)]

    def test_a_handler_that_failed_is_told(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office())
        talk.step(lambda runner: runner.note_handler_failure("call-1", "503 instead of true or false"))
        assert talk.told == [  # D3
            ("handler_failed", "call-1", {"reason": "503 instead of true or false"})
        ]


class TestStartingAnew:
    def test_the_earlier_conversation_ends_by_it(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(None, checkpoints=[{"_id": "cp", "name": "n", "prompt": "p"}]))
        before = talk.runner()
        talk.now = NOW + timedelta(minutes=1)
        before.now = talk.now
        talk.begin(NewContact("call-2", "chat", {"timezone": "Europe/Rome"}, {}, None), before)
        assert talk.told == [  # F28
            ("contact_superseded", "call-1", {"by": "call-2"}),
            ("conversation_closed", "call-1", {}),
            ("contact_started", "call-2", {"channel": "chat"}),
        ]
        assert contacts_of(talk) == {"call-1": ("phone", "superseded"), "call-2": ("chat", "active")}
        assert list(talk.session.own_contacts) == ["call-2"]
        assert talk.session.entered == {"reception": 1}
        assert talk.due == [("conclude", "", 1.0)]

    def test_it_starts_later_than_all_that_was_also_within_a_millisecond(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, office(None))
        talk.begin(NewContact("call-2", "phone", {}, {}, None), talk.runner())
        assert talk.session.started_at == NOW + timedelta(milliseconds=1)  # F14, A6
        assert talk.session.contacts["call-2"].started_at == NOW + timedelta(milliseconds=1)

    def test_what_was_closed_is_not_closed_again(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(None))
        talk.end(closes=True)
        talk.begin(NewContact("call-2", "phone", {}, {}, None), talk.runner())
        assert [subtype for subtype, _, _ in talk.told] == ["contact_started"]  # F28

    def test_memory_and_tenant_begin_anew_too(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(None), memory={"var_string": "Ada"}, tenant={"old": 1})
        contact = NewContact("call-2", "phone", {"timezone": "Europe/Rome"}, {}, None)
        runner = type(talk.runner()).start(
            talk.flow,
            _ref(talk),
            "campaign-2",
            contact,
            talk.loaded,
            talk.platform,
            talk.now,
            talk.runner(),
        )
        assert runner.tenant == {"campaignId": "campaign-2", "timezone": "Europe/Rome"}  # F16, engine 6
        assert runner.new_memory is not None
        assert set(runner.new_memory.variables) == {v["_id"] for v in minimal_version()["variables"]}
        assert {e.value for e in runner.memory.values()} == {None}  # F17
        assert {e.contact_id for e in runner.memory.values()} == {"call-2"}

    def test_what_was_concluded_leaves_nothing_to_conclude(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(None))
        talk.end(closes=True)
        talk.load(mining=MiningState(conclusions={"call-1": Conclusion()}))
        talk.begin(NewContact("call-2", "phone", {}, {}, None), talk.runner())
        assert talk.due == []  # F39

    @pytest.mark.parametrize(
        ("required", "reported", "left"), [(True, False, True), (True, True, False), (False, False, False)]
    )
    def test_required_checkpoints_that_were_not_reported_are_still_to_be_concluded(
        self, prompts: FileSystemPrompts, required: bool, reported: bool, left: bool
    ) -> None:
        point = {"_id": "cp", "name": "identified", "prompt": "known", "required": required}
        talk = Conversation(prompts, office(None, checkpoints=[point]))
        talk.end(closes=True)
        talk.load(mining=MiningState(conclusions={"call-1": Conclusion()}, missed_reported=reported))
        assert (talk.runner().unconcluded() is not None) is left  # F39, D2


def _ref(talk: Conversation) -> Any:
    return talk.runner().due("conclude").job.conversation


class TestWhatARequestNeeds:
    """Which contacts may still do what, and what the refusals say (F15, F29, F33)."""

    def test_a_contact_of_another_conversation_is_unknown(self, prompts: FileSystemPrompts) -> None:
        runner = Conversation(prompts, office()).runner()
        with pytest.raises(LookElsewhere) as raised:
            runner.require_contact("call-9")
        assert raised.value.code == "contact_unknown"
        assert raised.value.detail == "contact 'call-9' is not of this conversation"
        assert runner.require_contact("call-1").status == "active"

    @pytest.mark.parametrize(
        ("contact", "detail"),
        [
            ("call-1", "contact 'call-1' is ended"),
            ("call-2", "contact 'call-2' is superseded"),
            ("call-9", "contact 'call-9' is unknown here"),
        ],
    )
    def test_only_the_active_contact_acts(
        self, prompts: FileSystemPrompts, contact: str, detail: str
    ) -> None:
        talk = Conversation(prompts, office())
        talk.end()
        talk.contact("call-2")
        talk.contact("call-3")
        with pytest.raises(ReloadAndDecide) as raised:
            talk.runner().require_active(contact)
        assert (raised.value.code, raised.value.detail) == ("contact_not_active", detail)  # F29
        assert raised.value.accepted == ("the active contact, 'call-3'",)
        assert raised.value.state == {
            "phase": "active",
            "revision": 4,
            "activeContactId": "call-3",
            "taskName": "reception",
            "taskStatus": None,
        }
        assert talk.runner().require_active("call-3").status == "active"

    @pytest.mark.parametrize("contact", ["call-1", "call-9"])
    def test_after_the_end_nobody_acts(self, prompts: FileSystemPrompts, contact: str) -> None:
        talk = Conversation(prompts, office())
        talk.end(closes=True)
        for demand in (lambda: talk.runner().require_active(contact), lambda: talk.runner().require_open()):
            with pytest.raises(ReloadAndDecide) as raised:
                demand()
            assert raised.value.code == "conversation_closed"  # F30, F31
            assert raised.value.detail == "the conversation is closed"
            assert raised.value.accepted == ("a new contact, which starts it anew",)
            assert raised.value.state["phase"] == "closed"

    @pytest.mark.parametrize(
        ("closes", "after_s", "taken"),
        [
            (False, 0.0, True),
            (False, 7000.0, True),
            (True, 0.0, True),
            (True, LATE_UTTERANCES_S, True),
            (True, LATE_UTTERANCES_S + 0.001, False),
            (True, 7000.0, False),
        ],
    )
    def test_late_words_of_a_closed_conversation_are_taken_for_a_minute(
        self, prompts: FileSystemPrompts, closes: bool, after_s: float, taken: bool
    ) -> None:
        talk = Conversation(prompts, office())
        talk.end(closes=closes)
        runner = talk.runner(NOW + timedelta(seconds=after_s))
        if taken:
            runner.require_listening("call-1")  # F33, D5
        else:
            with pytest.raises(ReloadAndDecide) as raised:
                runner.require_listening("call-1")
            assert raised.value.code == "conversation_closed"

    @pytest.mark.parametrize(("after_s", "taken"), [(LATE_UTTERANCES_S, True), (61.0, False)])
    def test_those_of_a_contact_from_before_a_start_anew_too(
        self, prompts: FileSystemPrompts, after_s: float, taken: bool
    ) -> None:
        talk = Conversation(prompts, office(None))
        talk.begin(NewContact("call-2", "phone", {}, {}, None), talk.runner())
        runner = talk.runner(NOW + timedelta(seconds=after_s))
        runner.require_listening("call-2")
        if taken:
            runner.require_listening("call-1")  # F33
            return
        with pytest.raises(ReloadAndDecide) as raised:
            runner.require_listening("call-1")
        assert (raised.value.code, raised.value.detail) == (
            "contact_ended",
            "contact 'call-1' is over (superseded)",
        )

    def test_of_nobody_nothing_is_heard(self, prompts: FileSystemPrompts) -> None:
        with pytest.raises(LookElsewhere):
            Conversation(prompts, office()).runner().require_listening("call-9")  # F33


class TestWhatAConversationWasAfterAContact:
    """The end of a contact is answered alike whatever has come since (F30)."""

    def talk(self, prompts: FileSystemPrompts) -> Conversation:
        talk = Conversation(prompts, office())
        talk.end()
        talk.now = NOW + timedelta(minutes=1)
        talk.contact("call-2")
        talk.now = NOW + timedelta(minutes=2)
        return talk

    def test_after_an_earlier_one_it_waited(self, prompts: FileSystemPrompts) -> None:
        assert self.talk(prompts).runner().phase_after("call-1") == BETWEEN_CONTACTS

    def test_while_the_last_one_is_there_it_is_active(self, prompts: FileSystemPrompts) -> None:
        assert self.talk(prompts).runner().phase_after("call-2") == "active"

    @pytest.mark.parametrize(("closes", "phase"), [(True, CLOSED), (False, BETWEEN_CONTACTS)])
    def test_after_the_last_one_it_is_what_it_is(
        self, prompts: FileSystemPrompts, closes: bool, phase: str
    ) -> None:
        talk = self.talk(prompts)
        talk.end(closes=closes)
        assert talk.runner().phase_after("call-2") == phase

    def test_of_a_conversation_before_it_was_started_anew_it_was_closed(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = self.talk(prompts)
        talk.begin(NewContact("call-3", "phone", {}, {}, None), talk.runner())
        runner = talk.runner()
        assert [runner.phase_after(c) for c in ("call-1", "call-2", "call-9")] == [CLOSED] * 3

    @pytest.mark.parametrize(("start", "summary"), [(NOW, "Asked."), (NOW + timedelta(seconds=1), None)])
    def test_a_summary_is_found_by_its_contacts_start(
        self, prompts: FileSystemPrompts, start: datetime, summary: str | None
    ) -> None:
        talk = Conversation(prompts, office())
        talk.end(summary="Asked.")
        contact = talk.session.contacts["call-1"].model_copy(update={"started_at": start})
        assert talk.runner().remembered(contact) == summary  # F20, F30


class TestSnapshotsThatDoNotFit:
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"configuration": ("active", "active/gone")}, "gone"),
            ({"configuration": ("active",)}, "active"),
            ({"configuration": ("active", "active/written")}, "the texts of task 'reception'"),
        ],
        ids=["unknown-state", "no-task", "texts-of-another-task"],
    )
    def test_they_are_refused_and_never_reset(
        self, prompts: FileSystemPrompts, changes: JsonObject, told: str
    ) -> None:
        talk = Conversation(prompts, office())
        talk.load(session=talk.session.model_copy(update=changes))
        with pytest.raises(CallTheOperator) as raised:
            talk.runner()
        assert raised.value.code == "snapshot_unusable"  # F13
        assert raised.value.detail.startswith("version 'version-1': ")
        assert told in raised.value.detail

    def test_one_that_lacks_its_deadline_gets_it_from_its_task(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, office(7200))
        talk.load(session=talk.session.model_copy(update={"deadline": None}))
        runner = talk.runner()
        assert runner.session.deadline == NOW + timedelta(hours=2)  # D1
        assert not runner.changed

    def test_of_nothing_the_revision_is_zero(self) -> None:
        assert LoadedConversation().revision == 0  # F15
