"""A version made ready to run: chart, names and texts, built once per content (F13, F22, F23)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias, cast

from flow_engine.conditions.evaluation import Condition
from flow_engine.conditions.language import ConditionMistake
from flow_engine.documents import MINER_SETTINGS, FlowVersion, Task, normalise_name, parse_version
from flow_engine.documents.scalars import LONGEST_S
from flow_engine.errors import CorrectTheInput, Finding, ReloadAndDecide
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.memory import MINER
from flow_engine.runtime.session import Hidden
from flow_engine.runtime.statechart import Chart
from flow_engine.task_types import TaskKind
from flow_engine.variables import VariableIndex, VariableSpec
from flow_engine.vocabulary import Advance, TaskType

DAY_S = 24 * 60 * 60

Writers: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Tasks, by id and in the order of the document, each with the names of tools."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task with what a step needs of it worked out. `required` are variable ids in document order,
    `advances` the tasks that it suggests or goes on to by itself, in the order of `connected`.

    `transfer_tags` are whom the routing of a HUM or AIS task asks for, as (`skills` | `optional_skills`
    | `agents`, values), only the kinds that are set.
    """

    id: str
    name: str
    type: TaskType
    connected: tuple[str, ...]
    channels: frozenset[str] | None
    required: tuple[str, ...]
    tools: tuple[str, ...]
    advances: tuple[tuple[str, Advance], ...]
    transfer_tags: tuple[tuple[str, tuple[str, ...]], ...]
    kind: TaskKind
    document: Task


@dataclass(frozen=True, slots=True)
class CompiledFlow:
    """`names` maps every accepted way to name a task (F4) to its id; `conditions` every condition of the
    document, by its text; `lifetime_s` is F16's expiry. In seconds, 24 hours to 10 years. `moves_by_itself`:
    a connection advances without being asked. `sensitive` are the variables that are shown as masks, by id,
    `ageing` those whose values grow old, `contested` those for which the user is heard beside a tool.
    `writers`: by variable id the tasks whose tools can write it, with these tools; tools that do not tell
    what they write count for custom variables that no tool names. `hears` are the tasks in which a sensitive
    value may be read in what users say."""

    version_id: str
    flow_id: str
    content_hash: str
    document: FlowVersion
    tasks: Mapping[str, TaskPlan]
    names: Mapping[str, str]
    variables: VariableIndex
    chart: Chart
    lifetime_s: int
    conditions: Mapping[str, Condition]
    moves_by_itself: bool
    sensitive: Mapping[str, VariableSpec]
    hears: frozenset[str]
    ageing: Mapping[str, VariableSpec]
    contested: Mapping[str, VariableSpec]
    writers: Mapping[str, Writers]
    _hiding: Kept[tuple[object, ...], CompiledFlow] = field(
        default_factory=lambda: Kept[tuple[object, ...], CompiledFlow](8),
        init=False,
        repr=False,
        compare=False,
    )

    def hiding(self, hidden: Hidden) -> CompiledFlow:
        """The version with these variables sensitive too, also those that it lacks; the same object for the
        same ones."""
        if not hidden:
            return self
        key = tuple(sorted((id, *said) for id, said in hidden.items()))
        known = self._hiding.get(key)
        if known is None:
            variables = VariableIndex(
                replace(spec, sensitive=spec.sensitive or hidden[spec.id][1]) if spec.id in hidden else spec
                for spec in self.variables
            )
            gone = [
                VariableSpec(id, id, kind, sensitive=said)
                for id, (kind, said) in hidden.items()
                if id not in variables.ids
            ]
            known = replace(
                self,
                variables=variables,
                conditions=_conditions_of(self.document, variables),
                sensitive={spec.id: spec for spec in (*variables, *gone) if spec.sensitive},
                hears=_hears(self.document, variables),
            )
            self._hiding.put(key, known)
        return known

    def left_for(self, other: CompiledFlow) -> Hidden:
        """What stays sensitive in a conversation that goes on in that version."""
        own = other.sensitive
        return {id: (spec.type, spec.sensitive) for id, spec in self.sensitive.items() if id not in own}

    @property
    def masks_cards(self) -> bool:
        """Whether card numbers are masked in what is said."""
        return any(spec.sensitive == "card" for spec in self.sensitive.values())

    @property
    def begins_alike(self) -> bool:
        """Whether conversations with a contact of the same kind begin alike: no condition, no connection that
        is taken without being asked for and no mask has a say."""
        return not (self.conditions or self.moves_by_itself or self.sensitive)

    @property
    def by_the_clock(self) -> bool:
        """Whether a condition may come out otherwise a moment later."""
        return any(condition.reads_clock for condition in self.conditions.values())

    def task_named(self, name: str) -> TaskPlan | None:
        """The task of that id, else of that name, however it is spelled (F4); None where there is none."""
        task_id = self.names.get(name) or self.names.get(normalise_name(name))
        return None if task_id is None else self.tasks[task_id]

    def counterpart(self, task: TaskPlan) -> TaskPlan | None:
        """What a task of another version is in this one: the task of that id, else of that name; None where
        there is none."""
        return self.tasks.get(task.id) or self.task_named(task.name)

    def counterparts(self, other: CompiledFlow, mapping: Mapping[str, str]) -> Mapping[str, str]:
        """The ids of another version's tasks with those that they have in this one; `mapping` wins."""
        found = {id: self.counterpart(task) for id, task in other.tasks.items()}
        return {id: task.id for id, task in found.items() if task is not None} | {**mapping}

    def supported_language(self, language: str | None, spoken: str | None = None) -> str | None:
        """The supported language that a BCP 47 tag means: that very one, else one of the same language, if
        of another region: the one that is `spoken` already, the one without a region, the first. None where
        there is none."""
        wanted = (language or "").replace("_", "-").casefold()
        supported = {tag: tag.casefold() for tag in self.document.supported_languages}
        alike = [tag for tag, folded in supported.items() if _main_part(folded) == _main_part(wanted) != ""]

        def nearness(tag: str) -> tuple[bool, bool, bool]:
            folded = supported[tag]
            return folded == wanted, tag == spoken, wanted.startswith(f"{folded}-")

        return max(alike, key=nearness, default=None)


def _main_part(tag: str) -> str:
    return tag.partition("-")[0]


def compile_flow(raw: object, content_hash: str) -> CompiledFlow:
    """Compile a stored document. Raises ReloadAndDecide `version_is_draft` for a draft (F8). `raw` is decoded
    JSON; takes up to seconds for 300 tasks. Raises CorrectTheInput `document_invalid` for what the rules
    refuse."""
    version = parse_version(raw)
    if version.draft:
        raise ReloadAndDecide(
            "version_is_draft",
            f"version {version.id!r} is a draft: drafts are kept and listed, only saved versions run",
            accepted=("a version saved with draft: false",),
        )
    plans = {task.id: plan_of(task, version.ways_from(task)) for task in version.tasks}
    variables = VariableIndex(
        VariableSpec(
            *(v.id, v.name, v.type, v.prompt, tuple(v.enum_values), v.sensitive, v.fresh_for),
            precedence=None if v.type == "custom" else v.precedence,
        )
        for v in version.variables
    )
    by_name = {normalise_name(plan.name): plan.id for plan in plans.values()}
    closures = [version.closure_config, *(task.closure_config for task in version.tasks)]
    limits = [closure.conversation_time_limit or 0 for closure in closures]
    # A day at least, checked when the version is read.
    kept_s = inf if version.retention is None else version.retention.days * DAY_S
    return CompiledFlow(
        version_id=version.id,
        flow_id=version.conversational_flow_id,
        content_hash=content_hash,
        document=version,
        tasks=plans,
        names=by_name | {task_id: task_id for task_id in plans},
        variables=variables,
        chart=Chart.of(list(plans.values()), version.first_task),
        lifetime_s=int(min(max([DAY_S, *limits]), LONGEST_S, kept_s)),
        conditions=_conditions_of(version, variables),
        moves_by_itself=any(how == "auto" for plan in plans.values() for _, how in plan.advances),
        sensitive={spec.id: spec for spec in variables if spec.sensitive},
        hears=_hears(version, variables),
        ageing={spec.id: spec for spec in variables if spec.fresh_for is not None},
        contested={spec.id: spec for spec in variables if spec.precedence is not None},
        writers=_writers_of(version),
    )


def miner_settings(version: FlowVersion, task: Task) -> Mapping[str, object]:
    """What `aiHelpers` say of reading along in a task: its own helper wins over the version's; of what
    `MINER_SETTINGS` do not take it is as if it were absent. JSON."""
    merged: dict[str, object] = {}
    for helper in (*version.ai_helpers, *task.ai_helpers):
        fields = cast("Mapping[str, object]", helper.model_dump(by_alias=True))
        if fields.get("name") == MINER:
            merged |= fields
    return {name: merged[name] for name, (_, fits) in MINER_SETTINGS.items() if fits(merged.get(name))}


def reads_along(version: FlowVersion, task: Task) -> bool:
    """Whether the dialogue of a task is read for values."""
    return miner_settings(version, task).get("enabled") is not False


def _hears(version: FlowVersion, variables: VariableIndex) -> frozenset[str]:
    if not any(spec.sensitive and spec.type != "custom" for spec in variables):
        return frozenset()
    return frozenset(task.id for task in version.tasks if reads_along(version, task))


def _writers_of(version: FlowVersion) -> dict[str, Writers]:
    naming: dict[str, dict[str, list[str]]] = {}
    silent: dict[str, list[str]] = {}
    for task in version.tasks:
        for tool in (tool for selection in task.mcp_tool_selection for tool in selection.selected_tools):
            written = tool.written
            for by_task in (silent,) if written is None else [naming.setdefault(v, {}) for v in written]:
                by_task.setdefault(task.id, []).append(tool.tool_name)
    of_custom = {variable.id: silent for variable in version.variables if variable.type == "custom"}
    return {
        var_id: tuple((task_id, tuple(tools)) for task_id, tools in by_task.items())
        for var_id, by_task in (of_custom | naming).items()
    }


def _conditions_of(version: FlowVersion, variables: VariableIndex) -> dict[str, Condition]:
    """Raises CorrectTheInput `document_invalid`: what guards a task and cannot be read must not let pass."""
    conditions: dict[str, Condition] = {}
    for placed in version.conditions():
        if placed.when not in conditions:
            try:
                conditions[placed.when] = Condition.compile(placed.when, variables)
            except ConditionMistake as mistake:
                finding = Finding(placed.pointer, "condition_syntax", str(mistake))
                raise CorrectTheInput(
                    "document_invalid",
                    f"version {version.id!r} has a condition that cannot be read",
                    [finding],
                ) from mistake
    return conditions


def plan_of(task: Task, connected: tuple[str, ...]) -> TaskPlan:
    """What a step needs of a task, worked out once. `connected` are the tasks that can follow it."""
    routing = task.routing_parameters if task.kind.routed else None
    tags = {
        "skills": routing.agent_skills if routing else (),
        "optional_skills": routing.agent_optional_skills if routing else (),
        "agents": routing.agent_ids if routing else (),
    }
    return TaskPlan(
        id=task.id,
        name=task.effective_name,
        type=task.type,
        connected=connected,
        channels=None if task.channels is None else frozenset(task.channels),
        required=tuple(p.variable_id for p in task.transition_parameters if p.required),
        tools=tuple(tool.tool_name for chosen in task.mcp_tool_selection for tool in chosen.selected_tools),
        advances=tuple(
            (target, way.advance)
            for target in connected
            if (way := task.connection_conditions.get(target)) is not None and way.advance is not None
        ),
        transfer_tags=tuple((kind, tuple(values)) for kind, values in tags.items() if values),
        kind=task.kind,
        document=task,
    )
