"""Dialogflow CX: an agent as its JSON package exports it, or its REST resources in one object.

A page is a task and so is the start of a flow; parameters of forms are variables, routes are ways. A route
whose condition is that the form is complete opens by itself as soon as the required parameters have values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from pydantic import JsonValue

from flow_engine.documents.findings import quoted
from flow_engine.errors import Finding
from flow_engine.importing import drafts, elements, foreign
from flow_engine.importing.dialogflow_package import (
    AgentFlow,
    Fulfillment,
    Package,
    Page,
    Parameter,
    Route,
    SetParameter,
    by_name,
    last_part,
    parameters_set,
)
from flow_engine.importing.dialogflow_playbooks import add_playbooks, task_of_playbook
from flow_engine.importing.dialogflow_words import (
    ENDINGS,
    condition_of,
    event_in_words,
    parameters_in,
    plain,
    text_of,
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
_STAYS: Final = frozenset({"", "CURRENT_PAGE", "PREVIOUS_PAGE"})
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
        "numTrainingPhrases",
        "channel",
    }
)
_EXAMPLES: Final = 3
_Placed: TypeAlias = "tuple[Route, foreign.Place]"
_RoutesOfTask: TypeAlias = (
    "tuple[AgentFlow, str, tuple[Parameter, ...], Sequence[_Placed], Sequence[_Placed]]"
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
    return _Import(draft, package, parameters_in(str(raw))).made()


def _given_twice(raw: JsonValue) -> Iterator[Finding]:
    """Flows of one name, and pages of one name in a flow: tasks have their names."""
    flows = raw.get("flows") if isinstance(raw, dict) else None
    yield from foreign.given_twice(flows, ("flows",), "displayName", "flow")
    for number, flow in enumerate(flows if isinstance(flows, list) else ()):
        if isinstance(flow, dict):
            yield from foreign.given_twice(
                flow.get("pages"), ("flows", number, "pages"), "displayName", "page"
            )


def _told(words: str, when: str, route: Route) -> str:
    """`words` with the condition that the engine judges, for what is said and done where no way leads on."""
    return " and ".join(filter(None, (words, plain(route.condition) if when else "")))


def _symbol(page: str) -> str:
    """`End Session`, as an export names what is no page, is the API's `END_SESSION`."""
    return last_part(page).upper().replace(" ", "_")


class _Import:
    def __init__(self, draft: drafts.Draft, package: Package, named: AbstractSet[str]) -> None:
        """`named` are parameters that a text or a condition reads."""
        self._draft, self._package, self._named = draft, package, named
        self._intents = by_name(package.intents)
        self._types = by_name(package.entity_types)
        self._flows = by_name(package.flows)
        self._playbooks = by_name(package.playbooks)
        self._callers: dict[str, list[str]] = {}

    def made(self) -> drafts.ImportedDraft:
        draft, flows = self._draft, self._package.flows
        self._variables()
        for flow in flows:
            start = draft.task(flow.display_name, flow.display_name)
            start.prompts.append(
                text_of(draft, flow.description) or "Find out what the user wants, and go on."
            )
        for number, flow in enumerate(flows):
            for page_number, page in enumerate(flow.pages):
                self._page(flow, page, ("flows", number, "pages", page_number))
        add_playbooks(draft, self._package, {key: each.display_name for key, each in self._flows.items()})
        routes = list(self._every_route())
        for flow, source, _, own, _ in routes:
            for route, _ in own:
                into = self._flows.get(last_part(route.target_flow))
                if into is not None and into is not flow:
                    self._callers.setdefault(into.display_name, []).append(source)
        for flow, source, form, own, inherited in routes:
            self._routes(flow, source, form, own)
            self._routes(flow, source, (), inherited, again=True)
        self._begin()
        return draft.imported()

    def _begin(self) -> None:
        agent = self._package.agent
        if agent.start_playbook and (first := self._playbooks.get(last_part(agent.start_playbook))):
            self._draft.begin(task_of_playbook(first), "playbook", ("agent", "startPlaybook"))
            return
        found = self._flows.get(last_part(agent.start_flow)) if agent.start_flow else None
        usual = next(
            (each.display_name for each in self._package.flows if "Start Flow" in each.display_name), ""
        )
        name = found.display_name if found else agent.start_flow or usual
        self._draft.begin(name, "flow", ("agent", "startFlow"))

    def _variables(self) -> None:
        """The parameters of forms, and of intents those that something reads; what else gets a value is
        settled."""
        draft = self._draft
        for page in (page for flow in self._package.flows for page in flow.pages):
            for each in page.form.parameters:
                asked = each.fill_behavior.initial_prompt_fulfillment.spoken(draft.language)
                prompt = f"What the user answers to: {plain(asked)}" if asked else ""
                self._variable(each.display_name, each.entity_type, prompt, each.redact)
        for number, intent in enumerate(self._package.intents):
            for each in intent.parameters:
                if each.id in self._named:
                    self._variable(each.id, each.entity_type, "", each.redact)
            if unread := [quoted(each.id) for each in intent.parameters if each.id not in self._named]:
                told = f"no text and no condition reads {', '.join(unread)}"
                draft.dropped(("intents", number, "parameters"), told)
        given = {each.parameter for each in parameters_set(self._package.flows) if each.value is not None}
        draft.settled |= given - {"", *draft.variables}
        if self._package.webhooks:
            for name in sorted(self._named - given - {*draft.variables}):
                draft.variable(name, "custom", "")

    def _variable(self, name: str, entity_type: str, prompt: str, redact: bool) -> None:
        named = last_part(entity_type).removeprefix("@")
        kind, own = _SYSTEM_TYPES.get(named, "string"), self._types.get(named)
        values = [entity.value for entity in own.entities] if own else []
        at = ("entityTypes", self._package.entity_types.index(own), "entities") if own else ()
        if own and (own.kind == "KIND_REGEXP" or any(" @" in f" {value}" for value in values)):
            self._draft.changed(at, "a pattern is told to the model that listens: nothing compares with it")
            prompt = f"{prompt or f'The value of {name}.'} It looks like {' or like '.join(values)}"
            values = []
        self._draft.variable(name, "enum" if values else kind, prompt, values, sensitive=redact)
        if own and any(entity.synonyms not in {(), (entity.value,)} for entity in own.entities):
            self._draft.dropped(at, "synonyms: the model knows what is meant")

    def _page(self, flow: AgentFlow, page: Page, place: foreign.Place) -> None:
        draft = self._draft
        task = draft.task(_task_id(flow, page), page.display_name)
        self._say(task, page.entry_fulfillment, "", (*place, "entryFulfillment"))
        for number, parameter in enumerate(page.form.parameters):
            task.needs[parameter.display_name] = False
            asked = parameter.fill_behavior.initial_prompt_fulfillment
            ask = f"Ask for {parameter.display_name}"
            if not asked.spoken(draft.language):
                task.prompts.append(f"{ask}.")
            at = (*place, "form", "parameters", number, "fillBehavior", "initialPromptFulfillment")
            self._say(task, asked, f"you ask for {parameter.display_name}", at, ask)

    def _say(
        self, task: elements.TaskDraft, said: Fulfillment, when: str, place: foreign.Place, before: str = ""
    ) -> None:
        """What is said, called and set in a task; `when` is the only case in which it is, in words."""
        draft, before = self._draft, before or (f"When {when}, say" if when else "Say")
        spoken, cases = said.spoken(draft.language), [*said.by_case(draft.language)]
        if spoken:
            task.prompts.append(f'{before}: "{text_of(draft, spoken)}"')
        for condition, words in cases:
            case = f"if {plain(condition)}" if condition else "otherwise"
            task.prompts.append(f'{before}, {case}: "{text_of(draft, words)}"')
        if any("$sys.func." in words for words in (spoken, *(words for _, words in cases))):
            draft.changed(place, "functions in texts: the model makes of them what they say")
        if said.webhook:
            name = re.sub(r"\W+", "_", said.tag or last_part(said.webhook))
            draft.tool(task, name, f"What the webhook {last_part(said.webhook)} does.")
            task.prompts.append(f"Call {name}{f' when {when}' if when else ''}.")
        self._settle(task, said.set_parameter_actions, when, (*place, "setParameterActions"))
        if said.hands_over:
            draft.changed(
                (*place, "messages"), "the task is a human's: who is found stands in routingParameters"
            )
            task.human = True

    def _settle(
        self, task: elements.TaskDraft, given: Sequence[SetParameter], when: str, place: foreign.Place
    ) -> None:
        """Tells the model what the agent sets, as far as anything reads it."""
        if read := [each for each in given if each.parameter in self._named]:
            values = [(each.parameter, plain(str(each.value))) for each in read]
            task.prompts.append(self._draft.settle(values, place, when))
        if unread := [quoted(each.parameter) for each in given if each.parameter not in self._named]:
            self._draft.dropped(place, f"no text and no condition reads {', '.join(dict.fromkeys(unread))}")

    def _routes_of(
        self, number: int, flow: AgentFlow, part: AgentFlow | Page, place: foreign.Place
    ) -> Sequence[_Placed]:
        """The routes of a flow or page with their places: its own, those of the groups that it names, of its
        flow or of the agent, and handlers of events that lead on."""
        found: list[_Placed] = [
            (route, (*place, "transitionRoutes", n)) for n, route in enumerate(part.transition_routes)
        ]
        found += self._handlers(part.event_handlers, (*place, "eventHandlers"))
        for n, each in enumerate(part.form.parameters if isinstance(part, Page) else ()):
            at = (*place, "form", "parameters", n, "fillBehavior", "repromptEventHandlers")
            found += self._handlers(each.fill_behavior.reprompt_event_handlers, at)
        groups = {
            key: (group, (*owner, "routeGroups", n))
            for owner, of in (((), self._package.route_groups), (("flows", number), flow.route_groups))
            for n, group in enumerate(of)
            for key in (group.display_name, last_part(group.name))
        }
        for n, named in enumerate(part.transition_route_groups):
            if (known := groups.get(last_part(named))) is None:
                at = (*place, "transitionRouteGroups", n)
                self._draft.dropped(at, f"there is no group of routes {last_part(named)!r}")
                continue
            group, at = known
            found += [
                (route, (*at, "transitionRoutes", k)) for k, route in enumerate(group.transition_routes)
            ]
        return found

    def _handlers(self, handlers: Sequence[Route], place: foreign.Place) -> Sequence[_Placed]:
        """Those that lead on. What the others say is the model's own."""
        leading = [
            (each, (*place, n))
            for n, each in enumerate(handlers)
            if each.target_page or each.target_flow or each.target_playbook
        ]
        if len(leading) < len(handlers):
            self._draft.dropped(place, "the model finds its own words where an event leads nowhere")
        return leading

    def _every_route(self) -> Iterator[_RoutesOfTask]:
        """Of each start of a flow and each page: the flow, the task, its form, its own routes, and those of
        the flow that a page has too."""
        for number, flow in enumerate(self._package.flows):
            own = self._routes_of(number, flow, flow, ("flows", number))
            yield flow, flow.display_name, (), own, ()
            inherited = [(route, at) for route, at in own if route.intent or route.event]
            for page_number, page in enumerate(flow.pages):
                of_page = self._routes_of(number, flow, page, ("flows", number, "pages", page_number))
                yield flow, _task_id(flow, page), page.form.parameters, of_page, inherited

    def _routes(
        self,
        flow: AgentFlow,
        source: str,
        form: tuple[Parameter, ...],
        routes: Sequence[_Placed],
        again: bool = False,
    ) -> None:
        """The ways of a task. `again`: routes of the flow, which each of its pages has too."""
        draft = self._draft
        for route, at in routes:
            words, when = self._reason(route), ""
            if route.condition and route.condition.strip().casefold() != "true":
                when = condition_of(draft, route.condition, form)
                if not when:
                    words = " and ".join(filter(None, (words, plain(route.condition))))
                    draft.changed((*at, "condition"), f"the model judges {route.condition!r}")
            target, said = self._target(flow, route, at), route.trigger_fulfillment
            if not target and said.hands_over:
                target = self._person(flow.display_name if again else source)
            if not again:
                case = f"you come from {draft.tasks[source].name!r}" if target else _told(words, when, route)
                self._say(draft.tasks[target or source], said, case, (*at, "triggerFulfillment"))
            if target:
                draft.way(source, target, when=when, reason=words, place=at)
            elif _symbol(route.target_page) == "PREVIOUS_PAGE":
                case = _told(words, when, route) or "this is settled"
                draft.tasks[source].returns = True
                draft.tasks[source].prompts.append(f"When {case}, go back to where you came from.")
            elif _symbol(route.target_page).startswith("END_"):
                self._end(flow, source, route, (when, words), at)

    def _end(
        self, flow: AgentFlow, source: str, route: Route, condition: tuple[str, str], place: foreign.Place
    ) -> None:
        """An end of the flow leads back to where the flow was entered from; without such a task, as any other
        end, it is the conversation's. `condition`: in the engine's language, and in words."""
        end = _symbol(route.target_page)
        when, words = condition
        words = " and ".join(filter(None, (words, event_in_words(ENDINGS.get(end, "")))))
        callers = self._callers.get(flow.display_name, ()) if end != "END_SESSION" else ()
        for each in dict.fromkeys(callers):
            reason = words or ("" if when else "this is settled")
            self._draft.way(source, each, when=when, reason=reason, place=place)
        if not callers:
            line = f"When {_told(words, when, route) or 'this is settled'}, end the conversation."
            if line not in (own := self._draft.tasks[source].prompts):
                own.append(line)

    def _person(self, source: str) -> str:
        """The task of a human that a handover outside of pages leads to."""
        key = f"{source} → person"
        if key not in self._draft.tasks:
            self._draft.task(key, f"{self._draft.tasks[source].name}: person")
        return key

    def _target(self, flow: AgentFlow, route: Route, place: foreign.Place) -> str:
        """The task that a route leads to, `""` where it stays or ends."""
        page, into = last_part(route.target_page), last_part(route.target_flow)
        if playbook := self._playbooks.get(last_part(route.target_playbook)):
            return task_of_playbook(playbook)
        found = next(
            (each for each in flow.pages if page and page in (each.display_name, last_part(each.name))), None
        )
        if found is not None:
            return _task_id(flow, found)
        symbol = _symbol(page)
        if symbol == "START_PAGE":
            return flow.display_name
        if symbol in _STAYS or symbol == "END_SESSION" or symbol.startswith("END_FLOW"):
            other = self._flows.get(into)
            return other.display_name if other else ""
        self._draft.dropped(place, f"there is no page {page!r}")
        return ""

    def _reason(self, route: Route) -> str:
        known, intent = self._intents.get(last_part(route.intent)), last_part(route.intent)
        if known is None:
            return f"the user means {intent!r}" if intent else event_in_words(route.event)
        parts = (phrase.get("parts") for phrase in known.training_phrases if isinstance(phrase, dict))
        phrases = [
            "".join(str(part.get("text", "")) for part in each if isinstance(part, dict)).strip()
            for each in parts
            if isinstance(each, list)
        ][:_EXAMPLES]
        examples = f" (such as: {'; '.join(phrases)})" if phrases else ""
        return (known.description or f"the user means {known.display_name!r}") + examples


def _task_id(flow: AgentFlow, page: Page) -> str:
    return f"{flow.display_name}.{page.display_name}"
