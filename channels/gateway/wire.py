"""OpenAI's protocol as the gateway reads and writes it: requests, errors, server-sent events.

1. What a client sent is read once and never normalised: it is passed on as it came, or written anew from the
   same values. Integers keep all their digits.
2. Server-sent events follow the WHATWG's rules: lines end in CR, LF or both, an event ends with an empty
   line, and one that the stream leaves unfinished is none.
3. Every error is `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import Any, Final, cast

import orjson

JsonObject = dict[str, Any]

MOST_EVENT_BYTES: Final = 8 * 1024 * 1024
MOST_COMPARED: Final = 20_000
"""JSON values of a body that may be kept: to compare more of them holds others up."""
MOST_SIGNS: Final = 100
"""Of a number in a body that may be kept."""
MOST_DIGITS: Final = 400
"""Of an integer, which takes quadratic time. A float has no more before its point either."""
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN: Final = b"0" * MOST_DIGITS
_BOM: Final = b"\xef\xbb\xbf"


class ApiError(Exception):
    """What a client gets instead of an answer: `status`, an OpenAI error object, and headers such as
    `Retry-After` (seconds)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
        error: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error: JsonObject = error or {"message": message, "type": type, "param": param, "code": code}
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """JSON."""
        return written({"error": self.error})


class UpstreamFailed(ApiError):
    """A backend that gave no whole answer. `passing`: another one may. `broken`: it counts against it."""

    passing = False
    broken = False

    @classmethod
    def silent(cls, backend: str, status: int, what: str, *, broken: bool) -> UpstreamFailed:
        """Refused, lost, late or cut: `status` is 502, 503 or 504. Raised by the caller."""
        failed = cls(status, f"backend {backend!r} {what}", type="upstream_error", code="upstream_failed")
        failed.passing, failed.broken = True, broken
        return failed

    @classmethod
    def answered(cls, backend: str, status: int, body: bytes, retry_after: str | None) -> UpstreamFailed:
        """An error status. 400, 404, 422 and 429 keep status and error object; `Retry-After` stays."""
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        if status in (400, 404, 422, 429):
            failed = cls(status, "", error=_error_object(body, status), headers=headers)
        else:
            shown = {408: 504, 503: 503, 504: 504}.get(status, 502)
            message = f"backend {backend!r} answered with status {status}"
            failed = cls(shown, message, type="upstream_error", code="upstream_failed", headers=headers)
        failed.passing = status in (408, 429) or status >= 500
        failed.broken = status >= 500
        return failed


def _error_object(body: bytes, status: int) -> JsonObject:
    """The error of a reply, whichever of the vendors' shapes it has."""
    try:
        parsed: Any = read_json(body)
    except ValueError:
        parsed = body.decode("utf-8", "replace")[:1000]
    if isinstance(parsed, list) and parsed:
        parsed = cast("list[Any]", parsed)[0]
    found: Any = cast("Any", parsed)
    if isinstance(parsed, dict):
        found = cast("JsonObject", parsed).get("error", found)
    if isinstance(found, dict):
        error = cast("JsonObject", found)
        if "message" in error or "code" in error:
            return error
    message = found if isinstance(found, str) and found else f"status {status}"
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    code = "model_not_found" if status == 404 else None
    return {"message": message, "type": kind, "param": None, "code": code}


def read_json(text: bytes | str) -> Any:
    """Any JSON, lone surrogates and integers of 400 digits too. Raises ValueError, also for NaN and for
    nesting that is too deep."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Asked of each integer only where one may be too long, as that takes longer than to read them.
    parse_int = _short if _LONG_RUN in raw.translate(_DIGITS) else None
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=parse_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _short(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"{digits[:40]} is out of range")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if isinf(number):
        raise ValueError(f"{digits[:40]} is out of range")
    return number


def object_of(value: object) -> JsonObject:
    """The value where it is an object; an empty one for anything else."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def objects_of(value: object) -> list[JsonObject]:
    """The objects of a list; empty for anything else."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("JsonObject", each) for each in listed if isinstance(each, dict)]


def whole_number(value: object) -> int:
    """0 for what is none, or more than a database's number and a price can hold."""
    return value if isinstance(value, int) and 0 < value < 2**53 else 0


def written(value: object) -> bytes:
    """JSON; in ASCII where it holds lone surrogates, so that they stay what they were."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # also for integers beyond 64 bits, and for many levels
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def parsed_part(data: bytes) -> JsonObject:
    """The object of one event or of a whole answer. Raises ValueError for anything else."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = read_json(data)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return cast("JsonObject", value)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A JSON body with the model that it names. `raw` are the bytes that came."""

    raw: bytes
    body: JsonObject
    model: str

    @property
    def streams(self) -> bool:
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Whether a stream's client asked for the chunk with the usage."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and cast("JsonObject", options).get("include_usage") is True

    @property
    def has_tools(self) -> bool:
        return bool(self.body.get("tools") or self.body.get("functions"))


def read_request(raw: bytes, *, needs: str) -> ApiRequest:
    """`needs` names the field that must be there beside `model`: `messages` (a list that is not empty) or
    `input`. Raises ApiError 400."""
    try:
        body: Any = read_json(raw)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    read = cast("JsonObject", body)
    model = read.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "'model' must be the name of a model", param="model", code="model_missing")
    needed = read.get(needs)
    if needed is None or (needs == "messages" and not (isinstance(needed, list) and needed)):
        expected = "a list of at least one message" if needs == "messages" else "there"
        raise ApiError(400, f"{needs!r} must be {expected}", param=needs)
    if needs == "messages" and not all(isinstance(each, dict) for each in cast("list[Any]", needed)):
        raise ApiError(400, "each of 'messages' must be an object", param="messages")
    return ApiRequest(raw, read, model)


def cache_key(request: ApiRequest, tenant: str, model: str) -> str:
    """SHA-256 over the body as JSON, the tenant and the resolved model. The order of object keys, white
    space, escapes and the spelling of numbers do not matter; everything else does. Raises ValueError for a
    body that is nested too deeply to be compared, has more than 20,000 values, or a number of more than 100
    signs or with an exponent of many digits."""
    if _has_many(request.body):
        raise ValueError("too many values to be compared")
    try:
        body = json.loads(request.raw, parse_float=_decimal, parse_int=_decimal)
        body.pop("model")
        canonical = json.dumps([tenant, model, _canonical(body)], sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except InvalidOperation:
        raise ValueError("a number has too large an exponent") from None
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _decimal(text: str) -> Decimal:
    if len(text) > MOST_SIGNS:
        raise ValueError("a number is too long to be compared")
    return Decimal(text)


def _has_many(value: JsonObject) -> bool:
    """Whether there are more than MOST_COMPARED values in it, of any depth."""
    waiting, found = list[Any]([value]), 1
    while waiting and found <= MOST_COMPARED:
        part = waiting.pop()
        inner = cast("JsonObject", part).values() if isinstance(part, dict) else part
        if isinstance(part, dict | list):
            found += len(inner)
            waiting += inner if found <= MOST_COMPARED else ()
    return found > MOST_COMPARED


def _canonical(value: Any) -> Any:
    """Numbers that are equal become one text, marked so that no string of a client equals it."""
    if isinstance(value, dict):
        return {key: _canonical(each) for key, each in cast("JsonObject", value).items()}
    if isinstance(value, list):
        return [_canonical(each) for each in cast("list[Any]", value)]
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        text = "".join(map(str, digits)).lstrip("0")
        kept = text.rstrip("0")
        return [None, f"{'-' * sign}{kept}e{int(exponent) + len(text) - len(kept)}" if kept else "0", None]
    if isinstance(value, str):
        return [value]
    return value


@dataclass(frozen=True, slots=True)
class Part:
    """One event of a stream, or the whole of a plain answer: JSON as it came, and what it holds. One that is
    not `shown` is for accounts only."""

    data: bytes
    parsed: JsonObject = field(repr=False)
    shown: bool = True


FINISHED: Final = Part(b"", {}, shown=False)
"""The last part of a streamed answer that is whole."""


def frame(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


DONE_FRAME: Final = b"data: [DONE]\n\n"


def error_frame(error: ApiError) -> bytes:
    """The last event of a stream that broke: the official clients raise on it."""
    return frame(error.body())


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """`name` is the event's, empty where it has none; `data` its lines joined by LF."""

    name: str
    data: bytes


class Stretches:
    """Bytes that come in pieces, as the stretches between separators. `rest` is what no separator ends yet:
    however small its pieces are, none of it is looked at again."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self.rest = bytearray()

    def feed(self, piece: bytes) -> Sequence[bytes]:
        """Those that `piece` completes. Raises ValueError where the rest is more than 8 MiB."""
        seen = max(0, len(self.rest) + 1 - len(self._separator))
        self.rest += piece
        end = self.rest.rfind(self._separator, seen)
        if end < 0:
            if len(self.rest) > MOST_EVENT_BYTES:
                raise ValueError("an event is too long")
            return ()
        found = bytes(self.rest[:end]).split(self._separator)
        del self.rest[: end + len(self._separator)]
        return found


class EventReader:
    """Turns bytes as they come into events. Comments, `id` and `retry` are passed over."""

    def __init__(self) -> None:
        self._blocks = Stretches(b"\n\n")
        self._begun = False
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that `piece` completes. Raises ValueError for one of more than 8 MiB."""
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):  # the second half of an end of line
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        for block in self._blocks.feed(piece):
            text = block if self._begun else block.removeprefix(_BOM)
            self._begun = True
            if text.startswith(b"data: ") and b"\n" not in text:  # as nearly all are
                yield ServerEvent("", text[6:])
            elif (event := _event(text.split(b"\n"))) is not None:
                yield event


def _event(lines: Sequence[bytes]) -> ServerEvent | None:
    """None for a block without data."""
    name, data = "", list[bytes]()
    for line in lines:
        label, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if label == b"data":
            data.append(value)
        elif label == b"event":
            name = value.decode("utf-8", "replace")
    return ServerEvent(name, b"\n".join(data)) if data else None
