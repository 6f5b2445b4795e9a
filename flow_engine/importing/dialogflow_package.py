"""What an agent of Dialogflow CX consists of: the resources of its REST API, and its JSON package as one
object of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, JsonValue
from pydantic.alias_generators import to_camel

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.importing import foreign

_SCOPE: Final = re.compile(r"^\$(?:(?:session|page)\.params|flow)\.")
_TAG: Final = re.compile(r"<[^<>]*>")


class Resource(foreign.Foreign):
    model_config = ConfigDict(alias_generator=to_camel)


class NamedResource(Resource):
    """Exports name it by `displayName`, REST by `name`, whose last part is its id."""

    display_name: str
    name: str = ""


def _without_scope(name: str) -> str:
    return _SCOPE.sub("", name)


ParameterName = Annotated[str, AfterValidator(_without_scope)]
"""As `x`, which is how `$session.params.x` and `$flow.x` are called here."""


class Text(Resource):
    text: tuple[str, ...] = ()


class AudioText(Resource):
    text: str = ""
    ssml: str = ""


class Message(Resource):
    text: Text = Text()
    language_code: str = ""
    output_audio_text: AudioText = AudioText()
    live_agent_handoff: JsonValue = None
    telephony_transfer_call: JsonValue = None

    @property
    def wording(self) -> str:
        """Its first wording in a chat, else the one on the phone; of SSML the words alone."""
        audio = self.output_audio_text
        given = self.text.text[0] if self.text.text else audio.text or audio.ssml
        return " ".join(_TAG.sub(" ", given).split()) if "<speak" in given else given


class CaseContent(Resource):
    message: Message = Message()


class Case(Resource):
    condition: str = ""
    case_content: tuple[CaseContent, ...] = ()


class Cases(Resource):
    """The first case whose condition holds is said; one without a condition is said where none does."""

    cases: tuple[Case, ...] = ()


class SetParameter(Resource):
    parameter: ParameterName = ""
    value: JsonValue = None


class Fulfillment(Resource):
    messages: tuple[Message, ...] = ()
    webhook: str = ""
    tag: str = ""
    set_parameter_actions: tuple[SetParameter, ...] = ()
    conditional_cases: tuple[Cases, ...] = ()

    @property
    def hands_over(self) -> bool:
        """To a person, in a chat or on the phone."""
        calls = (
            call for each in self.messages for call in (each.live_agent_handoff, each.telephony_transfer_call)
        )
        return any(call is not None for call in calls)

    def spoken(self, language: str) -> str:
        return _spoken(self.messages, language)

    def by_case(self, language: str) -> Iterator[tuple[str, str]]:
        """What is said where a condition holds, in the order in which they are asked; `""` is none."""
        for case in (each for cases in self.conditional_cases for each in cases.cases):
            if said := _spoken([each.message for each in case.case_content], language):
                yield case.condition, said


def _spoken(messages: Sequence[Message], language: str) -> str:
    """The first wording of each message, one after the other: of those in several languages the ones in that
    one, else in the one that comes first. A chat's and the phone's say the same."""
    chat = [each for each in messages if each.text.text]
    given = chat or [each for each in messages if each.wording]
    own = language if any(each.language_code == language for each in given) else ""
    first = own or next((each.language_code for each in given if each.language_code), "")
    return " ".join(each.wording for each in given if each.language_code in ("", first))


class Route(Resource):
    """A handler of an event is one too."""

    intent: str = ""
    event: str = ""
    condition: str = ""
    trigger_fulfillment: Fulfillment = Fulfillment()
    target_page: str = ""
    target_flow: str = ""
    target_playbook: str = ""


class FillBehavior(Resource):
    initial_prompt_fulfillment: Fulfillment = Fulfillment()
    reprompt_event_handlers: tuple[Route, ...] = ()


class Parameter(Resource):
    display_name: ParameterName
    entity_type: str = "@sys.any"
    required: bool = False
    redact: bool = False
    fill_behavior: FillBehavior = FillBehavior()


class Form(Resource):
    parameters: tuple[Parameter, ...] = ()


class RouteGroup(NamedResource):
    transition_routes: tuple[Route, ...] = ()


class Page(NamedResource):
    entry_fulfillment: Fulfillment = Fulfillment()
    form: Form = Form()
    transition_routes: tuple[Route, ...] = ()
    transition_route_groups: tuple[str, ...] = ()
    event_handlers: tuple[Route, ...] = ()


class AgentFlow(NamedResource):
    description: str = ""
    transition_routes: tuple[Route, ...] = ()
    transition_route_groups: tuple[str, ...] = ()
    event_handlers: tuple[Route, ...] = ()
    pages: tuple[Page, ...] = ()
    route_groups: tuple[RouteGroup, ...] = ()


class IntentParameter(Resource):
    id: ParameterName
    entity_type: str = "@sys.any"
    redact: bool = False


class Intent(NamedResource):
    description: str = ""
    parameters: tuple[IntentParameter, ...] = ()
    training_phrases: tuple[JsonValue, ...] = ()


class Entity(Resource):
    value: str
    synonyms: tuple[str, ...] = ()


class EntityType(NamedResource):
    kind: str = ""
    entities: tuple[Entity, ...] = ()


class PlaybookStep(Resource):
    text: str = ""
    steps: "tuple[PlaybookStep, ...]" = ()


class Instruction(Resource):
    steps: tuple[PlaybookStep, ...] = ()
    guidelines: str = ""


class Playbook(NamedResource):
    """An agent of instructions in words. Exports list its steps twice."""

    goal: str = ""
    steps: JsonValue = None
    instruction: Instruction = Instruction()
    referenced_playbooks: tuple[str, ...] = ()
    referenced_flows: tuple[str, ...] = ()
    referenced_tools: tuple[str, ...] = ()


class PlaybookTool(NamedResource):
    description: str = ""


class Agent(Resource):
    display_name: str = ""
    default_language_code: str = "en"
    supported_language_codes: tuple[str, ...] = ()
    start_flow: str = ""
    start_playbook: str = ""


class Package(Resource):
    agent: Agent = Agent()
    flows: tuple[AgentFlow, ...]
    intents: tuple[Intent, ...] = ()
    entity_types: tuple[EntityType, ...] = ()
    webhooks: tuple[JsonValue, ...] = ()
    route_groups: tuple[RouteGroup, ...] = ()
    playbooks: tuple[Playbook, ...] = ()
    tools: tuple[PlaybookTool, ...] = ()


N = TypeVar("N", bound=NamedResource)


def last_part(name: str) -> str:
    """Of `projects/…/pages/ID`, the ID."""
    return name.rpartition("/")[2]


def by_name(resources: Sequence[N]) -> Mapping[str, N]:
    """Each by its name and by its id."""
    return {key: each for each in resources for key in (each.display_name, last_part(each.name)) if key}


def parameters_set(part: object) -> Iterator[SetParameter]:
    """Everything that a part gives a value to by itself, wherever it stands in it."""
    if isinstance(part, SetParameter):
        yield part
    elif isinstance(part, Resource):
        for name in type(part).model_fields:
            yield from parameters_set(getattr(part, name))
    elif isinstance(part, tuple):
        for each in cast("tuple[object, ...]", part):
            yield from parameters_set(each)


_FOLDERS: Final = ("flows", "intents", "entityTypes", "playbooks", "tools")
"""In which each folder is a resource."""
_FLAT: Final[Mapping[str, str]] = {"webhooks": "webhooks", "agentTransitionRouteGroups": "routeGroups"}
"""In which each file is one, by what they are called in the whole."""


def gathered(files: Mapping[str, JsonValue]) -> JsonValue:
    """The files of an exported package, by their paths, as one object: `{agent, flows: [{…, pages,
    routeGroups}], intents, entityTypes, webhooks, routeGroups, playbooks, tools}`, and what else there is by
    folder. What has several languages is taken in the agent's own, else in the first one. The package may lie
    in a folder of its own. Raises CorrectTheInput where it is one of Dialogflow ES."""
    packages = [path for path in files if path.rpartition("/")[2] == "agent.json"]
    if len(packages) == 1:
        root = packages[0].removesuffix("agent.json")
        files = {path.removeprefix(root): each for path, each in files.items() if path.startswith(root)}
    agent = files.get("agent.json", {})
    language = str(agent.get("defaultLanguageCode", "en")) if isinstance(agent, dict) else "en"
    found: dict[str, list[JsonValue]] = {kind: [] for kind in (*_FOLDERS, *_FLAT.values())}
    for path, body in sorted(files.items()):
        kind, *parts = path.removesuffix(".json").split("/")
        if not path.endswith(".json") or not isinstance(body, dict):
            continue
        if kind in _FLAT and len(parts) == 1:
            found[_FLAT[kind]].append(body)
        elif kind in _FOLDERS and len(parts) == 2:
            inside = f"{kind}/{parts[0]}/"
            below = {
                name.removeprefix(inside): files[name] for name in sorted(files) if name.startswith(inside)
            }
            found[kind].append({**body, **_parts(below, language)})
    if not found["flows"] and any(re.fullmatch(r"intents/[^/]+\.json", path) for path in files):
        told = "an agent of Dialogflow ES: accepted is the JSON package of one of Dialogflow CX"
        raise CorrectTheInput("original_invalid", told, (Finding("", "nothing_to_import", told),))
    others = {path.partition("/")[0] for path in files if "/" in path} - {*_FOLDERS, *_FLAT}
    return {"agent": agent, **found, **dict.fromkeys(sorted(others))}


def _parts(below: Mapping[str, JsonValue], language: str) -> Mapping[str, JsonValue]:
    """Pages and groups of routes, and training phrases and entities in one language, from the folders of one
    resource."""
    parts: dict[str, JsonValue] = {}
    lists = {"pages": "pages", "transitionRouteGroups": "routeGroups"}
    for path, body in below.items():
        folder, _, rest = path.partition("/")
        if folder in lists and rest:
            cast(list[JsonValue], parts.setdefault(lists[folder], [])).append(body)
        elif folder in {"trainingPhrases", "entities"} and isinstance(body, dict):
            if folder not in parts or rest == f"{language}.json":
                parts[folder] = body.get(folder, [])
        elif rest or not folder.endswith(".json"):
            parts[folder] = None
    return parts
