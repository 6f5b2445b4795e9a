"""What an entry of the journal holds, and that its entries fold into the state again (F14, F15)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.errors import CallTheOperator, FlowEngineError
from flow_engine.runtime import journal
from flow_engine.runtime.human_part import HumanReport
from flow_engine.runtime.journal import JournalEntry, folded, session_delta, states_of
from flow_engine.runtime.memory import MemoryEntry, PreviousContact, encode_entry
from flow_engine.runtime.mining_state import MiningState, encode_mining
from flow_engine.runtime.session import Approval, Contact, Session, TaskEntry, decode_session, encode_session
from flow_engine.runtime.storage import LoadedConversation
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation

LATER = NOW + timedelta(hours=1)
MULTI = {
    "multiContact": True,
    "conversationTimeLimit": 7200,
    "customHandler": "https://hooks.example.com/close",
}


def version() -> JsonObject:
    """Two tasks of the AI, one of each with a human, all connected; the last is a digression."""
    everywhere = {"connectedTasks": ["a", "b", "h", "s", "d"], "closureConfig": MULTI}
    return minimal_version(
        tasks=[
            aio_task("a", **everywhere),
            aio_task("b", **everywhere),
            hum_task("h", **everywhere),
            hum_task("s", type="AIS", **everywhere),
            aio_task("d", closureConfig=MULTI, returns=True),
        ],
        firstTask="a",
        closureConfig=MULTI,
    )


def entry(delta: JsonObject, **changes: Any) -> JournalEntry:
    """A commit's entry as it comes back from the store: its delta is JSON."""
    fields: JsonObject = {
        "seq": 1,
        "revision": 1,
        "memory_revision": 0,
        "at": NOW,
        "by": "the crm",
        "input": {},
        "outcome": {},
        "delta": orjson.loads(orjson.dumps(delta)),
        **changes,
    }
    return JournalEntry(**fields)


def stored(value: MemoryEntry) -> object:
    return orjson.loads(encode_entry(value))


class TestWhatAStepChanges:
    """Nothing is told of a session but what the step made otherwise."""

    def delta(self, talk: Conversation, move: Any) -> JsonObject:
        before = talk.session
        talk.step(move)
        return orjson.loads(orjson.dumps(session_delta(before, talk.session)))

    def test_a_start_is_the_whole_session(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        assert session_delta(None, session) == orjson.loads(encode_session(session))

    def test_a_refusal_is_a_count(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, version())
        assert self.delta(talk, lambda runner: runner.change_task("a")) == {
            "revision": 2,
            "refused": {"a": 1},
        }

    def test_a_change_of_task_is_its_states_texts_and_counts(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, version())
        talk.now = NOW + timedelta(seconds=5)
        found = self.delta(talk, lambda runner: runner.change_task("b"))
        assert found == {
            "revision": 2,
            "configuration": ["active", "active/b"],
            "contacts": {"call-1": {"tasks": ["a", "b"]}},
            "entered": {"b": 1},
            "task": {"taskId": "b", "enteredAt": "2026-01-15T23:30:05+00:00"},
        }

    def test_an_outcome_is_what_it_moves(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, version())
        talk.change("h")
        found = self.delta(talk, lambda runner: runner.apply_human_outcome(HumanReport("failed", "nobody")))
        assert found == {
            "revision": 3,
            "configuration": ["active", "active/h", "active/h/failed"],
            "task": {"routingDeadline": None, "humanReason": "nobody"},
        }

    def test_an_end_is_the_contacts_end_and_where_it_waits(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, version())
        found = self.delta(talk, lambda runner: runner.end_contact(None, closes=False, summary=None))
        assert found == {
            "revision": 2,
            "configuration": ["between_contacts"],
            "history": ["active/a"],
            "contacts": {"call-1": {"status": "ended", "endedAt": "2026-01-15T23:30:00+00:00"}},
            "activeContactId": None,
        }

    def test_a_new_contact_is_told_whole_beside_what_became_of_the_earlier_one(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = Conversation(prompts, version())
        before = talk.session
        talk.contact("chat-1", "chat", data={"name": "Ada"})
        found = orjson.loads(orjson.dumps(session_delta(before, talk.session)))
        assert found["contacts"] == {
            "call-1": {"status": "superseded", "endedAt": "2026-01-15T23:30:00+00:00"},
            "chat-1": {
                "channel": "chat",
                "status": "active",
                "startedAt": "2026-01-15T23:30:00+00:00",
                "endedAt": None,
                "data": {"name": "Ada"},
                "tasks": ["a"],
            },
        }
        assert found["activeContactId"] == "chat-1"

    def test_what_is_gone_is_null(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        crowded = session.model_copy(
            update={
                "contacts": {"old": session.contacts["call-1"], **session.contacts},
                "entered": {"gone": 3, "a": 1},
            }
        )
        assert session_delta(crowded, session) == {"contacts": {"old": None}, "entered": {"gone": None}}

    def test_two_sessions_that_are_equal_differ_in_nothing(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        assert session_delta(session, session.model_copy(update={})) == {}
        assert session_delta(session, decode_session(encode_session(session))) == {}, "no object is shared"

    def test_any_property_that_another_session_has_otherwise_is_told_and_folded(
        self, prompts: FileSystemPrompts
    ) -> None:
        """Also one that is added later; in the order of the stored session."""
        session = Conversation(prompts, version()).session
        kept = {"format", "conversation_id"}
        others = {field: OTHERS[field] for field in Session.__struct_fields__ if field not in kept}
        stored_as = dict(zip(Session.__struct_fields__, Session.__struct_encode_fields__, strict=True))
        first = entry({"session": session_delta(None, session), "tenant": {}, "variables": {}})
        for changes in (*({field: value} for field, value in others.items()), others):
            after = session.model_copy(update=changes)
            delta = session_delta(session, after)
            assert [*delta] == [stored_as[field] for field in changes]
            _, state = states_of([first, entry({"session": delta}, seq=2)])
            assert state.session == after

    def test_any_property_of_a_task_and_of_a_contact_is_told(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        contact = session.contacts["call-1"]
        for field, value in TASK.items():
            after = session.model_copy(update={"task": session.task.model_copy(update={field: value})})
            name = dict(zip(TASK, TaskEntry.__struct_encode_fields__, strict=True))[field]
            assert session_delta(session, after) == {"task": {name: value}}
        for field, value in CONTACT.items():
            other = {"call-1": contact.model_copy(update={field: value})}
            name = dict(zip(CONTACT, Contact.__struct_encode_fields__, strict=True))[field]
            after = session.model_copy(update={"contacts": other})
            assert session_delta(session, after) == {"contacts": {"call-1": {name: value}}}


TASK: JsonObject = {
    "task_id": "other",
    "entered_at": LATER,
    "global_prompt": "other",
    "prompt": "other",
    "descriptions": {"b": "other"},
    "routing_deadline": LATER,
    "human_reason": "other",
}
CONTACT: JsonObject = {
    "channel": "chat",
    "status": "ended",
    "started_at": LATER,
    "ended_at": LATER,
    "data": {"name": "other"},
    "tasks": ("other",),
}
OTHERS: JsonObject = {
    **dict.fromkeys(("tenant_id", "campaign_id", "flow_id", "version_id", "content_hash"), "other"),
    "revision": 7,
    "configuration": ("active", "active/b"),
    "history": ("active/a",),
    "contacts": {"call-1": Contact(**CONTACT)},
    "active_contact_id": None,
    "language": "it-IT",
    "started_at": LATER,
    "task": TaskEntry(**TASK),
    "entered": {"b": 2},
    "refused": {"b": 3},
    "deadline": LATER,
    "pending_command": "resume",
    "digressions": ("a",),
    "approval": Approval(
        id=3, task_id="s", status="waiting", text="Hi", draft="Hi", asked_at=NOW, until=LATER
    ),
    "hidden": {"code": ("string", "identity")},
}
"""What a session may have otherwise, by its properties; likewise above for a task and a contact."""


MOVES = st.sampled_from(
    [
        *(("change", task) for task in ("a", "b", "h", "s", "d", "back", "nowhere")),
        *(("human", outcome) for outcome in ("connected", "completed", "failed", "taken_over", "released")),
        *(("contact", contact) for contact in ("call-2", "call-3")),
        ("end", None),
        ("language", "it-IT"),
        ("wait", None),
    ]
)


def moved(talk: Conversation, kind: str, what: Any) -> None:
    """One step; one that is not possible now changes nothing."""
    try:
        match kind:
            case "change" if talk.session.active_contact is None:
                pass  # who is not there asks for nothing
            case "change":
                talk.step(lambda runner: runner.change_task(what))
            case "human":
                talk.human(what)
            case "contact":
                talk.contact(what)
            case "end":
                talk.end("bye")
            case "language":
                talk.step(lambda runner: runner.set_language(what))
            case _:
                talk.now += timedelta(seconds=45)
                talk.step(lambda runner: runner.take_command())
    except (FlowEngineError, LookupError):
        pass


@given(moves=st.lists(MOVES, max_size=12))
@settings(max_examples=20)
def test_the_entries_of_any_walk_fold_into_its_states(prompts: FileSystemPrompts, moves: list[Any]) -> None:
    talk = Conversation(prompts, version())
    entries = [entry({"session": session_delta(None, talk.session), "tenant": {}, "variables": {}})]
    states = [talk.session]
    for kind, what in moves:
        before = talk.session
        moved(talk, kind, what)
        entries.append(entry({"session": session_delta(before, talk.session)}))
        states.append(talk.session)
        previous, after = states_of(entries)
        assert (previous.session, after.session) == (before, talk.session)
    state = LoadedConversation()
    for each, expected in zip(entries, states, strict=True):
        state = folded(state, each)
        assert state.session == expected


class TestFoldingMemory:
    ADA = MemoryEntry("string", "crm", NOW, "Ada", "call-1", None)
    MINED = MemoryEntry("string", "convMiner", NOW, "Grace", "call-1", None)
    EMPTY = MemoryEntry("string", None, None, None, "call-1", None)

    def before(self, **changes: Any) -> LoadedConversation:
        fields: JsonObject = {
            "mined": {"v1": self.EMPTY, "v2": self.EMPTY},
            "tools": {"v1": self.EMPTY, "v2": self.EMPTY},
            "tenant": {"timezone": "UTC"},
            "memory_revision": 3,
            "mining_revision": 1,
            **changes,
        }
        return LoadedConversation(**fields)

    def test_values_take_their_places_in_the_hash_of_their_writer(self) -> None:
        delta = {"tools": {"v1": stored(self.ADA)}, "mined": {"v2": stored(self.MINED)}}
        after = folded(self.before(), entry(delta, memory_revision=4))
        assert after.tools == {"v1": self.ADA, "v2": self.EMPTY}  # F18, F19
        assert after.mined == {"v1": self.EMPTY, "v2": self.MINED}
        assert (after.memory_revision, after.memory_updated_at) == (4, NOW)

    @pytest.mark.parametrize("delta", [{}, {"session": None}, {"previousContacts": []}, {"mining": {}}])
    def test_a_commit_without_values_leaves_when_they_were_written(self, delta: JsonObject) -> None:
        earlier = NOW - timedelta(hours=1)
        after = folded(self.before(memory_updated_at=earlier), entry(delta, memory_revision=3))
        assert (after.memory_updated_at, after.memory_revision) == (earlier, 3)

    def test_variables_of_another_version_are_added_where_they_are_not_yet(self) -> None:
        added = {"v1": stored(self.EMPTY), "v3": stored(self.EMPTY)}
        after = folded(self.before(tools={"v1": self.ADA}, mined={}), entry({"added": added}))
        assert after.tools == {"v1": self.ADA, "v3": self.EMPTY}  # F17
        assert after.mined == {"v1": self.EMPTY, "v3": self.EMPTY}

    def test_a_start_anew_forgets_all_but_the_number_of_readings(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        before = self.before(
            tools={"v1": self.ADA},
            previous_contacts=(PreviousContact(NOW, "phone", "Asked."),),
            last_user_turn="call-1/m1",
            mining=MiningState(task_turns=4),
        )
        delta = {
            "session": session_delta(None, session),
            "tenant": {"timezone": "Europe/Rome"},
            "variables": {"v1": stored(self.EMPTY)},
        }
        after = folded(before, entry(delta, memory_revision=0))
        assert after == LoadedConversation(  # F16, F17, F28
            session=session,
            tenant={"timezone": "Europe/Rome"},
            mined={"v1": self.EMPTY},
            tools={"v1": self.EMPTY},
        )

    def test_summaries_are_added_or_written_anew(self) -> None:
        first = PreviousContact(NOW, "phone", "Asked.")
        second = PreviousContact(NOW + timedelta(hours=1), "chat", "Booked.")
        told = [{"date": "2026-01-16T00:30:00Z", "channel": "chat", "resume": "Booked."}]
        before = self.before(previous_contacts=(first,))
        assert folded(before, entry({"previousContacts": told})).previous_contacts == (first, second)  # F20
        anew = folded(before, entry({"previousContacts": told, "rewritten": True}))
        assert anew.previous_contacts == (second,)
        assert folded(before, entry({"rewritten": True})).previous_contacts == ()

    def test_readings_count_and_keep_their_state(self) -> None:
        mining = MiningState(
            mined_through="call-1/m2", task_id="a", task_turns=2, dropped={"date_invalid": 1}
        )
        delta = {"mining": orjson.loads(encode_mining(mining)), "lastUserTurn": "call-1/m2"}
        after = folded(self.before(), entry(delta))
        assert (after.mining, after.mining_revision, after.last_user_turn) == (mining, 2, "call-1/m2")  # F37
        kept = folded(after, entry({}))
        assert (kept.mining, kept.mining_revision, kept.last_user_turn) == (mining, 2, "call-1/m2")

    @pytest.mark.parametrize(
        ("delta", "code"),
        [
            ({"session": {"revision": 2}}, "snapshot_unreadable"),
            ({"tools": {"v1": {"value": 1}}}, "memory_unreadable"),
            ({"previousContacts": [{"date": "yesterday"}]}, "memory_unreadable"),
            ({"mining": {"taskTurns": "two"}}, "mining_unreadable"),
        ],
    )
    def test_what_does_not_fit_its_format_is_an_operators_business(
        self, delta: JsonObject, code: str
    ) -> None:
        with pytest.raises(CallTheOperator) as raised:
            folded(self.before(), entry(delta))
        assert raised.value.code == code  # F14


class TestStatesOfEntries:
    def test_a_base_stands_for_all_that_was_before_it(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        base = LoadedConversation(session=session, memory_revision=7, tenant={"a": 1})
        change = entry({"session": {"revision": 2, "language": "it-IT"}}, memory_revision=7, base=base)
        before, after = states_of([change])
        assert before == base
        assert after.session == session.model_copy(update={"revision": 2, "language": "it-IT"})
        assert (after.tenant, after.memory_revision) == ({"a": 1}, 7)

    def test_a_base_in_the_middle_counts_more_than_what_was_folded(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        lost = session.model_copy(update={"language": "es-ES", "revision": 5})
        first = entry({"session": session_delta(None, session), "tenant": {}, "variables": {}})
        second = entry({"session": {"revision": 6}}, base=LoadedConversation(session=lost))
        before, after = states_of([first, second])
        assert before.session == lost
        assert after.session == lost.model_copy(update={"revision": 6})

    def test_what_stands_before_a_base_is_not_folded(
        self, prompts: FileSystemPrompts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session, steps = Conversation(prompts, version()).session, list[int]()

        def counting(before: LoadedConversation, each: JournalEntry) -> LoadedConversation:
            steps.append(each.seq)
            return folded(before, each)

        monkeypatch.setattr(journal, "folded", counting)
        entries = [entry({"session": {"revision": seq}}, seq=seq) for seq in range(1, 200)]
        base = LoadedConversation(session=session)
        _, after = states_of([*entries, entry({"session": {"revision": 200}}, seq=200, base=base)])
        assert (after.revision, steps) == (200, [200])  # journal: recordings of long conversations

    def test_of_no_entries_there_is_no_state(self) -> None:
        with pytest.raises(IndexError):
            states_of([])

    def test_what_no_state_keeps_is_not_folded(self, prompts: FileSystemPrompts) -> None:
        session = Conversation(prompts, version()).session
        before = LoadedConversation(session=session, state=b"opaque", mining_revision=2)
        after = folded(before, entry({}))
        assert (after.state, after.turns, after.former, after.replay) == (b"", (), (), None)
