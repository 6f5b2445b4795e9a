"""Dialogflow CX: an agent as its JSON package exports it, or its REST resources in one object.

A page is a task and so is the start of a flow; parameters of forms are variables, routes are ways. A route
whose condition is that the form is complete opens by itself as soon as the required parameters have values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from flow_engine.errors import Finding
from flow_engine.importing import drafts, elements, foreign
from flow_engine.importing.dialogflow_package import (
    AgentFlow,
    Fulfillment,
    Package,
    Page,
    Parameter,
    Route,
)

_SYSTEM_TYPES: Final[Mapping[str, str]] = {
    "sys.date": "date",
    "sys.date-time": "date",
    "sys.email": "email",
    "sys.phone-number": "phone",
    "sys.number": "number",
    "sys.number-integer": "number",
    "sys.age": "number",
}
_ENDS: Final = frozenset({"END_SESSION", "END_FLOW"})
_KEPT_ASIDE: Final = frozenset(
    {
        "name",
        "priority",
        "id",
        "languageCode",
        "defaultLanguageCode",
        "timeZone",
        "kind",
        "responseType",
    }
)
_FORM_IS_COMPLETE: Final = ("page", "status", "=", "FINAL")
_EXAMPLES: Final = 3
_PARAMETER: Final = re.compile(
    r"\$(\{)?(?:session|page|intent)\.params\.([\w-]+)(?:\.(?:original|resolved)\b)?(?(1)\})"
)
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<scope>\$(?:session|page|intent))\.params\.(?P<name>[\w-]+)(?:\.(?:original|resolved)\b)?\s*
        (?P<sign>!=|<=|>=|=|<|>)\s*
        (?P<value>"[^"]*"|'[^']*'|[\w.+-]+)
    |(?P<word>(?:AND|OR|NOT)\b|[()]))""",
    re.VERBOSE,
)


def from_dialogflow(raw: JsonValue) -> drafts.ImportedDraft:
    """The agent as a draft. `raw` is what `gathered` makes, or the same resources as REST lists them. Raises
    CorrectTheInput `original_invalid`."""
    package, draft = foreign.read_foreign(Package, raw, tuple(_given_twice(raw))), drafts.Draft()
    draft.language = package.agent.default_language_code
    draft.other_languages = package.agent.supported_language_codes
    if draft.other_languages:
        told = f"texts are those in {draft.language!r}: the model says them in the other languages"
        draft.changed(("agent", "supportedLanguageCodes"), told)
    draft.remarks += foreign.unread(package, (), _KEPT_ASIDE)
    return _Import(draft, package).made()


def _given_twice(raw: JsonValue) -> Iterator[Finding]:
    """Flows of one name, and pages of one name in a flow: tasks have their names."""
    flows = raw.get("flows") if isinstance(raw, dict) else None
    yield from foreign.given_twice(flows, ("flows",), "displayName", "flow")
    for number, flow in enumerate(flows if isinstance(flows, list) else ()):
        if isinstance(flow, dict):
            yield from foreign.given_twice(
                flow.get("pages"), ("flows", number, "pages"), "displayName", "page"
            )


def _symbol(page: str) -> str:
    """`End Session`, as an export names what is no page, is the API's `END_SESSION`."""
    return _last(page).upper().replace(" ", "_")


def _last(name: str) -> str:
    """Of `projects/…/pages/ID`, the ID."""
    return name.rpartition("/")[2]


class _Import:
    def __init__(self, draft: drafts.Draft, package: Package) -> None:
        self._draft, self._package = draft, package
        self._intents = {
            key: each for each in package.intents for key in (each.display_name, _last(each.name))
        }
        self._types = {
            key: each for each in package.entity_types for key in (each.display_name, _last(each.name))
        }
        self._flows = {key: each for each in package.flows for key in (each.display_name, _last(each.name))}

    def made(self) -> drafts.ImportedDraft:
        draft = self._draft
        for flow in self._package.flows:
            for page in flow.pages:
                for each in page.form.parameters:
                    self._variable(each)
        for number, flow in enumerate(self._package.flows):
            start = draft.task(flow.display_name, flow.display_name)
            start.prompts.append(_text(flow.description) or "Find out what the user wants, and go on.")
            for page_number, page in enumerate(flow.pages):
                self._page(flow, page, ("flows", number, "pages", page_number))
        for number, flow in enumerate(self._package.flows):
            own = self._routes_of(number, flow, flow, ("flows", number))
            self._routes(flow, flow.display_name, (), own)
            inherited = [(route, at) for route, at in own if route.intent]
            for page_number, page in enumerate(flow.pages):
                task_id, place = _task_id(flow, page), ("flows", number, "pages", page_number)
                of_page = self._routes_of(number, flow, page, place)
                self._routes(flow, task_id, page.form.parameters, of_page)
                self._routes(flow, task_id, (), inherited, again=True)
        named = self._package.agent.start_flow
        found = self._flows.get(_last(named)) if named else None
        usual = next(
            (flow.display_name for flow in self._package.flows if "Start Flow" in flow.display_name), ""
        )
        draft.begin(found.display_name if found else named or usual, "flow", ("agent", "startFlow"))
        return draft.imported()

    def _variable(self, parameter: Parameter) -> None:
        named = _last(parameter.entity_type).removeprefix("@")
        kind, own = _SYSTEM_TYPES.get(named, "string"), self._types.get(named)
        values = [entity.value for entity in own.entities] if own else []
        asked = parameter.fill_behavior.initial_prompt_fulfillment.spoken(self._draft.language)
        named_in = _PARAMETER.sub(r"\2", asked)  # what finds a variable is no template
        prompt = f"What the user answers to: {named_in}" if asked else ""
        self._draft.variable(
            parameter.display_name, "enum" if values else kind, prompt, values, sensitive=parameter.redact
        )
        if own and any(entity.synonyms not in {(), (entity.value,)} for entity in own.entities):
            place = "entityTypes", self._package.entity_types.index(own), "entities"
            self._draft.dropped(place, "synonyms: the model knows what is meant")

    def _page(self, flow: AgentFlow, page: Page, place: tuple[str | int, ...]) -> None:
        draft = self._draft
        task = draft.task(_task_id(flow, page), page.display_name)
        self._say(task, page.entry_fulfillment, "", (*place, "entryFulfillment"))
        for number, parameter in enumerate(page.form.parameters):
            task.needs[parameter.display_name] = False
            asked = parameter.fill_behavior.initial_prompt_fulfillment
            spoken = asked.spoken(draft.language)
            told = f': "{_text(spoken)}"' if spoken else "."
            task.prompts.append(f"Ask for {parameter.display_name}{told}")
            at = (*place, "form", "parameters", number, "fillBehavior", "initialPromptFulfillment")
            self._do(task, asked, f"you ask for {parameter.display_name}", at)
            self._functions(spoken, at)

    def _say(
        self, task: elements.TaskDraft, said: Fulfillment, when: str, place: tuple[str | int, ...]
    ) -> None:
        """What is said and called in a task; `when` is the only case in which it is, in words."""
        if spoken := said.spoken(self._draft.language):
            task.prompts.append(f'{f"When {when}, say" if when else "Say"}: "{_text(spoken)}"')
        self._functions(spoken, place)
        self._do(task, said, when, place)

    def _functions(self, spoken: str, place: tuple[str | int, ...]) -> None:
        if "$sys.func." in spoken:
            self._draft.changed(place, "functions in texts: the model makes of them what they say")

    def _do(
        self, task: elements.TaskDraft, said: Fulfillment, when: str, place: tuple[str | int, ...]
    ) -> None:
        if said.webhook:
            name = re.sub(r"\W+", "_", said.tag or _last(said.webhook))
            self._draft.tool(task, name, f"What the webhook {_last(said.webhook)} does.")
            task.prompts.append(f"Call {name}{f' when {when}' if when else ''}.")
        if said.set_parameter_actions:
            self._draft.dropped(
                (*place, "setParameterActions"), "nothing sets a variable but the user's words and tools"
            )
        if any(message.live_agent_handoff is not None for message in said.messages):
            self._draft.changed(
                (*place, "messages"), "the task is a human's: who is found stands in routingParameters"
            )
            task.human = True

    def _routes_of(
        self, number: int, flow: AgentFlow, part: AgentFlow | Page, place: tuple[str | int, ...]
    ) -> Sequence[tuple[Route, tuple[str | int, ...]]]:
        """The routes of a flow or page with their places: its own, then those of the groups that it names, of
        its flow or of the agent."""
        found = [(route, (*place, "transitionRoutes", n)) for n, route in enumerate(part.transition_routes)]
        groups = {
            key: (group, (*owner, "routeGroups", n))
            for owner, of in (((), self._package.route_groups), (("flows", number), flow.route_groups))
            for n, group in enumerate(of)
            for key in (group.display_name, _last(group.name))
        }
        for n, named in enumerate(part.transition_route_groups):
            if (known := groups.get(_last(named))) is None:
                at = (*place, "transitionRouteGroups", n)
                self._draft.dropped(at, f"there is no group of routes {_last(named)!r}")
                continue
            group, at = known
            found += [
                (route, (*at, "transitionRoutes", k)) for k, route in enumerate(group.transition_routes)
            ]
        return found

    def _routes(
        self,
        flow: AgentFlow,
        source: str,
        form: tuple[Parameter, ...],
        routes: Sequence[tuple[Route, tuple[str | int, ...]]],
        again: bool = False,
    ) -> None:
        """The ways of a task. `again`: routes of the flow, which each of its pages has too."""
        for route, at in routes:
            words, when = self._reason(route.intent), ""
            if route.condition and route.condition.strip() != "true":
                when = self._condition(route.condition, form)
                if when is None:
                    words = " and ".join(filter(None, (words, route.condition)))
                    when = ""
                    if not again:
                        self._draft.changed((*at, "condition"), f"the model judges {route.condition!r}")
            target = self._target(flow, route, at)
            if not again:
                self._fulfilled(source, target, route, words, (*at, "triggerFulfillment"))
            if target and target != source:
                alone = bool(when) and not words
                self._draft.way(source, target, when=when, reason=words, automatic=alone, place=at)

    def _fulfilled(
        self, source: str, target: str, route: Route, words: str, place: tuple[str | int, ...]
    ) -> None:
        """What is said and done on a route: in the task that it leads to, else in its own."""
        if target:
            name = self._draft.tasks[source].name
            self._say(self._draft.tasks[target], route.trigger_fulfillment, f"you come from {name!r}", place)
            return
        own = self._draft.tasks[source]
        self._say(own, route.trigger_fulfillment, words, place)
        if _symbol(route.target_page) in _ENDS:
            own.prompts.append(f"When {words or 'this is settled'}, end the conversation.")

    def _target(self, flow: AgentFlow, route: Route, place: tuple[str | int, ...]) -> str:
        """The task that a route leads to, `""` where it stays or ends."""
        page, into = _last(route.target_page), _last(route.target_flow)
        found = next(
            (each for each in flow.pages if page and page in (each.display_name, _last(each.name))), None
        )
        if found is not None:
            return _task_id(flow, found)
        symbol = _symbol(page)
        if symbol == "START_PAGE":
            return flow.display_name
        if symbol in {"", "CURRENT_PAGE", "PREVIOUS_PAGE", *_ENDS}:
            other = self._flows.get(into)
            return other.display_name if other else ""
        self._draft.dropped(place, f"there is no page {page!r}")
        return ""

    def _reason(self, intent: str) -> str:
        known = self._intents.get(_last(intent))
        if known is None:
            return f"the user means {_last(intent)!r}" if intent else ""
        parts = (phrase.get("parts") for phrase in known.training_phrases if isinstance(phrase, dict))
        phrases = [
            "".join(str(part.get("text", "")) for part in each if isinstance(part, dict)).strip()
            for each in parts
            if isinstance(each, list)
        ][:_EXAMPLES]
        examples = f" (such as: {'; '.join(phrases)})" if phrases else ""
        return (known.description or f"the user means {known.display_name!r}") + examples

    def _condition(self, text: str, form: tuple[Parameter, ...]) -> str | None:
        """A CX condition in the engine's language; None where it says what that language has not, or
        compares what has another type."""
        at, written = 0, list[str]()
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                return None
            at = match.end()
            written.append(match["word"].lower() if match["word"] else self._comparison(match, form))
        condition = " ".join(written).replace("( ", "(").replace(" )", ")")
        return None if self._draft.fault_in(condition) else condition

    def _comparison(self, match: re.Match[str], form: tuple[Parameter, ...]) -> str:
        name, sign, value = match["name"], match["sign"], match["value"]
        if (match["scope"][1:], name, sign, value.strip("\"'")) == _FORM_IS_COMPLETE:
            required = [f"has({self._draft.value(each.display_name)})" for each in form if each.required]
            return f"({elements.joined(required, 'and')})" if required else "(true == true)"
        path = self._draft.value(name)
        if value == "null":
            return f"not has({path})" if sign == "=" else f"has({path})"
        literal = elements.condition_literal(value, self._draft.kind_of(name))
        return f"{path} {'==' if sign == '=' else sign} {literal}"


def _text(original: str) -> str:
    """With placeholders as the draft knows them."""
    return _PARAMETER.sub(r"{{\2}}", original)


def _task_id(flow: AgentFlow, page: Page) -> str:
    return f"{flow.display_name}.{page.display_name}"
