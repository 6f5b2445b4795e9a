"""Every status that the voice agent's HTTP side refuses with, in one table (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import orjson
from starlette.responses import Response

from flow_engine.errors import FlowEngineError

MEDIA_TYPE = "application/problem+json"

STATUS_OF_CODE: Mapping[str, int] = {
    "json_invalid": 400,
    "form_invalid": 400,
    "upgrade_invalid": 400,
    "signature_missing": 403,
    "signature_wrong": 403,
    "signature_old": 403,
    "not_local": 403,
    "path_unknown": 404,
    "method_not_allowed": 405,
    "too_slow": 408,
    "too_large": 413,
    "media_type_unsupported": 415,
    "event_invalid": 422,
    "upgrade_needed": 426,
    "internal_error": 500,
    "sip_not_configured": 501,
}


def problem_document(code: str, detail: str) -> tuple[int, bytes]:
    status = STATUS_OF_CODE[code]
    document: dict[str, object] = {
        "type": f"urn:flow-engine:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": [],
    }
    return status, orjson.dumps(document)


def problem_response(code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    status, body = problem_document(code, detail)
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def error_response(error: FlowEngineError) -> Response:
    return problem_response(error.code, error.detail)
