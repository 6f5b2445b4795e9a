"""Flow records as plain documents: what SQLite keeps as JSON text and MongoDB as a document.

Field names are those of `flow_engine.ports.FlowRecord`. Times are ISO 8601 text with microseconds, since
BSON dates end at milliseconds; the bodies of kept replies are base64, since JSON has no bytes.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flow_engine.errors import CallTheOperator
from flow_engine.ports.flow_store import FlowRecord

FORMAT = 2
_WITHOUT_SPLITS = 1

_FLOW = TypeAdapter(FlowRecord)
_BODIES = {"replies": {"__all__": {"body"}}}


def flow_to_plain(flow: FlowRecord) -> dict[str, Any]:
    """The record as JSON values, with the number of the oldest format that has all of it under `format`: the
    release before works on it as long as no tag is split."""
    plain: dict[str, Any] = _FLOW.dump_python(flow, mode="json", exclude=_BODIES)
    for reply, kept in zip(plain["replies"], flow.replies, strict=True):
        reply["body"] = b64encode(kept.body).decode()
    split = any(entry.split is not None for entry in (*flow.tags, *flow.tag_moves))
    return {"format": FORMAT if split else _WITHOUT_SPLITS, **plain}


def flow_from_plain(plain: Mapping[str, Any]) -> FlowRecord:
    """Read a record back; keys that the store added for itself are ignored.

    Raises CallTheOperator: `stored_flow_newer` for a later format, whose unknown fields the next write would
    lose, and `stored_flow_unreadable` for anything that is not a flow's record. Times are read as UTC.
    """
    stored_format = plain.get("format")
    if isinstance(stored_format, int) and stored_format > FORMAT:
        raise CallTheOperator(
            "stored_flow_newer",
            f"a flow is stored in format {stored_format}; this release reads up to {FORMAT}",
        )
    try:
        replies = [{**reply, "body": b64decode(reply["body"], validate=True)} for reply in plain["replies"]]
        return _FLOW.validate_python({**plain, "replies": replies})
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise CallTheOperator("stored_flow_unreadable", "a stored flow is not a flow's record") from error
