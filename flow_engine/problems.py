"""Problem documents (RFC 9457), as every server here tells of an error in JSON."""

from collections.abc import Sequence

from flow_engine.errors import CorrectTheInput, Finding, FlowEngineError, ReloadAndDecide, RetryLater


def problem_document(
    status: int, title: str, code: str, detail: str, findings: Sequence[Finding] = (), **more: object
) -> dict[str, object]:
    return {
        "type": f"urn:flow-engine:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": [{"pointer": f.pointer, "code": f.code, "message": f.message} for f in findings],
        **more,
    }


def problem_of(error: FlowEngineError, status: int, title: str) -> tuple[dict[str, object], dict[str, str]]:
    """The document and the headers that go with it."""
    findings: Sequence[Finding] = ()
    more: dict[str, object] = {}
    headers: dict[str, str] = {}
    match error:
        case CorrectTheInput():
            findings = error.findings
        case ReloadAndDecide():
            more = {"state": error.state, "accepted": list(error.accepted)}
        case RetryLater():
            headers["Retry-After"] = str(error.after_seconds)
        case _:
            pass
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return problem_document(status, title, error.code, error.detail, findings, **more), headers
