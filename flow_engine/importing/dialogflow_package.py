"""What an agent of Dialogflow CX consists of: the resources of its REST API, and its JSON package as one
object of them.
"""

from collections.abc import Mapping
from typing import Final, cast

from pydantic import ConfigDict, JsonValue
from pydantic.alias_generators import to_camel

from flow_engine.importing import foreign


class Resource(foreign.Foreign):
    model_config = ConfigDict(alias_generator=to_camel)


class Text(Resource):
    text: tuple[str, ...] = ()


class Message(Resource):
    text: Text = Text()
    language_code: str = ""
    output_audio_text: Text | None = None
    live_agent_handoff: JsonValue = None


class Fulfillment(Resource):
    messages: tuple[Message, ...] = ()
    webhook: str = ""
    tag: str = ""
    set_parameter_actions: tuple[JsonValue, ...] = ()

    def spoken(self, language: str) -> str:
        """The first wording of each message, one after the other: of those in several languages the ones in
        that one, else in the one that comes first."""
        given = [each for each in self.messages if each.text.text]
        own = language if any(each.language_code == language for each in given) else ""
        first = own or next((each.language_code for each in given if each.language_code), "")
        return " ".join(each.text.text[0] for each in given if each.language_code in ("", first))


class FillBehavior(Resource):
    initial_prompt_fulfillment: Fulfillment = Fulfillment()


class Parameter(Resource):
    display_name: str
    entity_type: str = "@sys.any"
    required: bool = False
    redact: bool = False
    fill_behavior: FillBehavior = FillBehavior()


class Form(Resource):
    parameters: tuple[Parameter, ...] = ()


class Route(Resource):
    intent: str = ""
    condition: str = ""
    trigger_fulfillment: Fulfillment = Fulfillment()
    target_page: str = ""
    target_flow: str = ""


class RouteGroup(Resource):
    display_name: str
    name: str = ""
    transition_routes: tuple[Route, ...] = ()


class Page(Resource):
    display_name: str
    name: str = ""
    entry_fulfillment: Fulfillment = Fulfillment()
    form: Form = Form()
    transition_routes: tuple[Route, ...] = ()
    transition_route_groups: tuple[str, ...] = ()


class AgentFlow(Resource):
    display_name: str
    name: str = ""
    description: str = ""
    transition_routes: tuple[Route, ...] = ()
    transition_route_groups: tuple[str, ...] = ()
    pages: tuple[Page, ...] = ()
    route_groups: tuple[RouteGroup, ...] = ()


class Intent(Resource):
    display_name: str
    name: str = ""
    description: str = ""
    training_phrases: tuple[JsonValue, ...] = ()


class Entity(Resource):
    value: str
    synonyms: tuple[str, ...] = ()


class EntityType(Resource):
    display_name: str
    name: str = ""
    entities: tuple[Entity, ...] = ()


class Agent(Resource):
    display_name: str = ""
    default_language_code: str = "en"
    supported_language_codes: tuple[str, ...] = ()
    start_flow: str = ""


class Package(Resource):
    agent: Agent = Agent()
    flows: tuple[AgentFlow, ...]
    intents: tuple[Intent, ...] = ()
    entity_types: tuple[EntityType, ...] = ()
    webhooks: tuple[JsonValue, ...] = ()
    route_groups: tuple[RouteGroup, ...] = ()


_KINDS: Final = ("flows", "intents", "entityTypes", "webhooks", "agentTransitionRouteGroups")
_FLAT: Final = ("webhooks", "agentTransitionRouteGroups")
"""Of these each file is a resource, of the others each folder."""


def gathered(files: Mapping[str, JsonValue]) -> JsonValue:
    """The files of an exported package, by their paths, as one object: `{agent, flows: [{…, pages,
    routeGroups}], intents, entityTypes, webhooks, routeGroups}`, and what else there is by folder. What has
    several languages is taken in the agent's own, else in the first one."""
    agent = files.get("agent.json", {})
    found: dict[str, JsonValue] = {"agent": agent}
    language = str(agent.get("defaultLanguageCode", "en")) if isinstance(agent, dict) else "en"
    for kind in _KINDS:
        rows: list[JsonValue] = []
        for path in sorted(files):
            parts, body = path.split("/"), files[path]
            if parts[0] != kind or len(parts) != (2 if kind in _FLAT else 3) or not isinstance(body, dict):
                continue
            inside = f"{'/'.join(parts[:-1])}/"
            below = {
                name.removeprefix(inside): each
                for name, each in sorted(files.items())
                if name.startswith(inside)
            }
            rows.append(body if kind in _FLAT else {**body, **_parts(below, language)})
        found["routeGroups" if kind == _FLAT[1] else kind] = rows
    others = {path.partition("/")[0] for path in files if "/" in path} - {*_KINDS}
    return {**found, **dict.fromkeys(sorted(others))}


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
        elif rest:
            parts[folder] = None
    return parts
