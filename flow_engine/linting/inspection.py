"""A version with what several rules ask of it, each worked out once and only when asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, cast

from flow_engine import documents
from flow_engine.conditions import language, review, syntax
from flow_engine.documents.base import property_name
from flow_engine.documents.findings import listed
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.faults import read_condition
from flow_engine.linting.graph import Barriers, Exploration, explore, explore_arrivals
from flow_engine.linting.version_graph import VersionGraph
from flow_engine.templates import VALUES, Compared, Template, compile_template, is_template
from flow_engine.variables import VariableIndex, VariableSpec

MOST_BITS = 6
"""Variables that are told apart along a path; more share the bit for any tool."""
MANY_MOVES = 2_000
"""Connections of a version beyond which they are not told apart."""
MANY_PARTS = 3_000
"""Parts of conditions and templates beyond which it is not asked whether each can be true."""


_RENDERED: Mapping[type[documents.Document], tuple[str, ...]] = {
    documents.FlowVersion: ("global_prompt",),
    documents.BaseSttConfig: ("provider",),
    documents.BaseTtsConfig: ("provider", "voice"),
    documents.LlmConfig: ("model",),
    documents.Task: ("prompt", "description"),
}
"""By their kind: the attributes of objects that are templates."""
_PROSE = (documents.FlowVersion, documents.Task)


@dataclass(frozen=True, slots=True)
class PlacedTemplate:
    pointer: str
    source: str
    template: Template


class ToolParameterUse(NamedTuple):
    """A parameter of a tool that a task selects. `pointer` is where what is assigned to it stands, RFC 6901;
    `variable` the one that the value comes from, None for fixed values, prompts and unknown variables.
    """

    pointer: str
    task_id: str
    server: str
    tool: str
    parameter: documents.McpToolParameter
    variable: documents.Variable | None


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """A condition that can be read, whose names are known and whose types compare."""

    placed: documents.PlacedCondition
    tree: language.Tree


@dataclass(frozen=True)
class Inspection(VersionGraph):
    """Of a version that passed the checks; what names something unknown all the same is passed over."""

    environment: documents.ReviewEnvironment

    @cached_property
    def exploration(self) -> Exploration:
        required = {
            task.id: [variable for _, variable in self.requirements(task)] for task in self.version.tasks
        }
        barriers = Barriers(
            writing={task_id: self.bits_written(task_id) for task_id in self.tasks},
            needing={
                t: sum({self.bit_of(v.id) for v in needed if v.by_tools}) for t, needed in required.items()
            },
            impossible={t for t, needed in required.items() if any(map(self.never_stored, needed))}
            | {c.placed.task_id or "" for c in self.read_conditions if self._closes(c, "task")},
            closed=frozenset(
                (c.placed.task_id or "", c.placed.target_id or "")
                for c in (
                    *(c for c in self.read_conditions if self._closes(c, "connection")),
                    *(connection for connection, _ in self.contradictions),
                )
            ),
        )
        return explore_arrivals(self.version.first_task, self.connections, barriers)

    @cached_property
    def _bits(self) -> Mapping[str, int]:
        """A bit for each of the first variables of tools that some task requires, where tools tell what they
        write."""
        told = any(tool.written is not None for tools in self._chosen.values() for tool in tools)
        if not told or sum(map(len, self.connections.values())) > MANY_MOVES:
            return {}
        needed = (v for task in self.version.tasks for _, v in self.requirements(task))
        wanted = dict.fromkeys(v.id for v in needed if v.by_tools)
        return {v: 2 << number for number, v in enumerate(list(wanted)[:MOST_BITS])}

    @cached_property
    def _chosen(self) -> Mapping[str, Sequence[documents.McpToolParametersMap]]:
        return {
            task.id: [tool for selection in task.mcp_tool_selection for tool in selection.selected_tools]
            for task in self.version.tasks
        }

    def bit_of(self, var_id: str) -> int:
        """The bit by which an exploration tells that a variable of tools may have been written."""
        return self._bits.get(var_id, 1)

    def bits_written(self, task_id: str) -> int:
        """Of what the tools of a task may write; bit 0 where it selects any."""
        tools = self._chosen[task_id]
        written = (bit for v, bit in self._bits.items() if any(tool.may_write(v) for tool in tools))
        return sum(written, start=1 if tools else 0)

    @cached_property
    def writers(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """By variable the tools that name it among what they write, as (task id, tool)."""
        found: dict[str, list[tuple[str, str]]] = {}
        for task_id, tools in self._chosen.items():
            for tool in tools:
                for var_id in tool.written or ():
                    found.setdefault(var_id, []).append((task_id, tool.tool_name))
        return found

    # --- conditions -----------------------------------------------------------------------------

    @cached_property
    def _specs(self) -> VariableIndex:
        return VariableIndex(
            VariableSpec(v.id, v.name, v.type, enum_values=tuple(v.enum_values), sensitive=v.sensitive)
            for v in self.version.variables
        )

    @cached_property
    def unwritten(self) -> Set[str]:
        """Ids of the variables that only tools write, and that none which can be reached writes."""
        written = [tool.written for task_id in self.reachable for tool in self._chosen[task_id]]
        told = {v for each in written for v in each or ()}
        by_tools = {v.id for v in self.version.variables if v.by_tools}
        return set[str]() if None in written else by_tools - told

    @cached_property
    def _stored(self) -> VariableIndex:
        """As `_specs`, but what never has a value is like an enum without members."""
        specs = (replace(s, type="enum") if s.id in self.unwritten else s for s in self._specs)
        return VariableIndex(specs)

    @cached_property
    def _conditions(self) -> tuple[list[ReadCondition], list[LintFinding]]:
        """Those that say something, and what is wrong with the others."""
        read: list[ReadCondition] = []
        faults: list[LintFinding] = []
        names = review.Names(self._specs, self.tasks.keys())
        for placed in self.version.conditions():
            tree, problems = read_condition(placed.pointer, placed.when, names)
            faults += problems
            if tree is not None and not problems:
                read.append(ReadCondition(placed, tree))
        return read, faults

    @property
    def read_conditions(self) -> list[ReadCondition]:
        return self._conditions[0]

    @property
    def condition_faults(self) -> list[LintFinding]:
        """RFC 6901 pointers, each to a `when`."""
        return self._conditions[1]

    @cached_property
    def _budget(self) -> review.Budget:
        return review.Budget()

    @cached_property
    def _parts(self) -> Iterator[int]:
        return iter(range(MANY_PARTS))

    @cached_property
    def _verdicts(self) -> dict[tuple[str, str], bool]:
        return {}

    def can_hold(self, condition: ReadCondition) -> bool:
        """Whether some values make it true, as far as that can be told."""
        return self._verdict(condition, "true")

    def can_fail(self, condition: ReadCondition) -> bool:
        """Whether some values, or missing ones, make it anything but true, as far as that can be told."""
        return self._verdict(condition, "not_true")

    def _verdict(self, condition: ReadCondition, wanted: Literal["true", "not_true"]) -> bool:
        key = (condition.placed.pointer, wanted)
        if key not in self._verdicts:
            known = self._never_entered(condition) if wanted == "true" else []
            self._verdicts[key] = self._possible([(condition.tree, wanted), *known], condition.placed)
        return self._verdicts[key]

    def _never_entered(self, condition: ReadCondition) -> list[review.Goal]:
        """Of the tasks whose entries a condition counts, those that lie behind what it stands before: it has
        to let pass for a first time, when none of them was entered."""
        placed = condition.placed
        entered = (placed.target_id or placed.task_id) or ""
        only_way = placed.target_id is None or len(self.offered_by.get(entered, ())) == 1
        counts = [c for c in language.atoms(condition.tree) if isinstance(c, language.Count)]
        if placed.of not in ("task", "connection") or not (counts and only_way):
            return []
        if entered == self.version.first_task or sum(map(len, self.connections.values())) > MANY_MOVES:
            return []
        edges = {task_id: targets for task_id, targets in self.connections.items() if task_id != entered}
        before = explore(self.version.first_task, edges).keys() - {entered}
        return [
            (syntax.Comparison(count, "==", language.Constant(0)), "true")
            for count in counts
            if count.of == "entries" and count.task_id not in before
        ]

    def part_can_hold(self, part: language.Part, placed: documents.PlacedCondition | None = None) -> bool:
        """The same of a part of a condition or template, of the first few thousand that are asked for."""
        return next(self._parts, None) is None or self._possible([(part, "true")], placed)

    def _closes(self, condition: ReadCondition, of: Literal["task", "connection"]) -> bool:
        return condition.placed.of == of and not self.can_hold(condition)

    @cached_property
    def contradictions(self) -> tuple[tuple[ReadCondition, ReadCondition], ...]:
        """Connections with the condition of their target where both can hold, and never together."""
        pairs = (
            (c, self._by_place["task", c.placed.target_id, None])
            for c in self.read_conditions
            if c.placed.of == "connection" and ("task", c.placed.target_id, None) in self._by_place
        )
        return tuple(
            (connection, entry)
            for connection, entry in pairs
            if self.can_hold(connection)
            and self.can_hold(entry)
            and not self._possible([(connection.tree, "true"), (entry.tree, "true")], connection.placed)
        )

    def conditions_between(self, source: str, target: str) -> list[ReadCondition]:
        """The conditions on the way from a task to another, as far as they can be read: the connection's and
        the target's own."""
        places = (("connection", source, target), ("task", target, None))
        return [self._by_place[place] for place in places if place in self._by_place]

    @cached_property
    def _by_place(self) -> Mapping[tuple[str, str | None, str | None], ReadCondition]:
        return {(c.placed.of, c.placed.task_id, c.placed.target_id): c for c in self.read_conditions}

    def can_hold_together(self, conditions: Sequence[ReadCondition]) -> bool:
        """Whether some values make all of them true, as far as that can be told."""
        goals: list[review.Goal] = [(condition.tree, "true") for condition in conditions]
        return review.can_hold(goals, self._specs, {}, self._budget)

    def _possible(self, goals: Sequence[review.Goal], placed: documents.PlacedCondition | None) -> bool:
        """With what is known when it is asked: the channel, the language, what the entered task requires, and
        that the task which is left was entered. A requirement that can never have a value is a fault of its
        own."""
        if placed is None:
            return review.can_hold(goals, self._stored, self._domains(self.version.channels), self._budget)
        entered = placed.target_id or (placed.task_id if placed.of == "task" else None)
        task = self.tasks.get(entered or placed.task_id or "")
        channels = [c for c in self.version.channels if not (task and task.channels) or c in task.channels]
        known: list[review.Goal] = []
        if entered is not None and task is not None:
            known = [
                (syntax.Lone(language.Has(language.Reference("vars", (variable.id,)))), "true")
                for _, variable in self.requirements(task)
                if not self.never_stored(variable) and variable.id not in self.unwritten
            ]
        if placed.of != "task" and placed.task_id is not None:
            count = language.Count("entries", placed.task_id)
            known.append((syntax.Comparison(count, ">=", language.Constant(1)), "true"))
        return review.can_hold([*goals, *known], self._stored, self._domains(channels), self._budget)

    def _domains(self, channels: Sequence[str]) -> Mapping[language.Reference, Sequence[str]]:
        domains = {
            language.Reference("channel"): channels,
            language.Reference("language"): self.version.supported_languages,
        }
        return {reference: names for reference, names in domains.items() if names}

    def comparison_of(self, compared: Compared) -> syntax.Comparison[language.Operand] | None:
        """What a template compares, as conditions do. None where their values are others: dates, phones and
        masks are texts there, and nothing is known of what tools store."""
        root, *path = compared.path
        spec = self._specs.resolve(path[0]) if root == VALUES and len(path) == 1 else None
        if root == VALUES and (spec is None or spec.sensitive or spec.type in ("custom", "date", "phone")):
            return None
        reference = language.Reference("vars" if spec else cast("language.Root", root[1:]), tuple(path))
        return syntax.Comparison(reference, compared.sign, language.Constant(compared.constant))

    def unwritten_told(self, tree: language.Tree) -> str:
        """`; no tool …` where a condition reads what never has a value, empty for all else. One line."""
        read = (atom for atom in language.atoms(tree) if isinstance(atom, language.Reference))
        specs = (self._specs.resolve(atom.path[0]) for atom in read if atom.root == "vars")
        names = {spec.name for spec in specs if spec is not None and spec.id in self.unwritten}
        return f"; no tool that is selected writes {listed(names)}" if names else ""

    def members_told(self, operand: language.Operand) -> str:
        """`; it has …` for what has a few values only, empty for all else. One line."""
        if not isinstance(operand, language.Reference):
            return ""
        known = self._domains(self.version.channels).get(operand, ())
        spec = self._specs.resolve(operand.path[0]) if operand.root == "vars" else None
        if spec is not None and spec.type == "enum":
            return f"; it has {listed(map(str, spec.enum_values))}"
        return f"; it has {listed(known)}" if known else ""

    def condition_pointer(self, number: int, target: str) -> str:
        """Of a connection's entry in the task of that number. An RFC 6901 pointer."""
        return pointer("tasks", number, "connectionConditions", target)

    @cached_property
    def templates(self) -> tuple[PlacedTemplate, ...]:
        """Everything that is rendered, with its place: prompts, descriptions, providers, voices, models.
        Places are RFC 6901 pointers. What cannot be compiled has its problems, nothing is raised."""
        texts = (
            (self.place_of(part, property_name(name)), getattr(part, name), isinstance(part, _PROSE))
            for part in self.objects
            for name in _RENDERED.get(type(part), ())
        )
        return tuple(
            PlacedTemplate(place, text, compile_template(text, lenient=True))
            for place, text, prose in texts
            # without a tag the settings of voices and models are passed on as they are
            if text is not None and (prose or is_template(text))
        )

    @cached_property
    def tool_parameters(self) -> tuple[ToolParameterUse, ...]:
        """Every parameter of every selected tool, in the order of the document."""
        return tuple(
            ToolParameterUse(
                self.place_of(parameter, "assignmentValue"),
                task.id,
                selection.mcp_server_name,
                tool.tool_name,
                parameter,
                self.variables.get(parameter.assignment_value)
                if parameter.assignment_strategy == "variable"
                else None,
            )
            for task in self.version.tasks
            for selection in task.mcp_tool_selection
            for tool in selection.selected_tools
            for parameter in tool.tool_parameters
        )

    @cached_property
    def objects(self) -> Sequence[documents.Document]:
        """Every object of the version, itself among them, in the order of the document."""
        waiting: list[documents.Document] = [self.version]
        found: list[documents.Document] = []
        while waiting:
            found.append(waiting.pop())
            for _, parts in reversed(_parts_of(found[-1])):
                if isinstance(parts, tuple):
                    waiting += parts[::-1]
                elif isinstance(parts, dict):
                    waiting += reversed(parts.values())
                elif isinstance(parts, documents.Document):
                    waiting.append(parts)
        return found

    @cached_property
    def _places(self) -> Mapping[int, tuple[str | int, ...]]:
        places: dict[int, tuple[str | int, ...]] = {id(self.version): ()}
        for whole in self.objects:
            for name, parts in _parts_of(whole):
                place = (*places[id(whole)], name)
                if isinstance(parts, tuple | dict):
                    items = enumerate(parts) if isinstance(parts, tuple) else parts.items()
                    places |= {id(part): (*place, key) for key, part in items}
                else:
                    places[id(parts)] = place
        return places

    def place_of(self, part: documents.Document, *below: str) -> str:
        """Of one of the objects, or of what is below it: an RFC 6901 pointer."""
        return pointer(*self._places[id(part)], *below)


_Parts: TypeAlias = (
    tuple[documents.Document, ...] | Mapping[str, documents.Document] | documents.Document | None
)


def _parts_of(whole: documents.Document) -> list[tuple[str, _Parts]]:
    """What the document holds right below one of its objects, by property. What the schema leaves unread,
    such as the `routingParameters` of an AIO task, is none of it."""
    names, held = whole.attributes_with(documents.Document), whole.model_fields_set
    parts = ((property_name(name), getattr(whole, name)) for name in names if name in held)
    return [(name, part) for name, part in parts if _is_read(part)]


def _is_read(part: object) -> bool:
    if isinstance(part, dict):
        entries = cast("dict[str, object]", part).values()
        return all(isinstance(entry, documents.Document) for entry in entries)
    return isinstance(part, tuple | documents.Document)


Rule: TypeAlias = Callable[[Inspection], Findings]
"""A rule is pure: the same version in the same environment gives the same findings."""
