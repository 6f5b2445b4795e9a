"""The route on which simulated users talk to a version, or to a document that is not published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator
from starlette.responses import Response

from api.bodies import Body, Id, sound
from api.endpoints import Call, Endpoint, answer_response, for_designers
from api.tries import version_faults
from flow_engine.documents.findings import reading_beside
from flow_engine.testing import simulation
from flow_engine.testing.simulations import MOST_RUNS, SimulationOrder, SimulationReply, Simulations

LONGEST_YAML = 524_288

_Yaml = Annotated[str, Field(min_length=1, max_length=LONGEST_YAML)]


def _faults(fields: Mapping[str, object]) -> Iterator[str]:
    if (fields.get("persona") is None) == (fields.get("personaYaml") is None):
        yield "give either 'persona' or 'personaYaml'"
    yield from version_faults(fields)


class SimulateBody(Body):
    """Who talks, and to what. A document that is not saved, or the id or tag of a version, a draft too; with
    neither the version that was saved last."""

    persona: Annotated[simulation.Persona, BeforeValidator(sound)] | None = Field(
        default=None, description="Who talks, as JSON."
    )
    persona_yaml: _Yaml | None = Field(default=None, description="Instead: a persona's file.")
    recording_yaml: _Yaml | None = Field(
        default=None, description="A recording's file: these runs are played, and no model is asked."
    )
    runs: Annotated[int, Field(ge=0, le=MOST_RUNS)] | None = Field(
        default=None,
        description="Conversations; as many as are recorded, or 1, if not given. 0 only checks what is sent.",
    )
    channel: Literal["text", "voice"] = Field(
        default="text", description="`voice`: the persona telephones the voice agent, in virtual time."
    )
    document: dict[str, object] | None = Field(
        default=None, description="In place of `versionId`: a document that is not saved."
    )
    version_id: Id | None = Field(
        default=None, description="By id or tag, a draft too; else the one saved last."
    )

    _one_of_each = model_validator(mode="wrap")(reading_beside(_faults))

    def order(self) -> SimulationOrder:
        return SimulationOrder(
            persona=self.persona or self.persona_yaml or "",
            recording=self.recording_yaml,
            runs=self.runs,
            by_voice=self.channel == "voice",
            document=self.document,
            version_id=self.version_id,
        )


_SIMULATE = TypeAdapter(SimulateBody)


class SimulationRoutes:
    def __init__(self, simulations: Simulations) -> None:
        self._simulations = simulations

    async def simulate(self, call: Call) -> Response:
        order, author = call.parse(_SIMULATE).order(), call.principal.name
        return answer_response(
            await self._simulations.answer(
                call.tenant_id, call.path("flow_id"), order, author=author, idempotency=call.idempotency
            )
        )

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "POST /flows/{flow_id}/simulations",
                self.simulate,
                "Let a persona talk to a document or a version; the chart tells what came of it",
                SimulationReply,
                body=_SIMULATE,
                problems=(404, 409, 503),
                keyed=True,
                body_example={
                    "versionId": "claim-v1",
                    "persona": {
                        "name": "Marta",
                        "goal": "Report a burst pipe.",
                        "mood": "worried",
                        "language": "es-ES",
                        "expect": {"conversation": "active"},
                    },
                    "recordingYaml": "runs: [{turns: [{user: Hola., agent: [{say: Buenos dias.}]}]}]",
                },
            )
        ]
