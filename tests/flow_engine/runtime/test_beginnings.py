"""Conversations that begin alike share what follows from that: each is the same as if it had begun alone
(F17, F23, F28)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.agent_data import compose_prompt
from flow_engine.runtime.commands import START, NewContact
from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.templates import frame
from system_prompts.loader import FileSystemPrompts, load_system_prompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import ADDRESS, NOW

PROMPTS = load_system_prompts()


def office(**changes: Any) -> JsonObject:
    """Its texts read tenant and contact; a conversation has two hours."""
    closure = {
        "multiContact": True,
        "conversationTimeLimit": 7200,
        "customHandler": "https://example.com/close",
    }
    shared = {"closureConfig": closure}
    told = "For {{ $contact.name | default('somebody') }} of {{ $tenant.site }}, by {{ $channel }}."
    tasks = [
        aio_task(connectedTasks=["written"], prompt=told, **shared),
        aio_task("written", description=told, channels=["chat"], connectedTasks=["reception"], **shared),
    ]
    return minimal_version(**{"tasks": tasks, **shared, **changes})


OFFICE = compile_flow(office(), "office")
NAMES = st.sampled_from([None, "Ada", "Grace", "", "# no heading"])
CONTACTS = st.builds(
    lambda id, channel, site, name, rest, language: NewContact(
        id, channel, {"site": site}, {"name": name, **rest}, language
    ),
    st.sampled_from(["call-1", "a contact/ü"]),
    st.sampled_from(["phone", "chat"]),
    st.sampled_from(["Rome", "Oslo"]),
    NAMES,
    st.dictionaries(st.sampled_from(["callerId", "orders"]), st.sampled_from(["+39", 3, None, {"a": [1]}])),
    st.sampled_from([None, "it", "en-US", "tlh"]),
)


def platform(prompts: FileSystemPrompts = PROMPTS) -> Platform:
    return Platform(prompts, lambda: ADDRESS, "markdown")


def begun(
    of: Platform, flow: CompiledFlow, contact: NewContact, number: int = 0
) -> tuple[ConversationalFlowRunner, bytes]:
    runner = ConversationalFlowRunner.start(
        *(flow, ConversationRef("t", f"c/{number}"), "campaign", contact, LoadedConversation(), of),
        NOW + timedelta(seconds=number, microseconds=number),
    )
    return runner, runner.get_agent_data(contact.contact_id, START)


def shared(runner: ConversationalFlowRunner) -> bool:
    return runner.begun_like is not None


def planned(runner: ConversationalFlowRunner) -> Mapping[str, object]:
    """What a commit would store, and what the next prompt and the next task come to."""
    told: dict[str, object] = {
        "session": runner.session,
        "memory": runner.new_memory,
        "events": list(runner.outbox),
        "jobs": list(runner.jobs),
        "prompt": compose_prompt(runner),
    }
    moved = runner.change_task("written")
    return {**told, "moved": moved, "data": runner.get_agent_data("call-1", None), "then": runner.session}


@given(st.lists(CONTACTS, min_size=2, max_size=6))
def test_a_conversation_begins_as_if_it_were_the_first(contacts: list[NewContact]) -> None:
    keeping = platform()
    for number, contact in enumerate([*contacts, contacts[0]]):
        kept, reply = begun(keeping, OFFICE, contact, number)
        alone, expected = begun(platform(), OFFICE, contact, number)
        assert reply == expected
        assert planned(kept) == planned(alone)
    assert shared(kept)


def test_what_is_kept_holds_nothing_of_a_caller() -> None:  # F46
    of = platform()
    begun(of, OFFICE, NewContact("call-1", "phone", {"site": "Rome"}, {"callerId": "+390612345678"}, None))
    assert len(of.beginnings) == 1
    kept = [of.beginnings.get(key) for key in of.beginnings._kept]  # pyright: ignore[reportPrivateUsage]
    assert "+390612345678" not in repr(kept)
    assert "call-1" not in repr(kept)


SENSITIVE = [{"_id": "v1", "name": "card", "type": "string", "prompt": "the card", "sensitive": True}]


def first_is(task: Callable[..., JsonObject], **changes: Any) -> CompiledFlow:
    others = [aio_task("other", connectedTasks=["first"], channels=None)]
    tasks = [task("first", connectedTasks=["other"], **changes), *others]
    return compile_flow(minimal_version(tasks=tasks, firstTask="first"), "other")


@pytest.mark.parametrize(
    "flow",
    [
        pytest.param(first_is(hum_task), id="a person is looked for"),
        pytest.param(first_is(aio_task, channels=["chat"]), id="the channel leads elsewhere"),
        pytest.param(
            first_is(aio_task, entryCondition={"when": "vars.var_boolean == true"}),
            id="a condition has a say",
        ),
        pytest.param(compile_flow(office(variables=SENSITIVE), "masked"), id="values are masked"),
    ],
)
def test_what_more_happens_at_a_start_is_worked_out_each_time(flow: CompiledFlow) -> None:
    of, contact = platform(), NewContact("call-1", "phone", {"site": "Rome"}, {}, None)
    for number in range(3):
        runner, reply = begun(of, flow, contact, number)
        assert not shared(runner)
        assert reply == begun(platform(), flow, contact, number)[1]


def test_a_beginning_whose_text_was_cut_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    of, contact = platform(), NewContact("call-1", "phone", {"site": "Rome"}, {}, None)
    with monkeypatch.context() as busy:
        busy.setattr(frame, "MAX_ENTRY_OUTPUT_BYTES", 0)
        assert b"cut" in begun(of, OFFICE, contact)[1]
    runner, reply = begun(of, OFFICE, contact, 1)
    assert not shared(runner)
    assert reply == begun(platform(), OFFICE, contact, 1)[1]


def test_what_moves_on_in_the_step_that_begins_it_is_told_as_it_is_then() -> None:
    of, contact = platform(), NewContact("call-1", "chat", {"site": "Rome"}, {}, None)
    begun(of, OFFICE, contact)
    runner, _ = begun(of, OFFICE, contact, 1)
    assert shared(runner)
    assert runner.change_task("written")
    alone, _ = begun(platform(), OFFICE, contact, 1)
    alone.change_task("written")
    assert runner.get_agent_data("call-1", None) == alone.get_agent_data("call-1", None)


def test_beginnings_make_room_for_others() -> None:
    of = platform()
    of.beginnings = Kept(20_000, lambda beginning: beginning.weight)
    for number in range(40):
        begun(of, OFFICE, NewContact("call-1", "phone", {"site": f"site {number}"}, {}, None), number)
    assert 0 < len(of.beginnings) < 10
