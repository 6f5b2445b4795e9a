"""Texts that are kept are those that would be rendered anew, whatever their templates read (F22, F23)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.rendered import TaskTexts
from flow_engine.runtime.session import Contact, Session, TaskEntry
from flow_engine.templates import compile_template
from tests.flow_engine.documents.samples import aio_task, minimal_version

NOW = datetime(2026, 1, 15, 9, tzinfo=UTC)
SOURCES = (
    "plain",
    "{{ $tenant.a }}",
    "{{ $tenant.a.b }}|{{ $tenant['b'] }}",
    "{{ $tenant.a[0] }}",
    "{{ $tenant[$contact.b] }}",
    "{{ $contact }}",
    "{{ $contact.a | default('nobody') }}",
    "{{ $values.var_string }}|{{ $vars.var_string }}",
    "{{ $values['a string'].b }}",
    "{{ $values[$tenant.b] }}",
    "{% for each in $tenant.a %}{{ each.b }}{{ loop.index }}{% endfor %}",
    "{% if $values.var_number is defined %}{{ $values.var_number }}{% else %}none{% endif %}",
    "{% for each in [1, 2] if $contact.a %}{{ $tenant.b }}{% endfor %}",
    "{{ $flow.campaignId }} {{ $task.name }} {{ $language }} {{ $channel }}",
    "{{ $values.unknown_name }}{{ $values.other.b }}",
    "{{ broken",
)
VALUES = st.sampled_from(
    (None, "", "b", "var_string", 0, 1, 1.0, True, False, [], [{"b": 1}], {"b": "x"}, {"b": None}, {"b": {}})
)
SPEAKERS = {"language": ("en-US", "it-IT"), "campaign": ("one", "two")}
START: dict[str, Any] = {
    "tenant.a": [{"b": 1}],
    "tenant.b": "var_string",
    "contact.a": "x",
    "contact.b": "b",
    "values.var_string": {"b": "y"},
    "values.var_number": 1,
    "language": "en-US",
    "campaign": "one",
}
"""What a conversation is of; a step changes some of it. `...` takes it away."""
STEPS = st.sampled_from([*START, "values.other"]).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.sampled_from(SPEAKERS[name]) if name in SPEAKERS else VALUES | st.just(...),
    )
)


def part(facts: dict[str, Any], root: str) -> dict[str, Any]:
    named = {key.partition(".")[2]: value for key, value in facts.items() if key.startswith(root)}
    return {key: value for key, value in named.items() if value is not ...}


def session(data: dict[str, Any], language: str, campaign: str) -> Session:
    return Session(
        conversation_id="c",
        tenant_id="t",
        campaign_id=campaign,
        flow_id="f",
        version_id="v",
        content_hash="hash",
        revision=1,
        configuration=("active", "active/reception"),
        contacts={"call": Contact(channel="phone", status="active", started_at=NOW, data=data)},
        active_contact_id="call",
        language=language,
        started_at=NOW,
        task=TaskEntry(task_id="reception", entered_at=NOW, global_prompt="", prompt="", descriptions={}),
    )


@cache
def of_every_source() -> CompiledFlow:
    """A task a source, each with the next one as the description of a neighbour."""
    ids = [f"t{number}" for number in range(len(SOURCES))]
    tasks = [
        aio_task(ids[n], prompt=source, description=source, connectedTasks=[ids[n - 1]])
        for n, source in enumerate(SOURCES)
    ]
    return compile_flow(minimal_version(tasks=tasks, firstTask="t0", globalPrompt=SOURCES[1]), "hash")


@settings(max_examples=20)
@given(st.lists(STEPS, min_size=4, max_size=10))
def test_kept_texts_are_those_that_would_be_rendered_anew(steps: list[tuple[str, Any]]) -> None:
    flow, kept, facts = of_every_source(), TaskTexts(), START
    for name, value in steps:
        facts = {**facts, name: value}
        memory = {
            var_id: MemoryEntry("custom", "tool", NOW, value, "call", None)
            for var_id, value in part(facts, "values").items()
        }
        caller = session(part(facts, "contact"), facts["language"], facts["campaign"])
        for task in flow.tasks.values():
            known = (flow, task, caller, memory, part(facts, "tenant"))
            assert kept.of(*known) == TaskTexts().of(*known), task.id


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{{ $tenant.name }} {{ $vars.a }}", {("$tenant", "name")}),
        ("{{ $contact.a['b'].c }}", {("$contact", "a", "b", "c")}),
        ("{{ $tenant.sites[0].city }}", {("$tenant", "sites")}),
        ("{{ $tenant[$contact.key] }}", {("$tenant",), ("$contact", "key")}),
        ("{{ $values.a.b }} {{ $values[$channel] }}", {("$values", "a"), ("$values",), ("$channel",)}),
        ("{% for site in $tenant.sites %}{{ site.city }}{% endfor %}", {("$tenant", "sites")}),
        ("no tag", set[tuple[str, ...]]()),
    ],
)
def test_a_template_tells_on_what_its_text_depends(source: str, reads: set[tuple[str, ...]]) -> None:
    assert compile_template(source).reads == reads


def test_a_text_that_was_cut_is_rendered_anew() -> None:
    """The next one may find more time."""
    loop = "{% for a in $tenant.a %}{% for b in $tenant.a %}.{% endfor %}{% endfor %}"
    flow = compile_flow(minimal_version(tasks=[aio_task(prompt=loop)]), "hash")
    texts, known = TaskTexts(), (flow, flow.tasks["reception"], session({}, "en-US", "one"), {})
    cut, whole = texts.of(*known, {"a": [0] * 400})
    assert "template cut" in str(cut["prompt"])
    assert not whole
    assert texts.of(*known, {"a": [0] * 400})[0] is not cut
    short, whole = texts.of(*known, {"a": [0] * 3})
    assert whole
    assert texts.of(*known, {"a": [0] * 3})[0] is short
