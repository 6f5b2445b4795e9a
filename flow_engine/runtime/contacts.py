"""A contact as its agent announces it, and whether a version takes it (F28)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flow_engine.errors import CorrectTheInput, Finding
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.vocabulary import Channel


@dataclass(frozen=True, slots=True)
class NewContact:
    """A contact as its agent announces it. `language` None: the version's default."""

    contact_id: str
    channel: Channel
    tenant: Mapping[str, object]
    data: Mapping[str, object]
    language: str | None


def check_channel(flow: CompiledFlow, channel: str) -> None:
    accepted = flow.document.channels
    if channel not in accepted:
        message = f"version {flow.version_id!r} is not for {channel!r}; it is for: {', '.join(accepted)}"
        raise CorrectTheInput(
            "channel_not_supported", message, [Finding("/channel", "channel_not_supported", message)]
        )
