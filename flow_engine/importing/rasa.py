"""Rasa's flows (CALM): the `flows` of one or more YAML files, with the slots and responses of their domain.

A flow is a task, which users may come to from everywhere, as in Rasa; its steps are the task's prompt. What
Rasa decides by itself from slots is a condition where it leads to another flow, else the model's to decide.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field, JsonValue

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.importing import drafts, elements, foreign
from flow_engine.importing.rasa_calls import CallMapping
from flow_engine.importing.rasa_conditions import condition_of

_TYPES: Final[Mapping[str, str]] = {
    "text": "string",
    "bool": "boolean",
    "float": "number",
    "categorical": "enum",
}
_START: Final = "start"
_HANDOFF: Final = "pattern_human_handoff"
"""Rasa's own flow for whoever wants a person. It is there though no file has it."""
_OPENING: Final = "pattern_session_start"
_PATTERNS: Final = frozenset(
    {
        *("pattern_cancel_flow", "pattern_cannot_handle", "pattern_chitchat", "pattern_clarification"),
        *("pattern_code_change", "pattern_collect_information", "pattern_completed"),
        *("pattern_continue_interrupted", "pattern_correction", _HANDOFF, "pattern_internal_error"),
        *("pattern_repeat_bot_messages", "pattern_restart", "pattern_search", _OPENING),
        *("pattern_skip_question", "pattern_user_silence", "pattern_validate_slot"),
    }
)
"""Rasa's own flows. Another one whose name begins so is the project's."""
_OWN_ACTIONS: Final[Mapping[str, str]] = {
    "action_listen": "Wait for the answer.",
    "action_session_start": "",
    "action_restart": "Start from the beginning.",
    "action_hangup": "End the conversation.",
    "action_repeat_bot_messages": "Say again what you said last.",
    "action_trigger_chitchat": "Answer in your own words.",
}
"""What Rasa does without a line of the project's, in words."""
_SILENT: Final = frozenset({"version", "session_config", "pipeline", "policies", "recipe"})
_SLOT_IN_TEXT: Final = re.compile(r"(?<!\{)\{(\w+)\}(?!\})|\{\{\s*slots\.(\w+)\s*\}\}")
"""As Rasa writes it, and as its Jinja templates do."""


class Branch(foreign.Foreign):
    """One of the alternatives behind a step: `if` and `then`, or `else`."""

    when: Annotated[str, Field(alias="if")] = ""
    then: "str | tuple[Step, ...]" = ""
    otherwise: Annotated["str | tuple[Step, ...]", Field(alias="else")] = ""


class Step(foreign.Foreign):
    id: str = ""
    collect: str = ""
    description: str = ""
    utter: str = ""
    action: str = ""
    link: str = ""
    call: str = ""
    mcp_server: str = ""
    mapping: CallMapping = CallMapping()
    noop: bool = False
    ask_before_filling: bool = False
    set_slots: tuple[Mapping[str, JsonValue], ...] = ()
    rejections: tuple[Mapping[str, str], ...] = ()
    next: "str | tuple[Branch, ...]" = ""


class RasaFlow(foreign.Foreign):
    description: str = ""
    name: str = ""
    when: Annotated[str | bool, Field(alias="if")] = ""
    steps: tuple[Step, ...] = ()


class Validation(foreign.Foreign):
    rejections: tuple[Mapping[str, str], ...] = ()


class Slot(foreign.Foreign):
    type: str = "text"
    validation: Validation = Validation()
    values: tuple[JsonValue, ...] = ()
    initial_value: JsonValue = None
    mappings: JsonValue = None

    @property
    def by_tools(self) -> bool:
        """Whether actions alone fill it, by all of its mappings: `custom` is what `controlled` was called."""
        mappings = self.mappings if isinstance(self.mappings, list) else []
        kinds = [each.get("type") if isinstance(each, dict) else None for each in mappings]
        return bool(kinds) and all(kind in ("controlled", "custom") for kind in kinds)


class Button(foreign.Foreign):
    title: str = ""
    payload: JsonValue = None


class Response(foreign.Foreign):
    text: str = ""
    buttons: tuple[Button, ...] = ()
    condition: JsonValue = None

    @property
    def case(self) -> str:
        """When this wording is the one, in words; `""` is always."""
        if isinstance(self.condition, list):
            rows = (each for each in self.condition if isinstance(each, dict))
            return " and ".join(f"slots.{each.get('name')} is {each.get('value')}" for each in rows)
        return str(self.condition or "")


class McpServer(foreign.Foreign):
    name: str
    url: str = ""
    type: str = ""


class RasaFiles(foreign.Foreign):
    """What stands in all files together."""

    flows: Mapping[str, RasaFlow]
    slots: Mapping[str, Slot] = Field(default_factory=dict[str, Slot])
    responses: Mapping[str, tuple[Response, ...]] = Field(default_factory=dict[str, tuple[Response, ...]])
    actions: tuple[JsonValue, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    language: str = ""
    additional_languages: tuple[str, ...] = ()


def from_rasa(raw: JsonValue) -> drafts.ImportedDraft:
    """The flows as a draft. `raw` is what stands in the YAML files, merged by their keys. Raises
    CorrectTheInput `original_invalid`."""
    if isinstance(raw, dict) and "flows" not in raw and {"stories", "rules", "forms", "intents"} & raw.keys():
        told = "forms, stories and rules are not read: accepted are flows, as CALM has them"
        raise CorrectTheInput("original_invalid", told, (Finding("/flows", "missing_property", told),))
    files, draft = foreign.read_foreign(RasaFiles, raw), drafts.Draft()
    draft.language = files.language or draft.language
    draft.other_languages = files.additional_languages
    draft.remarks += foreign.unread(files, (), _SILENT)
    flows = {name: flow for name, flow in files.flows.items() if name not in _PATTERNS}
    steps = [step for flow in files.flows.values() for step in _every(flow.steps)]
    if _HANDOFF in files.flows or any(_HANDOFF in (step.link, step.call) for step in steps):
        own = RasaFlow(description="The user wants to speak to a person.")
        flows[_HANDOFF] = files.flows.get(_HANDOFF, own)
        place = ("flows", _HANDOFF) if _HANDOFF in files.flows else ("flows",)
        draft.changed(place, f"{_HANDOFF!r} is a human's task: who is found stands in routingParameters")
    for name in sorted(files.flows.keys() - flows.keys() - {_OPENING}):
        draft.dropped(
            ("flows", name), "what Rasa says in such a situation is a rule of the platform's prompts here"
        )
    return _Import(draft, files, flows).made()


class _Import:
    def __init__(self, draft: drafts.Draft, files: RasaFiles, flows: Mapping[str, RasaFlow]) -> None:
        self._draft, self._files, self._flows = draft, files, flows
        self._said: set[str] = set()
        self._actions = {
            name: number
            for number, each in enumerate(files.actions)
            for name in (each if isinstance(each, dict) else [each])
            if isinstance(name, str)
        }

    def made(self) -> drafts.ImportedDraft:
        draft = self._draft
        steps = [step for flow in self._flows.values() for step in _every(flow.steps)]
        led_to = {name for step in steps for name in (step.link, step.call)}
        collected = {step.collect for step in steps}
        draft.settled |= {
            name
            for step in steps
            for each in step.set_slots
            for name, value in each.items()
            if value is not None and not (name in self._files.slots and self._files.slots[name].by_tools)
        } - collected
        for name, slot in self._files.slots.items():
            by_tools = slot.by_tools and name not in collected
            if by_tools:
                draft.changed(("slots", name), "only tools write it")
            draft.variable(name, "custom" if by_tools else self._kind_of(name), "", slot.values)
            if slot.initial_value is not None:
                draft.dropped(
                    ("slots", name, "initial_value"), "a variable has no value before it was said or written"
                )
        start_id = next(each for each in elements.numbered(_START, "-") if each not in self._flows)
        start = draft.task(start_id, _START)
        start.description = "Enter when it is not clear what the user wants, or when one matter is settled."
        start.prompts.append("Find out what the user wants, and go on to the task that does it.")
        draft.first_task = start_id
        for name, flow in self._flows.items():
            task = draft.task(name, flow.name or name.replace("_", " "))
            task.description, task.human = flow.description, name == _HANDOFF
        for name, flow in self._flows.items():
            self._fill(name, flow)
            if name in led_to and draft.tasks[name].condition[0]:
                draft.changed(
                    ("flows", name, "if"), "links and calls ask for it too here: connections open only then"
                )
        if opening := self._files.flows.get(_OPENING):
            place = ("flows", _OPENING)
            start.prompts.insert(0, "\n".join(self._lines(start_id, opening.steps, (*place, "steps"))))
            draft.changed(place, f"it opens the task {start_id!r}")
        linked = {step.call for step in steps}
        draft.global_tasks += [
            name for name, flow in self._flows.items() if name not in linked and flow.when is not False
        ]
        for name in linked & self._flows.keys():
            draft.tasks[name].returns = True
        self._tell_bound()
        self._tell_unsaid()
        return draft.imported()

    def _tell_bound(self) -> None:
        """Tells of links whose condition binds users too, who come to the flow from everywhere in Rasa."""
        draft = self._draft
        for task in draft.tasks.values():
            for name in (each for each, way in task.ways.items() if way.when and each in draft.global_tasks):
                told = f"in {task.name!r} the condition of the link binds users who ask for it, too"
                draft.changed(("flows", name) if name in self._files.flows else (), f"{name!r}: {told}")

    def _tell_unsaid(self) -> None:
        """Tells what of the domain no step of a flow says, calls or fills."""
        draft = self._draft
        for name, answers in self._files.responses.items():
            if name not in self._said:
                draft.dropped(("responses", name), "no step of a flow says it")
                continue
            plain = [number for number, each in enumerate(answers) if each.text and not each.case]
            for number in plain[1:]:
                draft.dropped(("responses", name, number), "of several wordings the first one is carried")
        called = {each for task in draft.tasks.values() for tools in task.tools.values() for each in tools}
        for action, number in self._actions.items():
            if action not in {*called, *_OWN_ACTIONS, *self._said}:
                draft.dropped(("actions", number), f"no step of a flow calls {action!r}")
        for name, slot in self._files.slots.items():
            for number, mapping in enumerate(slot.mappings if isinstance(slot.mappings, list) else ()):
                if mapping not in ({"type": "from_llm"}, {"type": "controlled"}):
                    told = "a variable is heard from what the user says, or written by tools"
                    draft.dropped(("slots", name, "mappings", number), told)

    def _fill(self, name: str, flow: RasaFlow) -> None:
        draft, task, place = self._draft, self._draft.tasks[name], ("flows", name)
        if isinstance(flow.when, str) and flow.when:
            if condition := self._condition(flow.when):
                task.condition = (condition, flow.when)
            else:
                draft.changed((*place, "if"), f"the model judges {flow.when!r}")
                task.prompts.append(f"Only if {flow.when}.")
        elif flow.when is False:
            draft.changed((*place, "if"), "the task is no global one: only links and calls lead to it")
        lines = [
            f"{number}. {line}"
            for number, line in enumerate(self._lines(name, flow.steps, (*place, "steps")), 1)
        ]
        task.prompts.append("\n".join(lines))

    def _lines(
        self, source: str, steps: Sequence[Step], place: foreign.Place, when: tuple[str, ...] = ()
    ) -> Iterator[str]:
        """Each step in words; ways, tools and variables as they come. `when`: what all holds by then."""
        for number, step in enumerate(steps):
            at = (*place, number)
            prefix = f"(step {step.id}) " if step.id else ""
            if (line := self._line(source, step, at, when)) or prefix:
                yield prefix + (line or "Go on as follows.")
            if isinstance(step.next, str):
                if step.next:
                    yield f"Then {_onward(step.next)}."
                continue
            asked = "; ".join(branch.when for branch in step.next if branch.when)
            otherwise = (f"none of ({asked})",) if asked else ()
            for index, branch in enumerate(step.next):
                holds = (*when, *((branch.when,) if branch.when else otherwise))
                following = branch.then or branch.otherwise
                inside = (*at, "next", index, "then" if branch.then else "else")
                said = f"If {branch.when}" if branch.when else "Otherwise"
                if isinstance(following, str):
                    yield f"{said}: {_onward(following)}."
                else:
                    yield f"{said}: " + " ".join(self._lines(source, following, inside, holds))

    def _line(self, source: str, step: Step, place: foreign.Place, when: tuple[str, ...]) -> str:
        draft, task = self._draft, self._draft.tasks[source]
        if step.collect:
            draft.variable(step.collect, draft.kind_of(step.collect) or "string", step.description)
            task.needs.setdefault(step.collect, False)
            again = " even if it is known" if step.ask_before_filling else ""
            slot = self._files.slots.get(step.collect, Slot())
            refused = "".join(
                f" Refuse it if {each.get('if', '')}"
                + (f", and say: {self._utterance(utter)}" if utter in self._files.responses else ".")
                for each in (*step.rejections, *slot.validation.rejections)
                for utter in (each.get("utter", ""),)
            )
            return f"Ask for {step.collect}{again}: {self._question(task, step)}{refused}"
        if step.action.startswith("utter_"):
            return f"Say: {self._utterance(step.action)}"
        if step.action in _OWN_ACTIONS:
            return _OWN_ACTIONS[step.action]
        if step.action:
            draft.tool(task, step.action, f"What Rasa's action {step.action} does.")
            return f"Call {step.action}."
        if step.call and step.call not in self._flows and step.call not in _PATTERNS:
            url = next((each.url for each in self._files.mcp_servers if each.name == step.mcp_server), "")
            told = f"What {step.call} does in Rasa."
            mapped, at = step.mapping, (*place, "mapping")
            passed, set_by_it = dict(mapped.arguments(draft, at)), dict(mapped.results(draft, at))
            server = step.mcp_server
            draft.tool(task, step.call, told, server=server, url=url, arguments=passed, results=set_by_it)
            if not step.mcp_server:
                draft.changed(place, f"no flow is called {step.call!r}: an agent is a tool here")
            return f"Call {step.call}."
        if target := step.link or step.call:
            return self._way(source, target, place, when)
        values = [row for each in step.set_slots for row in each.items()]
        return draft.settle(values, place) if step.set_slots else ""

    def _way(self, source: str, target: str, place: foreign.Place, when: tuple[str, ...]) -> str:
        if target not in self._flows:
            told = f"what Rasa does in {target!r} is a rule of the platform's prompts here"
            self._draft.dropped(place, told if target in _PATTERNS else f"there is no flow {target!r}")
            return ""
        judged = {each: self._condition(each) for each in when}
        for each, condition in judged.items():
            if not condition:
                self._draft.changed(place, f"the model judges {each!r}")
        condition = elements.joined(judged.values(), "and")
        self._draft.way(source, target, when=condition, reason=" and ".join(judged), place=place)
        return f"Go on to {self._draft.tasks[target].name!r}."

    def _question(self, task: elements.TaskDraft, step: Step) -> str:
        """How a slot is asked for: by its response, or by an action that makes the question."""
        said, action = step.utter or f"utter_ask_{step.collect}", f"action_ask_{step.collect}"
        if said in self._files.responses or action not in self._actions:
            return self._utterance(said)
        self._draft.tool(task, action, f"What Rasa's action {action} does.")
        return f"call {action}, which says how."

    def _utterance(self, name: str) -> str:
        """The first wording, those of a case with their cases before it."""
        self._said.add(name)
        given = [each for each in self._files.responses.get(name, ()) if each.text]
        always = next((each for each in given if not each.case), None)
        cases = [f"if {each.case}: {_wording(each)}" for each in given if each.case]
        if always is None:
            return "; ".join(cases) or name.removeprefix("utter_").replace("_", " ") + "."
        return "; ".join([*cases, f"otherwise: {_wording(always)}"]) if cases else _wording(always)

    def _condition(self, text: str) -> str:
        return condition_of(self._draft, text, self._kind_of)

    def _kind_of(self, name: str) -> str:
        """The type of a slot's values, of one too that only tools write."""
        slot = self._files.slots.get(name)
        return self._draft.kind_of(name) if slot is None else _TYPES.get(slot.type, "custom")


def _onward(step: str) -> str:
    return "this is settled" if step == "END" else f"go on with step {step}"


def _wording(response: Response) -> str:
    text = _SLOT_IN_TEXT.sub(lambda match: f"{{{{{match[1] or match[2]}}}}}", response.text)
    choices = "; ".join(each.title for each in response.buttons if each.title)
    return f'"{text}"' + (f" (choices: {choices})" if choices else "")


def _every(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for branch in step.next if not isinstance(step.next, str) else ():
            for following in (branch.then, branch.otherwise):
                if not isinstance(following, str):
                    yield from _every(following)
