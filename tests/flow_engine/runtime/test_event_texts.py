"""Events for reporting and the core CTI, written out as they are sent (F40)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.documents import Checkpoint
from flow_engine.ports.dialogue import ConversationRef, DialogueTurn
from flow_engine.runtime import events
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.mining_state import ReachedCheckpoint
from flow_engine.runtime.session import Contact, Session, TaskEntry
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW

STARTED_MS = int(NOW.timestamp() * 1000)
FLOW = compile_flow(
    minimal_version(
        tasks=[
            aio_task(name="Reception", connectedTasks=["operator", "secret"]),
            hum_task("operator", name="Operator", suspendTranscription=True),
            aio_task("secret", name="Secret", hideTranscriptionToHuman=True),
        ]
    ),
    "hash",
)
SESSION = Session(
    conversation_id="conv 1",
    tenant_id="acme",
    campaign_id="campaign-1",
    flow_id="flow-1",
    version_id="version-1",
    content_hash="hash",
    revision=7,
    configuration=("active", "active/reception"),
    contacts={
        "call-1": Contact(
            channel="phone",
            status="active",
            started_at=NOW,
            data={"room": "room-5", "callerId": "+39", "calleeId": "+33", "name": "Ada"},
        ),
        "chat-1": Contact(channel="chat", status="ended", started_at=NOW),
    },
    active_contact_id="call-1",
    language="en-US",
    started_at=NOW,
    task=TaskEntry(task_id="reception", entered_at=NOW, global_prompt="", prompt="", descriptions={}),
)
TURN = DialogueTurn("m-1", NOW, "message", "user", "Good morning", "call-1", "Reception", "en-US")
USER = events.Sender("user", "u-1", "Ada")


def standing_in(task: str, *parts: str) -> Session:
    states = ("active", f"active/{task}", *(f"active/{task}/{part}" for part in parts))
    entry = SESSION.task.model_copy(update={"task_id": task})
    return SESSION.model_copy(update={"configuration": states, "task": entry})


def dialogue(session: Session = SESSION, details: JsonObject | None = None, **changes: Any) -> Any:
    event = events.dialogue_event(FLOW, session, replace(TURN, **changes), USER, details)
    return None if event is None else orjson.loads(event)


def system(number: int | str, subtype: str, session: Session = SESSION, **details: object) -> Any:
    return orjson.loads(events.system_event(FLOW, session, number, "call-1", NOW, subtype, **details))


class TestDialogue:
    def test_a_message_is_told_with_who_said_it_and_under_which_task(self) -> None:
        assert dialogue() == {  # F40
            "eventId": f"acme:conv%201:{STARTED_MS}:message:call-1/m-1",
            "campaignId": "campaign-1",
            "conversationId": "conv 1",
            "contactId": "call-1",
            "ts": "2026-01-15T23:30:00Z",
            "body": "Good morning",
            "type": "message",
            "src": "user",
            "srcId": "u-1",
            "srcName": "Ada",
            "taskName": "Reception",
            "taskType": "AIO",
            "taskStatus": "AIO",
            "meta": None,
        }

    @pytest.mark.parametrize(
        ("type", "details", "body"),
        [
            ("message", None, "Good morning"),
            ("tool", None, "Good morning"),
            ("system", None, {"subtype": "reported", "text": "Good morning"}),
            ("system", {"subtype": "hangup", "by": "user"}, {"subtype": "hangup", "by": "user"}),
            ("system", {}, {}),
        ],
    )
    def test_only_the_body_of_a_system_message_is_an_object(
        self, type: str, details: JsonObject | None, body: object
    ) -> None:
        found = dialogue(type=type, details=details)
        assert (found["type"], found["body"]) == (type, body)  # F40

    @pytest.mark.parametrize(
        ("task", "type", "meta"),
        [
            ("secret", "message", {"visible": False}),
            ("secret", "tool", {"visible": False}),
            ("secret", "system", None),
            ("reception", "message", None),
            ("reception", "system", None),
        ],
    )
    def test_what_was_said_is_hidden_where_the_task_wants_it(
        self, task: str, type: str, meta: JsonObject | None
    ) -> None:
        assert dialogue(standing_in(task), type=type)["meta"] == meta  # F40

    @pytest.mark.parametrize(
        ("part", "told"), [("routing", True), ("connected", False), ("completed", True), ("failed", True)]
    )
    def test_while_a_human_is_connected_nothing_is_told(self, part: str, told: bool) -> None:
        assert (dialogue(standing_in("operator", part)) is not None) is told  # F40

    @pytest.mark.parametrize(
        ("contact", "message", "name"),
        [
            ("call-1", "m-1", "message:call-1/m-1"),
            ("call/1", "m:1", "message:call%2F1/m%3A1"),
            ("è", " ", "message:%C3%A8/%20"),
        ],
    )
    def test_its_event_id_holds_both_ids_encoded(self, contact: str, message: str, name: str) -> None:
        found = dialogue(contact_id=contact, message_id=message)["eventId"]
        assert found == f"acme:conv%201:{STARTED_MS}:{name}"  # F40, D5


class TestSystemMessages:
    def test_one_is_told_by_the_engine_with_its_subtype(self) -> None:
        told = system(3, "task_changed", **{"from": "Reception", "to": "Operator"})
        assert told == {  # F40
            "eventId": f"acme:conv%201:{STARTED_MS}:7:3",
            "campaignId": "campaign-1",
            "conversationId": "conv 1",
            "contactId": "call-1",
            "ts": "2026-01-15T23:30:00Z",
            "body": {"subtype": "task_changed", "from": "Reception", "to": "Operator"},
            "type": "system",
            "src": "bot",
            "srcId": None,
            "srcName": None,
            "taskName": "Reception",
            "taskType": "AIO",
            "taskStatus": "AIO",
            "meta": None,
        }

    def test_what_is_not_known_is_left_out_and_what_is_false_is_not(self) -> None:
        told = system(0, "checkpoint_missed", reason=None, judged=False, turns=0, name="")
        body = {"subtype": "checkpoint_missed", "judged": False, "turns": 0, "name": ""}
        assert told["body"] == body  # F39, F40

    @pytest.mark.parametrize(
        ("number", "name"),
        [(0, "7:0"), (12, "7:12"), ("conclusion:call-1", "conclusion:call-1"), ("a b/è", "a%20b%2F%C3%A8")],
    )
    def test_its_name_counts_in_the_revision_or_stands_once(self, number: int | str, name: str) -> None:
        assert system(number, "x")["eventId"] == f"acme:conv%201:{STARTED_MS}:{name}"  # F40

    def test_of_an_erased_conversation_nothing_is_told_but_whose_it_was(self) -> None:
        assert orjson.loads(events.erasure_event(ConversationRef("acme", "conv 1"), NOW)) == {  # contract 18
            "eventId": f"acme:conv%201:{int(NOW.timestamp() * 1000)}:erased",
            "conversationId": "conv 1",
            "ts": "2026-01-15T23:30:00Z",
            "body": {"subtype": "conversation_erased"},
            "type": "system",
            "src": "bot",
        }


class TestEventIds:
    def session(self, **changes: Any) -> Session:
        return SESSION.model_copy(update=changes)

    def test_a_conversation_that_starts_anew_makes_other_ids(self) -> None:
        later = self.session(started_at=NOW + timedelta(milliseconds=1))
        assert system(0, "x", later)["eventId"] == f"acme:conv%201:{STARTED_MS + 1}:7:0"  # F40

    @settings(max_examples=30)
    @given(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12), st.text(max_size=12))
    def test_they_are_ascii_and_no_id_can_forge_a_part_of_another(
        self, tenant: str, conversation: str, name: str
    ) -> None:
        session = self.session(tenant_id=tenant, conversation_id=conversation)
        event_id = system(f"x:{name}", "x", session)["eventId"]
        owner, number, started, *_ = event_id.split(":")
        assert event_id.isascii()  # F40
        assert (owner, number) == tuple(
            orjson.loads(events.system_event(FLOW, session, 0, "c", NOW, "x"))["eventId"].split(":")[:2]
        )
        assert started == str(STARTED_MS)

    @pytest.mark.parametrize(("length", "digest"), [(900, False), (985, False), (986, True), (3_000, True)])
    def test_what_is_too_long_for_a_header_is_a_digest(self, length: int, digest: bool) -> None:
        session = self.session(tenant_id="t", conversation_id="c" * length)
        padding = events.EVENT_ID_CHARS - len(f"t:{'c' * 985}:{STARTED_MS}:")
        name = "n" * padding
        whole = f"t:{'c' * length}:{STARTED_MS}:{name}"
        expected = sha256(whole.encode()).hexdigest() if digest else whole
        assert system(name, "x", session)["eventId"] == expected  # F40
        assert len(expected) <= events.EVENT_ID_CHARS


class TestCheckpoints:
    POINT = Checkpoint.model_validate(
        {"_id": "cp/1", "name": "identified", "prompt": "known", "required": True}
    )
    REACHED = ReachedCheckpoint(at=NOW + timedelta(seconds=1), message_id="m 1", reason="said her name")

    def told(self, point: Checkpoint = POINT, contact: str = "call-1") -> Any:
        return orjson.loads(events.checkpoint_event(FLOW, SESSION, point, self.REACHED, contact))

    def test_one_has_a_shape_of_its_own(self) -> None:
        assert self.told() == {  # F39, F40
            "eventId": f"acme:conv%201:{STARTED_MS}:checkpoint:cp%2F1:m%201",
            "serviceId": "campaign-1",
            "room": "room-5",
            "callerId": "+39",
            "calleeId": "+33",
            "type": "checkpoint",
            "data": {
                "checkpointId": "cp/1",
                "name": "identified",
                "required": True,
                "conversationId": "conv 1",
                "contactId": "call-1",
                "taskName": "Reception",
                "reason": "said her name",
                "ts": "2026-01-15T23:30:01Z",
            },
        }

    def test_caller_data_that_a_contact_lacks_are_null(self) -> None:
        told = self.told(contact="chat-1")
        assert [told[name] for name in ("room", "callerId", "calleeId")] == [None] * 3  # F40

    def test_a_contact_that_the_conversation_lacks_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            self.told(contact="call-9")

    def test_the_two_shapes_are_told_apart(self) -> None:
        point = events.checkpoint_event(FLOW, SESSION, self.POINT, self.REACHED, "call-1")
        message = events.system_event(FLOW, SESSION, 0, "call-1", NOW, "x")
        assert (events.kind_of(point), events.kind_of(message)) == ("checkpoint", "message")  # F40
        with pytest.raises(ValueError, match="invalid literal"):
            events.kind_of(b"nothing")


class TestWhoEnded:
    @pytest.mark.parametrize(
        ("reason", "by"),
        [
            ("user_hangup", "user"),
            ("caller hung up", "user"),
            ("the customer has left the chat", "user"),
            ("VISITOR_DISCONNECTED", "user"),
            ("patientLeft", "user"),
            ("guest closed the conversation", "user"),
            ("client", "user"),
            ("bot_hangup", "bot"),
            ("assistantEnded", "bot"),
            ("ended by the AI", "bot"),
            ("agent_ended", "agent"),
            ("operatorHangUp", "agent"),
            ("call closed by human", "agent"),
            ("caller-hangup-2", "user"),
        ],
    )
    def test_a_reason_that_names_one_party_and_an_ending_tells_it(self, reason: str, by: str) -> None:
        assert events.ended_by(reason) == by  # F40

    @pytest.mark.parametrize(
        "reason",
        [
            *(None, "", "hangup", "timeout", "ended", "busy"),
            *(
                "caller and agent hung up",
                "user transferred to agent",
                "the agent asked the user",
            ),
            *("user is angry", "caller hung up because of the price", "userland", "botany", "agents"),
        ],
    )
    def test_any_other_tells_nobody(self, reason: str | None) -> None:
        assert events.ended_by(reason) is None  # F40

    @settings(max_examples=30)
    @given(st.text(max_size=60))
    def test_whatever_the_reason_it_is_one_of_the_three_or_nobody(self, reason: str) -> None:
        assert events.ended_by(reason) in {"user", "bot", "agent", None}  # F40
