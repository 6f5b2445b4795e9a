"""Rasa's flows (CALM): the `flows` of one or more YAML files, with the slots and responses of their domain.

A flow is a task, which users may come to from everywhere, as in Rasa; its steps are the task's prompt. What
Rasa decides by itself from slots is a condition where it leads to another flow, else the model's to decide.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field, JsonValue

from flow_engine.importing import drafts, elements, foreign

_TYPES: Final[Mapping[str, str]] = {
    "text": "string",
    "bool": "boolean",
    "float": "number",
    "categorical": "enum",
}
_START: Final = "start"
_SILENT: Final = frozenset(
    {
        "version",
        "intents",
        "entities",
        "session_config",
        "pipeline",
        "policies",
        "recipe",
        "language",
        "forms",
        "e2e_actions",
    }
)
_COMPARISON: Final = re.compile(
    r"^(?:slots\.)?(?P<name>\w+)\s*(?P<sign>==|=|!=|is not|is|<=|>=|<|>)\s*(?P<value>[^<>=!]+)$"
)

_SLOT_IN_TEXT: Final = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")


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


class Slot(foreign.Foreign):
    type: str = "text"
    values: tuple[JsonValue, ...] = ()
    initial_value: JsonValue = None
    mappings: JsonValue = None

    @property
    def by_tools(self) -> bool:
        """Whether actions alone fill it, by all of its mappings: `custom` is what `controlled` was called."""
        mappings = self.mappings if isinstance(self.mappings, list) else []
        kinds = [each.get("type") if isinstance(each, dict) else None for each in mappings]
        return bool(kinds) and all(kind in ("controlled", "custom") for kind in kinds)


class Response(foreign.Foreign):
    text: str = ""


class RasaFiles(foreign.Foreign):
    """What stands in all files together."""

    flows: Mapping[str, RasaFlow]
    slots: Mapping[str, Slot] = Field(default_factory=dict[str, Slot])
    responses: Mapping[str, tuple[Response, ...]] = Field(default_factory=dict[str, tuple[Response, ...]])
    actions: tuple[JsonValue, ...] = ()


def from_rasa(raw: JsonValue) -> drafts.ImportedDraft:
    """The flows as a draft. `raw` is what stands in the YAML files, merged by their keys. Raises
    CorrectTheInput `original_invalid`."""
    files, draft = foreign.read_foreign(RasaFiles, raw), drafts.Draft()
    draft.remarks += foreign.unread(files, (), _SILENT)
    flows = {name: flow for name, flow in files.flows.items() if not name.startswith("pattern_")}
    for name in files.flows.keys() - flows.keys():
        draft.dropped(
            ("flows", name), "what Rasa says in such a situation is a rule of the platform's prompts here"
        )
    return _Import(draft, files, flows).made()


class _Import:
    def __init__(self, draft: drafts.Draft, files: RasaFiles, flows: Mapping[str, RasaFlow]) -> None:
        self._draft, self._files, self._flows = draft, files, flows

    def made(self) -> drafts.ImportedDraft:
        draft = self._draft
        collected = {step.collect for flow in self._flows.values() for step in _every(flow.steps)}
        for name, slot in self._files.slots.items():
            by_tools = slot.by_tools and name not in collected
            if by_tools:
                draft.changed(("slots", name), "only tools write it")
            draft.variable(name, "custom" if by_tools else self._kind_of(name), "", slot.values)
            if slot.initial_value is not None:
                draft.dropped(
                    ("slots", name, "initial_value"), "a variable has no value before it was said or written"
                )
        start_id, number = _START, 2
        while start_id in self._flows:
            start_id, number = f"{_START}-{number}", number + 1
        start = draft.task(start_id, _START)
        start.description = "Enter when it is not clear what the user wants, or when one matter is settled."
        start.prompts.append("Find out what the user wants, and go on to the task that does it.")
        draft.first_task = start_id
        for name, flow in self._flows.items():
            task = draft.task(name, flow.name or name.replace("_", " "))
            task.description = flow.description
        for name, flow in self._flows.items():
            self._fill(name, flow)
        linked = {step.call for flow in self._flows.values() for step in _every(flow.steps)}
        draft.global_tasks += [
            name for name, flow in self._flows.items() if name not in linked and flow.when is not False
        ]
        for name in linked & self._flows.keys():
            draft.tasks[name].returns = True
        return draft.imported()

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
        self, source: str, steps: Sequence[Step], place: tuple[str | int, ...], when: tuple[str, ...] = ()
    ) -> Iterator[str]:
        """Each step in words; ways, tools and variables as they come. `when`: what all holds by then."""
        for number, step in enumerate(steps):
            at = (*place, number)
            prefix = f"(step {step.id}) " if step.id else ""
            if line := self._line(source, step, at, when):
                yield prefix + line
            if isinstance(step.next, str):
                if step.next:
                    yield f"Then {'end' if step.next == 'END' else f'go on with step {step.next}'}."
                continue
            asked = "; ".join(branch.when for branch in step.next if branch.when)
            otherwise = (f"none of ({asked})",) if asked else ()
            for index, branch in enumerate(step.next):
                holds = (*when, *((branch.when,) if branch.when else otherwise))
                following = branch.then or branch.otherwise
                inside = (*at, "next", index, "then" if branch.then else "else")
                said = f"If {branch.when}" if branch.when else "Otherwise"
                if isinstance(following, str):
                    yield f"{said}: {'end' if following == 'END' else f'go on with step {following}'}."
                else:
                    yield f"{said}: " + " ".join(self._lines(source, following, inside, holds))

    def _line(self, source: str, step: Step, place: tuple[str | int, ...], when: tuple[str, ...]) -> str:
        draft, task = self._draft, self._draft.tasks[source]
        if step.collect:
            draft.variable(step.collect, "string", step.description)
            task.needs.setdefault(step.collect, False)
            again = " even if it is known" if step.ask_before_filling else ""
            refused = "".join(f" Refuse it if {each.get('if', '')}." for each in step.rejections)
            said = self._utterance(step.utter or f"utter_ask_{step.collect}")
            return f"Ask for {step.collect}{again}: {said}{refused}"
        if step.action.startswith("utter_"):
            return f"Say: {self._utterance(step.action)}"
        if step.action:
            draft.tool(task, step.action, f"What Rasa's action {step.action} does.")
            return f"Call {step.action}."
        for target in filter(None, (step.link, step.call)):
            return self._way(source, target, place, when)
        if step.set_slots:
            draft.changed(
                place, "nothing sets a variable but the user's words and tools: the model is told the values"
            )
            return (
                "Take as settled: "
                + ", ".join(f"{name} is {value}" for each in step.set_slots for name, value in each.items())
                + "."
            )
        return ""

    def _way(self, source: str, target: str, place: tuple[str | int, ...], when: tuple[str, ...]) -> str:
        if target not in self._flows:
            self._draft.dropped(place, f"there is no flow {target!r}")
            return ""
        judged = {each: self._condition(each) for each in when}
        for each, condition in judged.items():
            if not condition:
                self._draft.changed(place, f"the model judges {each!r}")
        condition = elements.joined(judged.values(), "and")
        self._draft.way(source, target, when=condition, reason=" and ".join(judged), place=place)
        return f"Go on to {self._draft.tasks[target].name!r}."

    def _utterance(self, name: str) -> str:
        said = next((each.text for each in self._files.responses.get(name, ()) if each.text), "")
        if not said:
            return name.removeprefix("utter_").replace("_", " ") + "."
        written = _SLOT_IN_TEXT.sub(r"{{\1}}", said)
        return f'"{written}"'

    def _condition(self, text: str) -> str:
        """A predicate over slots in the engine's language, `""` where it says more than that, or compares
        what has another type."""
        words = re.split(r"\s+(and|or)\s+", text.strip())
        written: list[str] = []
        for part in words:
            if part in {"and", "or"}:
                written.append(part)
            elif judged := self._comparison(part.strip()):
                written.append(judged)
            else:
                return ""
        condition = " ".join(written)
        return "" if self._draft.fault_in(condition) else condition

    def _comparison(self, text: str) -> str:
        negated, bare = ("not ", text.removeprefix("not ")) if text.startswith("not ") else ("", text)
        if (name := bare.removeprefix("slots.")) in self._draft.variables:
            value = self._draft.value(name)
            if self._kind_of(name) != "boolean":
                return f"{negated}has({value})"
            return f"not (has({value}) and {value} == true)" if negated else f"{value} == true"
        match = _COMPARISON.match(bare)
        if match is None or match["name"] not in self._draft.variables:
            return ""
        value, sign = self._draft.value(match["name"]), match["sign"]
        if match["value"].strip() in {"null", "None"}:
            return f"{negated}{'not ' if sign in {'==', '=', 'is'} else ''}has({value})"
        sign = {"=": "==", "is": "==", "is not": "!="}.get(sign, sign)
        literal = elements.condition_literal(match["value"], self._kind_of(match["name"]))
        return f"{negated}{value} {sign} {literal}"

    def _kind_of(self, name: str) -> str:
        """The type of a slot's values, of one too that only tools write."""
        slot = self._files.slots.get(name)
        return self._draft.kind_of(name) if slot is None else _TYPES.get(slot.type, "custom")


def _every(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for branch in step.next if not isinstance(step.next, str) else ():
            for following in (branch.then, branch.otherwise):
                if not isinstance(following, str):
                    yield from _every(following)
