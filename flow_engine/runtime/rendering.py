"""What templates see, and the texts of a task as they are rendered at its entry (F22, F23)."""

from __future__ import annotations

from collections.abc import Mapping

from flow_engine.runtime.compiled import CompiledFlow, TaskPlan
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.session import Session
from flow_engine.templates import TemplateScope, compile_template


def scope_of(
    flow: CompiledFlow,
    session: Session,
    memory: Mapping[str, MemoryEntry],
    tenant: Mapping[str, object],
) -> TemplateScope:
    """Variables by id and by name; `memory` gives the values at this moment."""
    contact, task = session.latest_contact, flow.tasks[session.task.task_id]
    names = {v.id: v.name for v in flow.variables}
    values = {key: entry.value for key, entry in memory.items()}
    by_name = {name: values.get(var_id) for var_id, name in names.items()}
    return TemplateScope(
        variables={name: name for name in names.values()} | names,
        values=by_name | values,
        tenant=tenant,
        contact=contact.data,
        channel=contact.channel,
        language=session.language,
        flow={"id": flow.flow_id, "versionId": flow.version_id, "campaignId": session.campaign_id},
        task={"id": task.id, "name": task.name, "type": task.type},
    )


def render_task(flow: CompiledFlow, task: TaskPlan, scope: TemplateScope) -> dict[str, object]:
    """The texts of a `TaskEntry`, by field."""
    descriptions = {t: flow.tasks[t].document.description for t in task.connected}
    return {
        "global_prompt": _rendered(flow.document.global_prompt, scope),
        "prompt": _rendered(task.document.prompt, scope),
        "descriptions": {t: _rendered(source, scope) for t, source in descriptions.items()},
    }


def _rendered(source: str, scope: TemplateScope) -> str:
    """Compiled at its first use and kept: most tasks of a version are entered rarely, or never."""
    return compile_template(source, lenient=True).render(scope)
