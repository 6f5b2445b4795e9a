"""How a flow is started for a call, and where it may hand a call over to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from channels.engine_client.client import Contact, FlowChoice, NewContact
from channels.engine_client.replies import Routing
from channels.voice.call.ports import Caller
from flow_engine.values import JsonValue

CONVERSATION_PARAMETER: Final = "conversationId"
CONTACT_PARAMETERS: Final = ("calleeId", "room", "name")


@dataclass(frozen=True, slots=True)
class FlowStart:
    """`transfers` maps the skills and agent ids of a flow's routing to phone numbers or SIP addresses;
    `transfer_to` is for whatever is not in it. `apology` is said when the engine cannot take the call.
    `tenant` is what the flow's templates know as `$tenant`.
    """

    choice: FlowChoice
    apology: str
    agent_id: str = ""
    agent_name: str = ""
    tenant: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    transfers: Mapping[str, str] = field(default_factory=dict[str, str])
    transfer_to: str | None = None

    def target(self, routing: Routing | None) -> str | None:
        """Where a HUM task hands the call to: the first agent, then skill, then optional skill that has an
        address, then the address for everything else."""
        asked = (
            ()
            if routing is None
            else (
                *routing.agent_ids,
                *routing.agent_skills,
                *routing.agent_optional_skills,
            )
        )
        return next((self.transfers[name] for name in asked if name in self.transfers), self.transfer_to)


def new_contact(start: FlowStart, caller: Caller) -> NewContact:
    """A conversation of its own for each call, unless the line names one to go on with."""
    conversation_id = caller.parameters.get(CONVERSATION_PARAMETER) or caller.call_id
    facts: dict[str, JsonValue] = {
        name: caller.parameters[name] for name in CONTACT_PARAMETERS if caller.parameters.get(name)
    }
    if caller.phone is not None:
        facts["callerId"] = caller.phone
    return NewContact(
        Contact(conversation_id, caller.call_id),
        start.choice,
        "phone",
        tenant=start.tenant,
        facts=facts,
    )
