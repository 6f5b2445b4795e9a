"""What a designer's editor works with (F27): choices, help with writing, diagrams, the documents' schema."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import orjson
from pydantic import Field, TypeAdapter
from starlette.responses import Response
from typing_extensions import TypedDict

from api.bodies import Body, Name
from api.endpoints import JSON, Call, Endpoint, Parameter, for_designers, json_response, one_of
from flow_engine.diagrams.graphviz import dot
from flow_engine.diagrams.mermaid import mermaid
from flow_engine.diagrams.xstate import xstate
from flow_engine.documents import AudioMediaConfigPreset, FlowVersion
from flow_engine.documents.findings import nearest
from flow_engine.documents.json_schema import SCHEMA_VERSION, version_schema
from flow_engine.errors import LookElsewhere
from flow_engine.ports.designer_help import DiagramRenderer
from flow_engine.ports.system_prompts import SystemPrompts
from flow_engine.testing.simulation import persona_schema
from flow_engine.use_cases import model_catalog
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.recording_format import FORMAT_VERSION, recording_schema

_Diagram = TypeVar("_Diagram")

MODEL_PROVIDERS: tuple[str, ...] = get_args(model_catalog.ModelProvider)
VOICE_PROVIDERS: tuple[str, ...] = get_args(model_catalog.VoiceProvider)
STT_PROVIDERS: tuple[str, ...] = get_args(model_catalog.SttProvider)


class LanguageReply(TypedDict):
    """`systemPrompts`: the platform's own prompts are written in it (F26)."""

    code: str
    name: str
    englishName: str
    systemPrompts: bool


class AudioPresetReply(AudioMediaConfigPreset):
    """A preset of the platform under the id that `mediaConfig.audio.presetId` names."""

    preset_id: str


class ImproveDescription(Body):
    """`language` is a BCP 47 tag; missing: the description's own language."""

    description: Annotated[str, Field(min_length=1, max_length=10_000)]
    task_name: Name | None = None
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)] | None = (
        None
    )


class ImprovedDescription(TypedDict):
    description: str


_IMPROVE = TypeAdapter(ImproveDescription)
_LANGUAGE = Parameter("language", "Only what speaks this BCP 47 tag, or this language, such as `it`")


class HelperRoutes:
    def __init__(
        self,
        catalog: model_catalog.ModelCatalog,
        prompts: SystemPrompts,
        rewriter: model_catalog.ModelRewriter,
    ) -> None:
        self._catalog = catalog
        self._prompts = prompts
        self._rewriter = rewriter

    async def models(self, call: Call) -> Response:
        provider = call.choice("provider", MODEL_PROVIDERS)
        return _offered([m for m in self._catalog.models if provider in (None, m.provider)])

    async def voices(self, call: Call) -> Response:
        return _spoken(call, self._catalog.voices, VOICE_PROVIDERS)

    async def stt_engines(self, call: Call) -> Response:
        return _spoken(call, self._catalog.stt_engines, STT_PROVIDERS)

    async def languages(self, call: Call) -> Response:
        written = {
            language
            for api_version in self._prompts.api_versions()
            for language in self._prompts.available_languages(api_version)
        }
        return json_response(
            [
                LanguageReply(
                    code=language.code,
                    name=language.name,
                    englishName=language.english_name,
                    systemPrompts=language.code in written,
                )
                for language in self._catalog.languages
            ]
        )

    async def audio_presets(self, call: Call) -> Response:
        presets = self._prompts.audio_presets()
        return json_response([{"presetId": name, **preset} for name, preset in presets.items()])

    async def improve_description(self, call: Call) -> Response:
        body = call.parse(_IMPROVE)
        draft = model_catalog.DescriptionDraft(body.description, body.task_name, body.language)
        return json_response(ImprovedDescription(description=await self._rewriter.entry_rule(draft)))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "GET /helpers/models",
                self.models,
                "Models to choose from",
                list[model_catalog.ModelOffer],
                parameters=(_provider(MODEL_PROVIDERS),),
            ),
            for_designers(
                "GET /helpers/voices",
                self.voices,
                "Voices to choose from",
                list[model_catalog.VoiceOffer],
                parameters=(_provider(VOICE_PROVIDERS), _LANGUAGE),
            ),
            for_designers(
                "GET /helpers/stt-engines",
                self.stt_engines,
                "Speech recognisers to choose from",
                list[model_catalog.SttEngineOffer],
                parameters=(_provider(STT_PROVIDERS), _LANGUAGE),
            ),
            for_designers(
                "GET /helpers/languages", self.languages, "Languages to choose from", list[LanguageReply]
            ),
            for_designers(
                "GET /helpers/audio-presets",
                self.audio_presets,
                "The platform's presets",
                list[AudioPresetReply],
            ),
            for_designers(
                "POST /helpers/improve-description",
                self.improve_description,
                "Rewrite a task's description into a rule for entering the task",
                ImprovedDescription,
                body=_IMPROVE,
                body_example={"description": "books visits", "taskName": "booking", "language": "en-US"},
            ),
        ]


def _provider(names: tuple[str, ...]) -> Parameter:
    return Parameter("provider", "Only what this provider offers", one_of(names))


def _spoken(
    call: Call,
    offers: Sequence[model_catalog.VoiceOffer | model_catalog.SttEngineOffer],
    providers: tuple[str, ...],
) -> Response:
    provider, language = call.choice("provider", providers), call.query("language")
    found = [offer for offer in offers if provider in (None, offer.provider)]
    return _offered([o for o in found if language is None or model_catalog.speaks(o.languages, language)])


def _offered(offers: Sequence[model_catalog.Offer]) -> Response:
    return json_response([offer.model_dump(mode="json", by_alias=True) for offer in offers])


FORMATS = ("mermaid", "svg", "xstate")
MERMAID = "text/vnd.mermaid"
SVG = "image/svg+xml"

# Opened by itself in a browser an image is a page of this origin: nothing in it may run or load.
_SVG_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}


class DiagramRoutes:
    """A saved version, or a draft as far as it goes, as a diagram. As Mermaid, SVG, DOT or JSON. Raises
    CallTheOperator `graphviz_missing` where no Graphviz is installed."""

    def __init__(self, flow_service: FlowService, renderer: DiagramRenderer) -> None:
        self._flow_service = flow_service
        self._renderer = renderer

    async def diagram(self, call: Call) -> Response:
        chosen = call.choice("format", FORMATS) or "mermaid"
        document = await self._flow_service.get_version_document(
            call.tenant_id, call.path("flow_id"), call.path("version_id")
        )
        if chosen == "xstate":
            return json_response(await asyncio.to_thread(_drawn, document, xstate))
        if chosen == "mermaid":
            return Response(await asyncio.to_thread(_drawn, document, mermaid), media_type=MERMAID)
        image = await self._renderer.svg(await asyncio.to_thread(_drawn, document, dot))
        return Response(image, headers=_SVG_HEADERS, media_type=SVG)

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "GET /flows/{flow_id}/versions/{version_id}/diagram",
                self.diagram,
                "A version as a diagram, or as the configuration of an XState machine",
                dict[str, object],
                parameters=(
                    Parameter(
                        "format",
                        "Mermaid text, an SVG image, or JSON for XState 5",
                        {**one_of(FORMATS), "default": "mermaid"},
                    ),
                ),
                media_types=(MERMAID, SVG, JSON),
                problems=(404, 409, 501),
            )
        ]


def _drawn(document: bytes, draw: Callable[[FlowVersion], _Diagram]) -> _Diagram:
    """The document was checked when it was saved, with the limits of that time."""
    return draw(FlowVersion.model_validate(orjson.loads(document)))


SCHEMA_JSON, PLAIN = "application/schema+json", "text/plain"
MARKDOWN = "text/markdown"
_HERE = Path(__file__).parent
# The overview, README.md and docs/: in an installation beside this module, else in the repository.
_PAGES = _HERE / "pages" if (_HERE / "pages").is_dir() else _HERE.parent
# An editor that runs in a page of another origin may read it: it is the same for everybody.
_SCHEMA_HEADERS = {"Cache-Control": "public, max-age=3600", "Access-Control-Allow-Origin": "*"}


@cache
def _encoded(schema: Callable[[], dict[str, Any]]) -> bytes:
    return orjson.dumps(schema())


async def _schema(made: Callable[[], dict[str, Any]], call: Call) -> Response:
    return Response(_encoded(made), headers=_SCHEMA_HEADERS, media_type=SCHEMA_JSON)


async def _file(name: str, media_type: str, _: Call) -> Response:
    return Response((_PAGES / name).read_bytes(), headers=_SCHEMA_HEADERS, media_type=media_type)


async def _page(folder: str, parameter: str, call: Call) -> Response:
    """Raises LookElsewhere `page_unknown`."""
    page, pages = call.path(parameter), sorted(each.stem for each in (_PAGES / folder).glob("*.md"))
    if page not in pages:
        raise LookElsewhere("page_unknown", f"there is no page {page!r}; {nearest(page, pages)}")
    return await _file(f"{folder}/{page}.md", MARKDOWN, call)


class SchemaRoutes:
    """The JSON Schemas of flow versions, recordings and personas, at addresses that editors may keep, the
    overview for models and the pages that it leads to. They need no key."""

    def endpoints(self) -> list[Endpoint]:
        overview = Endpoint(
            "GET /llms.txt",
            partial(_file, "llms.txt", PLAIN),
            "What there is to read about the service, for models",
            str,
            audience="editors",
            scopes=(),
            media_types=(PLAIN,),
        )
        readme = replace(
            overview,
            route="GET /README.md",
            handler=partial(_file, "README.md", MARKDOWN),
            summary="What the service is, by example",
            media_types=(MARKDOWN,),
        )
        page = replace(
            readme,
            route="GET /docs/{page}.md",
            handler=partial(_page, "docs", "page"),
            summary="A page of the documentation",
            problems=(404,),
        )
        decision = replace(
            page,
            route="GET /docs/decisions/{decision}.md",
            handler=partial(_page, "docs/decisions", "decision"),
            summary="What was decided, and against what",
        )
        return [overview, readme, page, decision, *self._schemas()]

    @staticmethod
    def _schemas() -> list[Endpoint]:
        return [
            Endpoint(
                f"GET {path}",
                partial(_schema, made),
                summary,
                dict[str, object],
                audience="editors",
                scopes=(),
                media_types=(SCHEMA_JSON,),
            )
            for name, made, what, version in (
                ("flow-version", version_schema, "flow versions", SCHEMA_VERSION),
                ("recording", recording_schema, "recordings", FORMAT_VERSION),
                ("persona", persona_schema, "personas of simulated users", "1"),
            )
            for path, summary in (
                (f"/schemas/{name}/{version}.json", f"JSON Schema of {what}, {version}"),
                (f"/schemas/{name}.json", f"JSON Schema of {what}, the newest"),
            )
        ]
