"""Requests as they come in, and refusals as they go out, with every status in one table (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Literal, cast

import orjson
from starlette.requests import Request
from starlette.responses import Response

from channels.http_requests import whole_body
from channels.voice.server.public_address import RequestInfo
from flow_engine import problems
from flow_engine.errors import Finding

MEDIA_TYPE = "application/problem+json"
MAX_BODY_BYTES = 64 * 1024
BODY_WITHIN_S = 10.0

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
    "config_refused": 422,
    "event_invalid": 422,
    "upgrade_needed": 426,
    "internal_error": 500,
    "sip_not_configured": 501,
}


def problem_document(code: str, detail: str, findings: Sequence[Finding] = ()) -> tuple[int, bytes]:
    """Status and body, JSON of `MEDIA_TYPE`. A code that is not in the table is an error of this service."""
    status = STATUS_OF_CODE.get(code, STATUS_OF_CODE["internal_error"])
    return status, orjson.dumps(
        problems.problem_document(status, HTTPStatus(status).phrase, code, detail, findings)
    )


def problem_response(
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    *,
    findings: Sequence[Finding] = (),
) -> Response:
    """A problem document (RFC 9457), JSON, as a response."""
    status, body = problem_document(code, detail, findings)
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def json_response(document: Mapping[str, object], status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def request_info(request: Request) -> RequestInfo:
    scope = request.scope
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    target = path + b"?" + query if query else path
    scheme = cast(Literal["http", "https"], scope["scheme"])
    peer = None if request.client is None else request.client.host
    return RequestInfo(scheme, peer, target.decode("latin-1"), request.headers)


async def read_body(request: Request) -> bytes:
    """At most 64 KiB within 10 s. Raises CorrectTheInput `too_large` as soon as the body is, `too_slow`,
    `json_invalid`."""
    return await whole_body(request, most_bytes=MAX_BODY_BYTES, within_s=BODY_WITHIN_S)
