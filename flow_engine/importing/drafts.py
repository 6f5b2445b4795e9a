"""What an importer fills: tasks, ways, variables and tools; and what of the original is left out.

Everything that the original does not say has the value that the engine would be given by hand at first:
phone and chat, one contact a conversation, the presets of the media settings.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from flow_engine.conditions.language import (
    ConditionMistake,
    Constant,
    Reference,
    atoms,
    operand_text,
    parse,
)
from flow_engine.conditions.review import Names, problems_of
from flow_engine.documents.findings import quoted
from flow_engine.documents.references import normalise_name
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.importing.elements import Alternative, TaskDraft, WayDraft, identifier, numbered, plain_text
from flow_engine.importing.foreign import Place, Remark
from flow_engine.variables import VariableIndex, VariableSpec
from flow_engine.vocabulary import VariableType

TOOLS: Final = "imported-tools"
"""Name of the MCP server of all tools that the original called by itself, at an address that is nobody's."""
_TOOLS_URL: Final = "https://tools.invalid/mcp"
_ROUTING_TIMEOUT_S: Final = 60
_PROMPTS: Final = {"en": "en-US", "it": "it-IT", "es": "es-ES"}
"""Languages of the platform's own prompts, by the first two letters of the original's."""
_FIRST_VALUES: Final[Mapping[str, object]] = {
    "draft": True,
    "schemaVersion": "1.0.0",
    "channels": ["phone", "chat"],
    "mandatoryChannels": [],
    "closureConfig": {"multiContact": False},
    "mediaConfig": {
        "audio": {"presetId": "default", "courtesyMessageConfig": None},
        "text": {"courtesyMessageConfig": None, "userInteractionTimeout": None},
    },
    "languageDetection": {"enableLanguageDetection": False},
    "apiVersion": "v1",
    "aiHelpers": [],
    "checkpoints": [],
    "reasonsOfContact": [],
    "results": [],
}
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([^{}\s][^{}]*?)\s*\}\}")


@dataclass(frozen=True, slots=True)
class ImportedDraft:
    """`document` is a version with `draft: true`, ready to be saved; `remarks` say what it has not."""

    document: Mapping[str, object]
    remarks: Sequence[Remark]


@dataclass(slots=True)
class Draft:
    """A version in the making. Tasks and variables stand under what the original calls them; their ids and
    names are made unique as they come."""

    language: str = "en-US"
    other_languages: Sequence[str] = ()
    global_prompt: str = ""
    first_task: str = ""
    tasks: dict[str, TaskDraft] = field(default_factory=dict[str, TaskDraft])
    variables: dict[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    defaults: dict[str, str] = field(default_factory=dict[str, str])
    of_contact: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the original calls a contact's `callerId` and `calleeId`, by its name for them."""
    servers: dict[str, tuple[str, dict[str, str]]] = field(
        default_factory=dict[str, tuple[str, dict[str, str]]]
    )
    global_tasks: list[str] = field(default_factory=list[str])
    settled: set[str] = field(default_factory=set[str])
    """What the original gives values to by itself: a model is told them, no condition sees them."""
    brought: dict[str, None] = field(default_factory=dict[str, None])
    """What texts and conditions read of the tenant's data without a default."""
    remarks: list[Remark] = field(default_factory=list[Remark])

    def changed(self, place: Place, message: str) -> None:
        self.remarks.append(Remark(pointer=pointer(*place), kept="changed", message=message))

    def dropped(self, place: Place, message: str) -> None:
        self.remarks.append(Remark(pointer=pointer(*place), kept="dropped", message=message))

    def task(self, task_id: str, name: str) -> TaskDraft:
        """A new task. A name that is another task's, or its id, compared as the engine compares names, gets a
        number. Raises CorrectTheInput where the original calls another one so."""
        if task_id in self.tasks:
            twice = Finding("", "duplicate_name", f"two parts are both {quoted(task_id)} here: rename one")
            raise CorrectTheInput("original_invalid", "what has one name would be lost", (twice,))
        taken = {normalise_name(each) for task in self.tasks.values() for each in (task.name, task.id)}
        plain = " ".join((name or task_id).split())[:120] or "unnamed"
        unique = next(each for each in numbered(plain, " ") if normalise_name(each) not in taken)
        ids = {each.id for each in self.tasks.values()}
        self.tasks[task_id] = made = TaskDraft(self._free_id("task", task_id, ids), unique)
        return made

    def begin(self, name: str, what: str, place: Place) -> None:
        """The flow begins in that task: `what` the original calls it, at `place`. Where it is none of those
        that are there by now, the first of them takes its place."""
        self.first_task = name
        if name and self.tasks and name not in self.tasks:
            self.first_task = next(iter(self.tasks))
            begins = f"the flow starts in {quoted(self.first_task)}"
            self.changed(place, f"there is no {what} {quoted(name)}: {begins}")

    def variable(
        self, name: str, kind: str, prompt: str, values: Sequence[object] = (), *, sensitive: bool = False
    ) -> str:
        """The `_id` of the variable of that name. The first mention decides its type, which another one is
        told of; a later one that knows what to look for gives its prompt, and an enum has what all name."""
        given = (each.strip() if isinstance(each, str) else each for each in values)
        members = [
            each for each in given if isinstance(each, str | int | float) and not isinstance(each, bool)
        ]
        members = [each for each in dict.fromkeys(members) if each != ""]
        if kind == "enum" and not members:
            kind = "string"
        known = self.variables.get(name)
        ids = {str(each["_id"]) for each in self.variables.values()}
        var_id = self._free_id("variable", name, ids) if known is None else str(known["_id"])
        shape: dict[str, object] = {"_id": var_id, "name": var_id, "type": kind, **(known or {})}
        if shape["type"] != kind:
            self.changed((), f"{quoted(name)} is a variable of type {shape['type']}: elsewhere it is {kind}")
        elif kind == "enum":
            shape["enumValues"] = [
                *dict.fromkeys([*cast("list[object]", shape.get("enumValues", [])), *members])
            ]
        if shape["type"] != "custom":
            shape["prompt"] = shape.get("prompt") or prompt
        if sensitive:
            shape["sensitive"] = True
        self.variables[name] = shape
        return self._id_of(name)

    def tool(
        self,
        task: TaskDraft,
        name: str,
        description: str,
        *,
        server: str = "",
        url: str = "",
        arguments: Mapping[str, str] | None = None,
        results: Mapping[str, str] | None = None,
    ) -> None:
        """Lets the task's model call a tool; of a server without an address it is one of `TOOLS`.
        `arguments`: variables by its parameters; `results`: JSONPaths into its result, by variable."""
        if not url.startswith(("http://", "https://")):
            server, url = TOOLS, _TOOLS_URL
        self.servers.setdefault(server, (url, {}))[1].setdefault(name, description)
        passed = {"assignmentStrategy": "variable"}
        shape: dict[str, object] = {
            "toolName": name,
            "toolParameters": [
                {"parameterName": parameter, **passed, "assignmentValue": self._id_of(variable)}
                for parameter, variable in (arguments or {}).items()
            ],
        }
        if results:
            shape["resultMapping"] = {self._id_of(variable): path for variable, path in results.items()}
        task.tools.setdefault(server, {})[name] = shape

    def settle(self, values: Iterable[tuple[str, object]], place: Place, when: str = "") -> str:
        """A line for what the original sets by itself. `when` is the only case in which it does, in words."""
        told = "nothing sets a variable but the user's words and tools: the model is told the values"
        self.changed(place, told)
        take = f"When {when}, take" if when else "Take"
        return f"{take} as settled: {', '.join(f'{name} is {value}' for name, value in values)}."

    def way(self, source: str, target: str, *, when: str = "", reason: str = "", place: Place = ()) -> None:
        """A connection. `when` is a condition of the engine's language, `reason` says in words what has to be
        true beside it, or what it says; without a reason it opens by itself."""
        if source != target:
            way = self.tasks[source].ways.setdefault(target, WayDraft())
            way.alternatives.append(Alternative(when, reason, place))

    def text(self, original: str) -> str:
        """A prompt with its `{{ name }}` placeholders as the engine writes them: a variable's value, else
        what the contact brought along, with the original's default."""

        def written(match: re.Match[str]) -> str:
            default = self.defaults.get(match[1])
            named = self.value(match[1])
            root, _, key = named.partition(".")
            if "[" not in named and not key.isidentifier():  # a template takes `a-b` for a subtraction
                named = f'{root}["{key}"]'
            if default is None or match[1] in self.variables:
                self.brought |= {self._id_of(match[1]): None} if root.startswith("tenant") else {}
                return f"{{{{ ${named} }}}}"
            return f"{{{{ ${named} | default({operand_text(Constant(default))}) }}}}"

        pieces: list[str] = []
        end = 0
        for match in _PLACEHOLDER.finditer(original):
            # With the placeholder's first brace, which must not join one that stands before it.
            pieces += [plain_text(original[end : match.start() + 1])[:-1], written(match)]
            end = match.end()
        return "".join([*pieces, plain_text(original[end:])])

    def value(self, name: str) -> str:
        """How a condition names what the original calls so."""
        if name in self.of_contact and name not in self.variables:
            return operand_text(Reference("contact", (self.of_contact[name],)))
        return operand_text(Reference("vars" if name in self.variables else "tenant", (self._id_of(name),)))

    def kind_of(self, name: str) -> str:
        """The type of the variable of that name, `""` where none is of it."""
        return str(self.variables.get(name, {}).get("type", ""))

    def _id_of(self, name: str) -> str:
        known = self.variables.get(name)
        return identifier(name) if known is None else str(known["_id"])

    def _free_id(self, kind: Literal["task", "variable"], original: str, taken: Set[str]) -> str:
        """An `_id`, with a number where another original has become it."""
        plain = identifier(original)
        found = next(each for each in numbered(plain, "-") if each not in taken)
        if found != plain:
            self.changed(
                (), f"the {kind} {quoted(original)} is {quoted(found)}: {quoted(plain)} is another one"
            )
        return found

    def fault_in(self, condition: str) -> str:
        """Why a save would refuse the condition, `""` where it takes it."""
        variables = VariableIndex(
            VariableSpec(
                str(each["_id"]),
                str(each["name"]),
                cast(VariableType, each["type"]),
                enum_values=tuple(cast("Sequence[str]", each.get("enumValues", ()))),
            )
            for each in self.variables.values()
        )
        try:
            tree = parse(condition)
        except ConditionMistake as mistake:
            return str(mistake)
        read = {str(each.path[0]) for each in atoms(tree) if isinstance(each, Reference) and each.path}
        for name in sorted(self.settled):
            if self._id_of(name) in read:
                return f"nothing but the model knows what {quoted(name)} is"
        return next((reason for _, reason in problems_of(tree, Names(variables, frozenset()))), "")

    def imported(self) -> ImportedDraft:
        """The whole as a version's document, with the remarks so far. Raises CorrectTheInput where nothing in
        the original is a task."""
        if not self.tasks:
            nothing = Finding("", "nothing_to_import", "nothing in it speaks: accepted is at least one task")
            raise CorrectTheInput("original_invalid", "the file has no task", (nothing,))
        for source in self.tasks.values():
            self._tell_ways(source)
            self._note_brought(source)
        positions = {
            task.id: {"x": task.position[0], "y": task.position[1]}
            for task in self.tasks.values()
            if task.position
        }
        document: dict[str, object] = {
            **_FIRST_VALUES,
            "globalPrompt": self.text(self.global_prompt) or "Be brief, friendly and exact.",
            "defaultLanguage": self.language,
            "supportedLanguages": [*dict.fromkeys((self.language, *self.other_languages))],
            "systemPromptsLanguage": _PROMPTS.get(self.language[:2].lower(), "en-US"),
            "variables": [
                each
                if each["type"] == "custom" or each.get("prompt")
                else {**each, "prompt": f"The value of {each['name']}, as the user says it."}
                for each in self.variables.values()
            ],
            "uiMetadata": {"positions": positions} if positions else {},
            "mcpServers": [
                {
                    "name": name,
                    "url": url,
                    "includedTools": [
                        {"toolName": tool, "uiToolDescription": text} for tool, text in tools.items()
                    ],
                }
                for name, (url, tools) in self.servers.items()
            ],
            "tasks": [self._task(task) for task in self.tasks.values()],
            "firstTask": self.tasks.get(self.first_task, next(iter(self.tasks.values()))).id,
            "globalTasks": [self.tasks[name].id for name in self.global_tasks],
        }
        if TOOLS in self.servers:
            tools = ", ".join(self.servers[TOOLS][1])
            self.changed((), f"the tools {tools} are expected at an MCP server {TOOLS!r}: give it an address")
        self._tell_unwritten()
        if self.brought:
            names = ", ".join(map(quoted, self.brought))
            self.changed((), f"{names} are read of the tenant's data: send them along with each contact")
        told = {(remark["pointer"], remark["message"]): remark for remark in self.remarks}
        return ImportedDraft(document, tuple(told.values()))

    def _tell_unwritten(self) -> None:
        """Tells the variables that nothing writes: no tool is known to, and nobody listens for them."""
        servers = (each for task in self.tasks.values() for each in task.tools.values())
        mapped = (shape.get("resultMapping", {}) for tools in servers for shape in tools.values())
        written = {each for mapping in mapped for each in cast("Mapping[str, str]", mapping)}
        custom = {str(each["_id"]) for each in self.variables.values() if each["type"] == "custom"}
        if unwritten := sorted(custom - written):
            names = ", ".join(map(quoted, unwritten))
            self.changed((), f"{names}: only tools write them: map what a tool answers to them")

    def _note_brought(self, source: TaskDraft) -> None:
        """What its conditions read of the tenant's data."""
        whens = (source.condition[0], *(way.when for way in source.ways.values()))
        read = (each for when in filter(None, whens) for each in atoms(parse(when)))
        names = (each.path[0] for each in read if isinstance(each, Reference) and each.root == "tenant")
        self.brought |= dict.fromkeys(names)

    def _tell_ways(self, source: TaskDraft) -> None:
        """Tells what the model judges: the reasons, and the conditions of a connection that is open without
        them too, or that are too long together."""
        for target_id, way in source.ways.items():
            target = self.tasks[target_id]
            open_anyway = f"another way to {target.name!r} is open without it"
            why = self.fault_in(way.when) if way.when else open_anyway
            for number, each in enumerate(way.alternatives):
                if why and each.when:
                    self.changed(each.place, f"the model judges {each.when!r}: {why}")
                    reason = " and ".join(filter(None, (each.reason, each.when)))
                    way.alternatives[number] = replace(each, when="", reason=reason)
            target.entered_when += [each for each in way.reasons if each not in target.entered_when]

    def _task(self, task: TaskDraft) -> Mapping[str, object]:
        reasons = "; or ".join(reason.rstrip(".") for reason in task.entered_when)
        ways = [
            f"Go on to {self.tasks[name].name!r} when: {'; or '.join(way.reasons)}"
            for name, way in task.ways.items()
            if way.reasons and len(self.tasks[name].entered_when) > 1
        ]
        shape: dict[str, object] = {
            "_id": task.id,
            "name": task.name,
            "type": "HUM" if task.human else "AIO",
            "description": self.text(
                task.description or (f"Enter when: {reasons}." if reasons else task.name)
            ),
            "prompt": self.text("\n\n".join([*filter(None, task.prompts), *ways])) or f"Settle: {task.name}.",
            "transitionParameters": [
                {"variableId": self._id_of(name), "required": required}
                for name, required in task.needs.items()
            ],
            "aiHelpers": [],
            "channels": None,
            "mcpToolSelection": [
                {"mcpServerName": server, "selectedTools": list(tools.values())}
                for server, tools in task.tools.items()
            ],
            "closureConfig": {"multiContact": False},
            "enabledCheckpoints": [],
            "connectedTasks": [self.tasks[name].id for name in task.ways],
        }
        if task.human:
            shape["routingParameters"] = {"timeout": _ROUTING_TIMEOUT_S}
        if task.returns:
            shape["returns"] = True
        if task.condition[0]:
            shape["entryCondition"] = {"when": task.condition[0], "reason": task.condition[1]}
        if conditions := dict(self._conditions(task)):
            shape["connectionConditions"] = conditions
        return shape

    def _conditions(self, task: TaskDraft) -> Iterator[tuple[str, Mapping[str, str]]]:
        for target, way in task.ways.items():
            if not way.when:
                continue
            shape = {"when": way.when}
            if way.reasons:
                shape["reason"] = "; or ".join(way.reasons)
            yield self.tasks[target].id, {**shape, "advance": "auto"} if way.automatic else shape
