"""What an importer fills: tasks, ways, variables and tools; and what of the original is left out.

Everything that the original does not say has the value that the engine would be given by hand at first:
phone and chat, one contact a conversation, the presets of the media settings.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from flow_engine.conditions.language import ConditionMistake, Constant, Reference, operand_text, parse
from flow_engine.conditions.review import problems_of
from flow_engine.documents.references import normalise_name
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.importing.foreign import Remark
from flow_engine.values import VariableIndex, VariableSpec
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
_DELIMITER: Final = re.compile(r"\{(?=[{%#])|[}%](?=\})")
"""First characters of what opens or closes something in a template."""
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([^{}\s][^{}]*?)\s*\}\}")


@dataclass(frozen=True, slots=True)
class ImportedDraft:
    """`document` is a version with `draft: true`, ready to be saved; `remarks` say what it has not."""

    document: Mapping[str, object]
    remarks: Sequence[Remark]


@dataclass(slots=True)
class TaskDraft:
    """All texts stand as in the original, with its `{{ name }}` placeholders. `entered_when` are reasons to
    enter the task from anywhere; `needs` tells of each variable whether it is required."""

    name: str
    human: bool = False
    description: str = ""
    prompts: list[str] = field(default_factory=list[str])
    entered_when: list[str] = field(default_factory=list[str])
    ways: dict[str, "WayDraft"] = field(default_factory=dict[str, "WayDraft"])
    needs: dict[str, bool] = field(default_factory=dict[str, bool])
    tools: dict[str, dict[str, Mapping[str, str]]] = field(
        default_factory=dict[str, dict[str, Mapping[str, str]]]
    )
    condition: tuple[str, str] = ("", "")
    returns: bool = False
    position: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way of the original: `when` in the engine's language, `reason` in words, `""` where there is none.
    Where both are given, both have to be true."""

    when: str
    reason: str
    place: Sequence[str | int]


@dataclass(slots=True)
class WayDraft:
    """A connection. One of its alternatives is enough."""

    alternatives: list[Alternative] = field(default_factory=list[Alternative])
    automatic: bool = False

    @property
    def when(self) -> str:
        return joined((each.when for each in self.alternatives), "or")

    @property
    def reasons(self) -> Sequence[str]:
        return [*dict.fromkeys(each.reason for each in self.alternatives if each.reason)]


@dataclass(slots=True)
class Draft:
    """A version in the making; names of tasks and variables are made unique as they come."""

    language: str = "en-US"
    global_prompt: str = ""
    first_task: str = ""
    tasks: dict[str, TaskDraft] = field(default_factory=dict[str, TaskDraft])
    variables: dict[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    defaults: dict[str, str] = field(default_factory=dict[str, str])
    servers: dict[str, tuple[str, dict[str, str]]] = field(
        default_factory=dict[str, tuple[str, dict[str, str]]]
    )
    global_tasks: list[str] = field(default_factory=list[str])
    model: str = ""
    remarks: list[Remark] = field(default_factory=list[Remark])

    def changed(self, place: Sequence[str | int], message: str) -> None:
        self.remarks.append(Remark(pointer=pointer(*place), kept="changed", message=message))

    def dropped(self, place: Sequence[str | int], message: str) -> None:
        self.remarks.append(Remark(pointer=pointer(*place), kept="dropped", message=message))

    def task(self, task_id: str, name: str) -> TaskDraft:
        """A new task. A name that is taken, compared as the engine compares names, gets a number."""
        taken = {normalise_name(each.name) for each in self.tasks.values()}
        plain = " ".join((name or task_id).split())[:120] or "unnamed"
        unique, number = plain, 2
        while normalise_name(unique) in taken:
            unique, number = f"{plain} {number}", number + 1
        self.tasks[task_id] = made = TaskDraft(unique)
        return made

    def variable(
        self, name: str, kind: str, prompt: str, values: Sequence[object] = (), *, sensitive: bool = False
    ) -> str:
        """The `_id` of the variable of that name. The first mention decides its type; a later one that knows
        what to look for gives its prompt."""
        name = identifier(name)
        known = self.variables.get(name)
        if known is None or (not known.get("prompt") and prompt):
            members = [
                each for each in values if isinstance(each, str | int | float) and not isinstance(each, bool)
            ]
            members = [each for each in dict.fromkeys(members) if each != ""]
            if kind == "enum" and not members:
                kind = "string"
            shape: dict[str, object] = {
                "_id": name,
                "name": name,
                "type": kind if known is None else known["type"],
            }
            if shape["type"] != "custom":
                shape["prompt"] = prompt
            if shape["type"] == "enum":
                shape["enumValues"] = members if known is None else known["enumValues"]
            if sensitive:
                shape["sensitive"] = True
            self.variables[name] = shape
        return name

    def tool(
        self,
        task: TaskDraft,
        name: str,
        description: str,
        *,
        server: str = TOOLS,
        url: str = _TOOLS_URL,
        results: Mapping[str, str] | None = None,
    ) -> None:
        """Lets the task's model call a tool; of a server without an address it is one of `TOOLS`. `results`:
        JSONPaths into its result, by variable."""
        if not url.startswith(("http://", "https://")):
            server, url = TOOLS, _TOOLS_URL
        self.servers.setdefault(server, (url, {}))[1].setdefault(name, description)
        task.tools.setdefault(server, {})[name] = results or {}

    def way(
        self,
        source: str,
        target: str,
        *,
        when: str = "",
        reason: str = "",
        automatic: bool = False,
        place: Sequence[str | int] = (),
    ) -> None:
        """A connection. `when` is a condition of the engine's language, `reason` says in words what has to be
        true beside it, or what it says. `automatic`: as soon as the condition holds."""
        if source == target:
            return
        way = self.tasks[source].ways.setdefault(target, WayDraft())
        way.alternatives.append(Alternative(when, reason, place))
        way.automatic |= automatic

    def text(self, original: str) -> str:
        """A prompt with its `{{ name }}` placeholders as the engine writes them: a variable's value, else
        what the contact brought along, with the original's default."""

        def written(match: re.Match[str]) -> str:
            default = self.defaults.get(match[1])
            if default is None or identifier(match[1]) in self.variables:
                return f"{{{{ ${self.value(match[1])} }}}}"
            return f"{{{{ ${self.value(match[1])} | default({operand_text(Constant(default))}) }}}}"

        pieces: list[str] = []
        end = 0
        for match in _PLACEHOLDER.finditer(original):
            # With the placeholder's first brace, which must not join one that stands before it.
            pieces += [_literal(original[end : match.start() + 1])[:-1], written(match)]
            end = match.end()
        return "".join([*pieces, _literal(original[end:])])

    def value(self, name: str) -> str:
        """How a condition names what the original calls so."""
        name = identifier(name)
        return operand_text(Reference("vars" if name in self.variables else "tenant", (name,)))

    def kind_of(self, name: str) -> str:
        """The type of the variable of that name, `""` where none is of it."""
        return str(self.variables.get(identifier(name), {}).get("type", ""))

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
            problems = problems_of(parse(condition), variables, frozenset())
        except ConditionMistake as mistake:
            return str(mistake)
        return next((reason for _, reason in problems), "")

    def imported(self) -> ImportedDraft:
        """The whole as a version's document, with the remarks so far. Raises CorrectTheInput where nothing in
        the original is a task."""
        if not self.tasks:
            nothing = Finding("", "nothing_to_import", "nothing in it speaks: accepted is at least one task")
            raise CorrectTheInput("original_invalid", "the file has no task", (nothing,))
        for source in self.tasks.values():
            self._tell_ways(source)
        positions = {
            identifier(task_id): {"x": task.position[0], "y": task.position[1]}
            for task_id, task in self.tasks.items()
            if task.position
        }
        document: dict[str, object] = {
            **_FIRST_VALUES,
            "globalPrompt": self.text(self.global_prompt) or "Be brief, friendly and exact.",
            "defaultLanguage": self.language,
            "supportedLanguages": [self.language],
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
            "tasks": [self._task(task_id, task) for task_id, task in self.tasks.items()],
            "firstTask": identifier(
                self.first_task if self.first_task in self.tasks else next(iter(self.tasks))
            ),
            "globalTasks": [identifier(name) for name in self.global_tasks],
        }
        if TOOLS in self.servers:
            tools = ", ".join(self.servers[TOOLS][1])
            self.changed((), f"the tools {tools} are expected at an MCP server {TOOLS!r}: give it an address")
        told = {(remark["pointer"], remark["message"]): remark for remark in self.remarks}
        return ImportedDraft(document, tuple(told.values()))

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

    def _task(self, task_id: str, task: TaskDraft) -> Mapping[str, object]:
        reasons = "; or ".join(reason.rstrip(".") for reason in task.entered_when)
        several = [
            name for name, way in task.ways.items() if way.reasons and len(self.tasks[name].entered_when) > 1
        ]
        ways = [
            f"Go on to {self.tasks[name].name!r} when: {'; or '.join(task.ways[name].reasons)}"
            for name in several
        ]
        shape: dict[str, object] = {
            "_id": identifier(task_id),
            "name": task.name,
            "type": "HUM" if task.human else "AIO",
            "description": self.text(
                task.description or (f"Enter when: {reasons}." if reasons else task.name)
            ),
            "prompt": self.text("\n\n".join([*filter(None, task.prompts), *ways])) or f"Settle: {task.name}.",
            "transitionParameters": [
                {"variableId": identifier(name), "required": required}
                for name, required in task.needs.items()
            ],
            "aiHelpers": [],
            "channels": None,
            "mcpToolSelection": [
                {
                    "mcpServerName": server,
                    "selectedTools": [
                        {
                            "toolName": tool,
                            "toolParameters": [],
                            **({"resultMapping": dict(results)} if results else {}),
                        }
                        for tool, results in tools.items()
                    ],
                }
                for server, tools in task.tools.items()
            ],
            "closureConfig": {"multiContact": False},
            "enabledCheckpoints": [],
            "connectedTasks": [identifier(name) for name in task.ways],
        }
        if task.human:
            shape["routingParameters"] = {"timeout": _ROUTING_TIMEOUT_S}
        if task.returns:
            shape["returns"] = True
        if task.condition[0]:
            shape["entryCondition"] = {"when": task.condition[0], "reason": task.condition[1]}
        if conditions := dict(_conditions(task.ways)):
            shape["connectionConditions"] = conditions
        return shape


def _conditions(ways: Mapping[str, WayDraft]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for target, way in ways.items():
        if not way.when:
            continue
        shape = {"when": way.when}
        if way.reasons:
            shape["reason"] = "; or ".join(way.reasons)
        yield identifier(target), {**shape, "advance": "auto"} if way.automatic else shape


def condition_literal(value: str, kind: str) -> str:
    """`value` as a condition compares it with a value of that type; `""` is a type that nobody knows."""
    text = value.strip().strip("\"'")
    if kind in {"number", ""} and re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?", text):
        return text
    if kind in {"boolean", ""} and text.lower() in {"true", "false"}:
        return text.lower()
    return operand_text(Constant(text))


def identifier(text: str) -> str:
    """What stands for `text` where the engine takes an `_id`: 1 to 512 characters without `/`."""
    return text.replace("/", "-")[:512] or "unnamed"


def joined(conditions: Iterable[str], word: Literal["and", "or"]) -> str:
    """One condition of several; those that are empty let everything pass."""
    known = list(dict.fromkeys(conditions))
    if word == "or" and not all(known):
        return ""
    given = [each for each in known if each]
    return given[0] if len(given) == 1 else f" {word} ".join(f"({each})" for each in given)


def _literal(text: str) -> str:
    """Text in which nothing is the template language's."""
    return _DELIMITER.sub(r"\g<0> ", text)
