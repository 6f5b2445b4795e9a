"""The OpenAPI document, written from the table of endpoints (F36), and `/docs`, the page that shows it.

Examples of replies are in `examples.json`, by method and path. Flow versions have the schema that the product
publishes; its definitions stand among the components, as `FlowVersion.Task`. The page loads everything from
this service itself.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import orjson
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import TypeAdapter
from pydantic.json_schema import NoDefault
from pydantic_core import core_schema
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from api.endpoints import FLOW_VERSION, JSON, NEW_FLOW_VERSION, Endpoint
from api.problems import Problem
from flow_engine.documents import SET_BY_SERVER
from flow_engine.documents.json_schema import SchemaGenerator, version_schema
from flow_engine.problems import problem_document

_REF = "#/components/schemas/{model}"
_PUBLISHED = (FLOW_VERSION, NEW_FLOW_VERSION)
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Repeat a request with its key and it takes effect once; kept for 24 hours",
}
_EXAMPLES: Mapping[str, object] = orjson.loads((Path(__file__).parent / "examples.json").read_bytes())
_PROBLEMS: Mapping[int, tuple[str, str]] = {
    400: ("json_invalid", "The body is no JSON"),
    401: ("key_missing", "No API key, or one that is not known"),
    403: ("scope_missing", "The key has none of the scopes; without keys, a caller from elsewhere"),
    404: ("conversation_unknown", "Nothing is there, or it is another tenant's"),
    409: ("contact_ended", "The present state forbids it; `state` and `accepted` tell how to go on"),
    413: ("too_large", "The body is too large"),
    422: ("body_invalid", "The request cannot be taken; `errors` has every breach with its JSON pointer"),
    500: ("internal_error", "A bug or a state that an operator has to look at; it is logged"),
    501: ("graphviz_missing", "The format is not available on this installation"),
    503: ("memory_unavailable", "A store or a model is away; send it again after `Retry-After`"),
}
"""What a status means, with a code that it may have."""

_READ_FIRST = (
    "[A conversation by example](README.md), [every page](llms.txt), "
    "[the JSON Schema of a flow's versions](schemas/flow-version.json)."
)
_AT_THE_ROOT = frozenset(("operators", "editors"))

Document = dict[str, Any]


class _Generator(SchemaGenerator):
    """Of a property that may be left out or null the default says nothing; generators of TypeScript take one
    for a promise that it is always there, in what they let a program send too."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        default = super().get_default_value(schema)
        return NoDefault if default is None else default


def openapi_document(endpoints: Sequence[Endpoint], *, prefix: str, title: str, version: str) -> Document:
    """OpenAPI 3.1, as JSON values. Raises KeyError for a body without an example."""
    inputs = {id(e.body): (id(e.body), "validation", e.body) for e in endpoints if e.body is not None}
    outputs = {id(e.reply): (id(e.reply), "serialization", TypeAdapter[Any](e.reply)) for e in endpoints}
    outputs[id(Problem)] = (id(Problem), "serialization", TypeAdapter(Problem))
    mapping, definitions = TypeAdapter.json_schemas(
        cast("Any", [*inputs.values(), *outputs.values()]),
        ref_template=_REF,
        schema_generator=_Generator,
    )
    schemas: Mapping[tuple[int, str], Document] = {
        which: {"$ref": _REF.format(model=schema["$comment"])}
        if schema.get("$comment") in _PUBLISHED
        else schema
        for which, schema in cast("Mapping[tuple[int, str], Document]", mapping).items()
    }
    paths: dict[str, Document] = {}
    for endpoint in endpoints:
        path = prefix_of(endpoint, prefix) + plain_path(endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": _READ_FIRST},
        "servers": [{"url": "."}],  # beside the document, below the path of a proxy too
        "paths": paths,
        "components": {
            "schemas": {**definitions["$defs"], **_flow_version_components()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def prefix_of(endpoint: Endpoint, prefix: str) -> str:
    """Health and metrics stand at the root, where operators look for them; schemas at an address for good.
    Empty for those. The start of a URL's path."""
    return "" if endpoint.audience in _AT_THE_ROOT else prefix


def plain_path(path: str) -> str:
    return path.replace(":id}", "}")


def _flow_version_components() -> Document:
    """The published schema twice: of versions as they are saved, and of what has to be sent of them."""

    def placed(part: Any) -> Any:
        if isinstance(part, dict):
            inner = {name: placed(value) for name, value in cast("Document", part).items()}
            reference = inner.get("$ref")
            if isinstance(reference, str):
                inner["$ref"] = reference.replace("#/$defs/", "#/components/schemas/FlowVersion.")
            return inner
        return [placed(each) for each in cast("list[Any]", part)] if isinstance(part, list) else part

    schema: Document = placed(version_schema())
    definitions: Document = {}
    for name, each in schema.pop("$defs").items():
        each.pop("title")  # generators of clients name classes by it, and replies have an LlmConfig too
        definitions[f"FlowVersion.{name}"] = each
    saved = {name: value for name, value in schema.items() if name not in ("$schema", "$id")}
    sent: Document = {**deepcopy(saved), "title": "New flow version"}
    for rule in sent["allOf"]:
        rule["then"]["required"] = [name for name in rule["then"]["required"] if name not in SET_BY_SERVER]
    return {FLOW_VERSION: saved, NEW_FLOW_VERSION: sent, **definitions}


def _operation(endpoint: Endpoint, path: str, schemas: Mapping[tuple[int, str], Document]) -> Document:
    reply = schemas[id(endpoint.reply), "serialization"]
    example = _EXAMPLES.get(f"{endpoint.method} {path}")
    shapes: Mapping[str, Document] = {"json": reply, "yaml": {"type": "object"}}
    content: Document = {
        media_type: {"schema": shapes.get(media_type[-4:], {"type": "string"})}
        for media_type in endpoint.media_types
    }
    if example is not None:
        content[JSON]["example"] = example
    told = {parameter.name for parameter in endpoint.parameters or ()}
    parameters: list[Mapping[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", plain_path(endpoint.path))
        if name not in told
    ]
    parameters += [
        {
            "name": parameter.name,
            "in": parameter.place,
            "required": parameter.required,
            "description": parameter.description,
            "schema": parameter.schema,
        }
        for parameter in endpoint.parameters or ()
    ]
    operation: Document = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()}{path.replace('/', '_').replace('{', '').replace('}', '')}",
        "tags": [endpoint.audience],
        "parameters": [*parameters, _KEY_PARAMETER] if endpoint.keyed else parameters,
        "responses": {
            str(endpoint.status): {"description": "Success", "content": content},
            **_problem_responses(endpoint, schemas),
        },
        "security": [{"key": []}] if endpoint.scopes else [],
        "x-scopes": list(endpoint.scopes),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {
                JSON: {
                    "schema": schemas[id(endpoint.body), "validation"],
                    "example": endpoint.body_example or _EXAMPLES[f"body of {endpoint.method} {path}"],
                }
            },
        }
    return operation


def problem_statuses(endpoint: Endpoint) -> tuple[int, ...]:
    """Every status of a problem that this endpoint may answer with. In ascending order; a bug's 500 and every
    refusal's are among them."""
    if not endpoint.scopes:
        return endpoint.problems
    statuses = {401, 403, 422, 500, 503, *endpoint.problems}
    if endpoint.method != "GET":
        statuses |= {400, 413}
    return tuple(sorted(statuses))


def _problem_responses(endpoint: Endpoint, schemas: Mapping[tuple[int, str], Document]) -> Document:
    problem = schemas[id(Problem), "serialization"]
    responses: Document = {}
    for status in problem_statuses(endpoint):
        code, meaning = _PROBLEMS[status]
        problem_example: Document = problem_document(status, HTTPStatus(status).phrase, code, meaning)
        content: Document = {"application/problem+json": {"schema": problem, "example": problem_example}}
        if endpoint.path == "/health/ready":
            away = {"status": "unavailable", "checks": {"memory": "Redis does not answer", "flows": "ok"}}
            content = {JSON: {"schema": schemas[id(endpoint.reply), "serialization"], "example": away}}
        responses[str(status)] = {"description": meaning, "content": content}
    if any(parameter.name == "If-None-Match" for parameter in endpoint.parameters or ()):
        responses["304"] = {"description": HTTPStatus(304).phrase}
    if any(parameter.name == "Last-Event-ID" for parameter in endpoint.parameters or ()):
        responses["204"] = {"description": HTTPStatus(204).phrase}
    return responses


# --- the page ---------------------------------------------------------------------------------

_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
# The page runs one script of its own; nothing may come from elsewhere or go there.
_OWN = "'self' 'unsafe-inline'"
_POLICY = f"default-src 'self'; script-src {_OWN}; style-src {_OWN}; img-src 'self' data:"
_NO_ICON = "data:,"


def reference_routes(title: str) -> list[Route]:
    """The page and the two files that it loads. Every URL on it is of this service."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url=_NO_ICON,
    )
    page.headers["Content-Security-Policy"] = _POLICY
    folder = files("fastapi_swagger") / "resources"
    assets = {
        f"/docs/{name}": FileResponse(
            str(folder / name), media_type=kind, headers={"Cache-Control": "public, max-age=86400"}
        )
        for name, kind in _ASSETS.items()
    }
    return [_route("/docs", page), *(_route(path, asset) for path, asset in assets.items())]


def _route(path: str, response: Response) -> Route:
    async def answer(request: Request) -> Response:
        return response

    return Route(path, answer, methods=["GET"], include_in_schema=False)
