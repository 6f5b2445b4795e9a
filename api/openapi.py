"""The OpenAPI document, written from the table of endpoints (F36)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from pydantic import TypeAdapter

from api.endpoints import JSON, Endpoint
from api.problems import Problem

PROBLEM = TypeAdapter(Problem)
_REF = "#/components/schemas/{model}"
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Repeat a request with its key and it takes effect once; kept for 24 hours",
}
_AT_THE_ROOT = frozenset(("operators", "editors"))

Document = dict[str, Any]


def openapi_document(endpoints: Sequence[Endpoint], *, prefix: str, title: str, version: str) -> Document:
    schemas, components = _schemas(endpoints)
    paths: dict[str, Document] = {}
    for endpoint in endpoints:
        path = prefix_of(endpoint, prefix) + plain_path(endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def prefix_of(endpoint: Endpoint, prefix: str) -> str:
    """Health and metrics stand at the root, where operators look for them; schemas at an address for good."""
    return "" if endpoint.audience in _AT_THE_ROOT else prefix


def plain_path(path: str) -> str:
    return path.replace(":id}", "}")


def _schemas(endpoints: Iterable[Endpoint]) -> tuple[Mapping[tuple[int, str], Document], Document]:
    inputs = {id(e.body): (id(e.body), "validation", e.body) for e in endpoints if e.body is not None}
    outputs = {id(e.reply): (id(e.reply), "serialization", e.reply) for e in endpoints}
    outputs[id(PROBLEM)] = (id(PROBLEM), "serialization", PROBLEM)
    mapping, definitions = TypeAdapter.json_schemas(
        cast("Any", [*inputs.values(), *outputs.values()]), ref_template=_REF
    )
    return cast("Any", mapping), definitions["$defs"]


def _operation(endpoint: Endpoint, path: str, schemas: Mapping[tuple[int, str], Document]) -> Document:
    reply = schemas[id(endpoint.reply), "serialization"]
    content = {
        media_type: {"schema": reply if media_type.endswith("json") else {"type": "string"}}
        for media_type in endpoint.media_types
    }
    operation: Document = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()}{path.replace('/', '_').replace('{', '').replace('}', '')}",
        "tags": [endpoint.audience],
        "parameters": _parameters(endpoint),
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
                JSON: {"schema": schemas[id(endpoint.body), "validation"], "example": endpoint.body_example}
            },
        }
    return operation


def _parameters(endpoint: Endpoint) -> list[Mapping[str, object]]:
    in_path = [part[1:-1] for part in plain_path(endpoint.path).split("/") if part.startswith("{")]
    parameters: list[Mapping[str, object]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in in_path
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
    return [*parameters, _KEY_PARAMETER] if endpoint.keyed else parameters


def problem_statuses(endpoint: Endpoint) -> tuple[int, ...]:
    """Every status of a problem that this endpoint may answer with."""
    if not endpoint.scopes:
        return (503,) if endpoint.path == "/health/ready" else ()
    statuses = {401, 403, 422, 500, 503, *endpoint.problems}
    if endpoint.body is not None:
        statuses |= {400, 413}
    return tuple(sorted(statuses))


def _problem_responses(endpoint: Endpoint, schemas: Mapping[tuple[int, str], Document]) -> Document:
    problem = schemas[id(PROBLEM), "serialization"]
    responses: Document = {}
    for status in problem_statuses(endpoint):
        content = {"application/problem+json": {"schema": problem}}
        if endpoint.path == "/health/ready":
            content = {JSON: {"schema": schemas[id(endpoint.reply), "serialization"]}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    if any(parameter.name == "If-None-Match" for parameter in endpoint.parameters or ()):
        responses["304"] = {"description": HTTPStatus(304).phrase}
    return responses
