"""Every error that leaves the core, named by what the reader does next.

FlowEngineError
├── CorrectTheInput       the request cannot be taken as it is: every finding, each with a pointer
├── LookElsewhere         there is nothing under that id for this tenant
├── ReloadAndDecide       the stored state forbids it now: read the state, then decide
├── RetryLater            a store is away: the same request may be sent again
└── CallTheOperator       stored data or the set-up is wrong: no retry helps
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong, or suspicious, at one place of a document.

    `pointer` is an RFC 6901 JSON pointer into the document that was sent, `""` for the whole of it;
    `code` is stable and machine readable; `message` says what is wrong and what would be accepted.
    """

    pointer: str
    code: str
    message: str


class FlowEngineError(Exception):
    """Base of the tree. `code` is part of the HTTP contract, `detail` is for people."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail

    @property
    def reason(self) -> str:
        """What the driver of a store says, for operators alone: hosts may be in it. Empty where none does."""
        return str(self.__cause__ or "")


class CorrectTheInput(FlowEngineError):
    """The input breaks a rule. `findings` lists every breach, never only the first. Sent as status 422, or
    400, 401, 403 and 413 by its code; in gRPC's words `INVALID_ARGUMENT`, an error of the caller."""

    def __init__(self, code: str, detail: str, findings: Iterable[Finding] = ()) -> None:
        super().__init__(code, detail)
        self.findings: tuple[Finding, ...] = tuple(findings)

    @classmethod
    def breach(cls, code: str, message: str, *, at: str = "") -> "CorrectTheInput":
        """The only one, told in the same words as the refusal; `at` is its RFC 6901 pointer."""
        return cls(code, message, [Finding(at, code, message)])


class LookElsewhere(FlowEngineError):
    """Nothing is stored under that id, or it belongs to another tenant: both look the same. Sent as status
    404; gRPC's `NOT_FOUND` error."""


def unknown_conversation(conversation_id: str) -> LookElsewhere:
    """`conversation_unknown`, in the same words wherever it is noticed, and of another tenant's too."""
    return LookElsewhere("conversation_unknown", f"there is no conversation {conversation_id!r}")


class ReloadAndDecide(FlowEngineError):
    """The stored state forbids the request now. `state` tells the state, `accepted` what would go. Sent as
    status 409; gRPC's `FAILED_PRECONDITION` error. Both are JSON values."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        state: Mapping[str, object] | None = None,
        accepted: Iterable[str] = (),
    ) -> None:
        super().__init__(code, detail)
        self.state: Mapping[str, object] = dict(state or {})
        self.accepted: tuple[str, ...] = tuple(accepted)


class RetryLater(FlowEngineError):
    """A store or a model is away. `after_seconds` is the hint for `Retry-After`. In seconds. Sent as status
    503; gRPC's `UNAVAILABLE` error."""

    def __init__(self, code: str, detail: str, *, after_seconds: int = 1) -> None:
        super().__init__(code, detail)
        self.after_seconds = after_seconds


class CallTheOperator(FlowEngineError):
    """Stored data cannot be read by this version, or the set-up is unsafe: a person must look. Sent as status
    500; gRPC's `INTERNAL` error."""


def pointer(*parts: str | int) -> str:
    """Join path parts to an RFC 6901 pointer: `pointer("tasks", 0, "a/b")` is `/tasks/0/a~1b`."""
    joined = "".join([f"/{part}" for part in parts])
    if "~" not in joined and joined.count("/") == len(parts):  # nothing to escape, as nearly always
        return joined
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
