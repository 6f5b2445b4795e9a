"""`flow-engine flow simulate`: personas that talk to a version, as it was recorded or by a model."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from adapters.models.factory import build_model
from adapters.models.providers import UnknownModelName
from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.models import LanguageModel, ModelFailed, NoModel
from flow_engine.testing import simulation, simulations
from flow_engine.testing.yaml_text import MAX_BYTES, Mistake
from service import late
from service.logs import StandardError, configure_logging
from service.replaying import Unreadable
from service.scenarios import RunOptions, installed_flow, read_bounded
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Order:
    """`recorded` is played in place of a model; `record` is where the runs are written. `runs` counts.
    `by_voice`: the persona telephones."""

    version: Path
    persona: Path
    runs: int | None
    recorded: Path | None
    record: Path | None
    model: str | None
    by_voice: bool = False


@dataclass(frozen=True, slots=True)
class Simulated:
    """`failed` is why the model played no further."""

    persona: simulation.Persona
    verdicts: Sequence[simulation.RunVerdict]
    failed: ModelFailed | None = None


def simulate(order: Order, settings: Settings) -> Simulated:
    """Raises Unreadable for a persona and a recording, and for runs that cannot be written, OSError for what
    cannot be read, CallTheOperator `llm_not_configured` where a model is needed and none is set, or the one
    that is named cannot be had, ModelFailed.
    """
    try:
        model = NoModel() if order.recorded else build_model(settings, SystemClock(), named=order.model)
    except (UnknownModelName, ModelFailed) as error:
        raise CallTheOperator("llm_not_configured", f"--model: {error}") from error
    if order.recorded is None and isinstance(model, NoModel):
        raise CallTheOperator(
            "llm_not_configured",
            "no model is set to play the persona: set FLOW_ENGINE_LLM_MODEL, or give --model or --recorded",
        )
    if order.by_voice:
        configure_logging("error", to=StandardError)
    return asyncio.run(simulate_with(order, settings, model))


async def simulate_with(order: Order, settings: Settings, model: LanguageModel) -> Simulated:
    """By that model, unless recorded runs are played. One that fails leaves the runs that it has played;
    ModelFailed is raised where there is none. Raises as `simulate`."""
    persona, recording = (
        simulation.reading_of(simulation.Persona, read_bounded(order.persona, MAX_BYTES)),
        None,
    )
    unplayable: list[str] = []
    pairs: list[simulations.Played] = []
    failed: ModelFailed | None = None
    if order.recorded is not None:
        recording = simulation.reading_of(simulation.Recording, read_bounded(order.recorded, MAX_BYTES))
        unplayable = _lines(order.recorded, recording.mistakes)
    options = RunOptions(limits=settings.document_limits)
    try:
        async with installed_flow(order.version, options) as flow:
            _refuse(_lines(order.persona, simulation.mistakes_of(persona, flow.flow)), unplayable)
            who = cast("simulation.Persona", persona.content)  # it has no mistakes
            recorded = () if recording is None or recording.content is None else recording.content.runs
            play = late.simulated_calls.call if order.by_voice else simulations.play_in_text
            if order.record is not None:
                order.record.open("ab").close()  # what cannot be written is told before a model is paid for
            try:
                for number in range(1, (order.runs or len(recorded) or 1) + 1):
                    run = simulations.run_of(number, recorded)
                    pairs.append(await play(who, flow, number, run, model))
            except ModelFailed as failure:
                if not pairs:
                    raise
                failed = failure
    except CorrectTheInput as unusable:
        _refuse(_lines(order.persona, persona.mistakes), unplayable, unusable.detail)
        raise
    if order.record is not None:
        text = simulation.write_recording(simulation.Recording(runs=tuple(run for run, _ in pairs)))
        try:
            order.record.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Unreadable(f"{order.record}: {error.strerror}") from error
    return Simulated(who, [verdict for _, verdict in pairs], failed)


def _lines(file: Path, mistakes: Iterable[Mistake]) -> list[str]:
    return [f"{file}: line {m.line}: {m.pointer or '/'} {m.code}: {m.message}" for m in mistakes]


def _refuse(persona: Sequence[str], recording: Sequence[str], *version: str) -> None:
    """Raises Unreadable with all of these, if one of the first two has any."""
    if persona or recording:
        raise Unreadable(*persona, *recording, *version)
