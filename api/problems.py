"""Every status that this API answers with other than success, in one table (F36, RFC 9457)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NotRequired, TypeVar

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict

from flow_engine.errors import (
    CallTheOperator,
    CorrectTheInput,
    Finding,
    FlowEngineError,
    LookElsewhere,
    ReloadAndDecide,
    RetryLater,
)
from flow_engine.problems import problem_document, problem_of

_Answer = TypeVar("_Answer")

_STATUS_OF_KIND: Mapping[type[FlowEngineError], tuple[int, str]] = {
    CorrectTheInput: (422, "The request cannot be taken as it is"),
    LookElsewhere: (404, "Nothing is there"),
    ReloadAndDecide: (409, "The current state forbids it"),
    RetryLater: (503, "Try again later"),
    CallTheOperator: (500, "An operator has to look at this"),
}
_STATUS_OF_CODE: Mapping[str, int] = {
    "json_invalid": 400,
    "too_large": 413,
    "key_missing": 401,
    "key_unknown": 401,
    "scope_missing": 403,
    "host_not_local": 403,
    "origin_not_local": 403,
    "proxied_without_keys": 403,
    "feature_not_configured": 503,
    "model_not_configured": 503,
    "graphviz_missing": 501,
}


class FindingReply(TypedDict):
    pointer: str
    code: str
    message: str


class Problem(TypedDict):
    """An RFC 9457 problem document. `errors` lists every breach; `state` and `accepted` help to go on."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: Sequence[FindingReply]
    state: NotRequired[Mapping[str, object]]
    accepted: NotRequired[Sequence[str]]


def problem_response(
    status: int,
    title: str,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return _sent(problem_document(status, title, code, detail), status, headers)


def _sent(document: Mapping[str, object], status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(document), status, headers=dict(headers or {}), media_type="application/problem+json"
    )


def internal_error() -> Response:
    """A bug, which is logged where it is caught: callers learn nothing else of it. JSON by RFC 9457."""
    detail = "the service has an error, which is logged"
    return problem_response(500, "An error of this service", "internal_error", detail)


def findings_reply(findings: Sequence[Finding]) -> list[FindingReply]:
    return [FindingReply(pointer=f.pointer, code=f.code, message=f.message) for f in findings]


def error_response(error: FlowEngineError) -> Response:
    kind_status, title = _STATUS_OF_KIND[type(error)]
    status = _STATUS_OF_CODE.get(error.code, kind_status)
    document, headers = problem_of(error, status, title)
    return _sent(document, status, headers)


async def bugs_answered(work: Awaitable[_Answer], answer: Callable[[Exception], _Answer]) -> _Answer:
    """The API's outermost layer, the only one that catches everything: what no code below has foreseen is a
    bug, which `answer` logs and turns into a reply. Nothing of the exception's text leaves the service."""
    try:
        return await work
    except Exception as bug:  # noqa: BLE001  the outermost layer
        return answer(bug)
