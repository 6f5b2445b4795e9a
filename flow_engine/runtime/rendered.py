"""The texts of a task as it is entered (F23): its templates, rendered from what is known of the conversation.

Most conversations of a version give its templates the same to read: what came of it is kept, by all that
they read, and nothing is rendered twice.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

import orjson

from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.session import Session
from flow_engine.templates import VALUES, Allowance, TemplateScope, compile_template, render_source

TEXT_BYTES = 16 * 1024 * 1024
"""Of rendered texts that a process keeps; up to four bytes a character."""
TASKS_KNOWN = 8_192
"""Of how many tasks it is kept what their templates read."""

_HEADING = re.compile(r" *#{1,6} ")
_BY_THE_KEY = ("$channel", "$flow", "$language", "$task")
"""Roots that follow from what every text of a task is kept by."""

Reads = Sequence[tuple[str, Sequence[str]]]
"""Paths in what templates see: a root and the keys below it."""


def reads_of(sources: Iterable[str], *, besides: Collection[str]) -> Reads:
    """What templates read, but for the roots of `besides`."""
    every = {read for source in sources for read in compile_template(source, lenient=True).reads}
    return [(root, keys) for root, *keys in sorted(every) if root not in besides]


def values_read(
    reads: Reads,
    flow: CompiledFlow,
    task: TaskPlan,
    campaign_id: str,
    contact: Mapping[str, object],
    memory: Mapping[str, MemoryEntry],
    tenant: Mapping[str, object],
) -> bytes:
    """What is there at the paths now, but for what a version fixes: its templates that read the same are
    rendered alike, in a channel and a language. `contact` are the caller's data. JSON, empty for no paths."""
    if not reads:
        return b""
    roots: Mapping[str, object] = {
        "$tenant": tenant,
        "$contact": contact,
        "$flow": {"campaignId": campaign_id},
        "$task": {"id": task.id, "name": task.name, "type": task.type},
    }
    return orjson.dumps(
        [_value_of(flow, memory, keys) if root == VALUES else _at(roots[root], keys) for root, keys in reads]
    )


class TaskTexts:
    """The texts that were rendered last, at most `most_bytes` of them."""

    def __init__(self, most_bytes: int = TEXT_BYTES) -> None:
        self._kept = Kept[tuple[str | bytes, ...], Mapping[str, object]](most_bytes, _weight)
        self._reads = Kept[tuple[str, str], Reads](TASKS_KNOWN)

    def of(
        self,
        flow: CompiledFlow,
        task: TaskPlan,
        session: Session,
        memory: Mapping[str, MemoryEntry],
        tenant: Mapping[str, object],
    ) -> tuple[Mapping[str, object], bool]:
        """The texts of a `TaskEntry`, by field, for the contact of `session` and these values; and whether
        they are whole, not cut by a bound."""
        contact, campaign_id = session.latest_contact, session.campaign_id
        reads = self.reads(flow, task)
        key = (
            *(flow.content_hash, task.id, contact.channel, session.language, campaign_id),
            values_read(reads, flow, task, campaign_id, contact.data, memory, tenant),
        )
        texts = self._kept.get(key)
        if texts is not None:
            return texts, True
        allowance = Allowance()
        texts = render_task(flow, task, scope_of(flow, task, session, memory, tenant), allowance)
        if not allowance.cut:
            self._kept.put(key, texts)
        return texts, not allowance.cut

    def reads(self, flow: CompiledFlow, task: TaskPlan) -> Reads:
        """What the templates of a task read beside what each text is kept by anyway."""
        reads = self._reads.get((flow.content_hash, task.id))
        if reads is None:
            sources = (flow.document.global_prompt, task.document.prompt, *_sources(flow, task).values())
            reads = reads_of(sources, besides=_BY_THE_KEY)
            self._reads.put((flow.content_hash, task.id), reads)
        return reads


def _weight(texts: Mapping[str, object]) -> int:
    described = cast("Mapping[str, str]", texts["descriptions"])
    return 4 * sum(map(len, (*map(str, texts.values()), *described.values())))


def _sources(flow: CompiledFlow, task: TaskPlan) -> Mapping[str, str]:
    return {t: flow.tasks[t].document.description for t in task.connected}


def _at(value: object, keys: Sequence[str]) -> Sequence[object]:
    """The value of a path in a list, an empty one where there is none: null is a value."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return ()
        value = value[key]  # pyright: ignore[reportUnknownVariableType]
    return (value,)  # pyright: ignore[reportUnknownVariableType]


def _value_of(flow: CompiledFlow, memory: Mapping[str, MemoryEntry], keys: Sequence[str]) -> object:
    """The value of a variable, by id or name; of all, where the template works out which."""
    if not keys:
        return {var_id: entry.value for var_id, entry in memory.items()}
    entry = memory.get(keys[0])
    if entry is None and (spec := flow.variables.resolve(keys[0])) is not None:
        entry = memory.get(spec.id)
    return () if entry is None else (entry.value,)


def scope_of(
    flow: CompiledFlow,
    task: TaskPlan,
    session: Session,
    memory: Mapping[str, MemoryEntry],
    tenant: Mapping[str, object],
) -> TemplateScope:
    """What the templates of `task` see: variables by id and by name, `memory` gives their values now.

    Values and contact data come from callers, and prompts are trusted text: their texts stay on one line, and
    begin no heading.
    """
    return texts_scope(
        {v.id: v.name for v in flow.variables},
        {var_id: entry.value for var_id, entry in memory.items()},
        session,
        tenant,
        flow={"id": flow.flow_id, "versionId": flow.version_id, "campaignId": session.campaign_id},
        task={"id": task.id, "name": task.name, "type": task.type},
    )


def texts_scope(
    names: Mapping[str, str],
    memory: Mapping[str, object],
    session: Session,
    tenant: Mapping[str, object],
    *,
    flow: Mapping[str, object],
    task: Mapping[str, object],
) -> TemplateScope:
    """`scope_of` of what is not compiled: `names` and the values in `memory`, JSON, by variable id."""
    contact = session.latest_contact
    values = {key: _inert(value) for key, value in memory.items()}
    by_name = {name: values.get(var_id) for var_id, name in names.items()}
    return TemplateScope(
        variables={name: name for name in names.values()} | dict(names),
        values=by_name | values,
        tenant=tenant,
        contact=cast("Mapping[str, object]", _inert(contact.data)),
        channel=contact.channel,
        language=session.language,
        flow=flow,
        task=task,
    )


def _inert(value: object) -> object:
    """The same JSON, its texts and keys without line breaks and heading signs."""
    if isinstance(value, str):
        text = value if value.isprintable() else " ".join(value.split())
        return f"\\{text}" if _HEADING.match(text) else text
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return {cast("str", _inert(key)): _inert(inner) for key, inner in members.items()}
    if isinstance(value, (list, tuple)):
        return [_inert(inner) for inner in cast("Sequence[object]", value)]
    return value


def render_task(
    flow: CompiledFlow, task: TaskPlan, scope: TemplateScope, allowance: Allowance
) -> Mapping[str, object]:
    """The texts of a `TaskEntry`, by field; what they may spend, they spend together.

    Compiled at their first use and kept: most tasks of a version are entered rarely, or never. Bounded by an
    `Allowance` of CPU seconds and bytes; never raises, a template that cannot be rendered stands as its own
    source.
    """
    described = _sources(flow, task).items()
    return {
        "global_prompt": render_source(flow.document.global_prompt, scope, allowance).text,
        "prompt": render_source(task.document.prompt, scope, allowance).text,
        "descriptions": {t: render_source(source, scope, allowance).text for t, source in described},
    }
