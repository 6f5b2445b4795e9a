"""Background work wired together: what runs which kind of job, with what (F37, F38, F41)."""

from __future__ import annotations

from collections.abc import Mapping

from adapters import extraction
from adapters.jobs.running import Tuning
from flow_engine.ports.extraction import ExtractionRequest, Extractor, ExtractsNothing
from flow_engine.ports.jobs import JobHandler, JobKind
from flow_engine.ports.models import Model, NoModel
from flow_engine.ports.observing import Observer
from flow_engine.use_cases.background import BackgroundDependencies, BackgroundWork
from flow_engine.use_cases.transactor import Transactor
from flow_engine.values import JsonValue
from service.settings import Settings


class RuleExtractor:
    """Implements `Extractor` by the rules of the package `extraction`."""

    def extract(self, request: ExtractionRequest) -> Mapping[str, JsonValue]:
        return extraction.extract(
            extraction.ExtractionRequest(
                utterance=request.utterance,
                previous_bot_turn=request.previous_bot_turn,
                language=request.language,
                said_at=request.said_at,
                timezone=request.timezone,
                variables=request.variables,
            )
        )


def job_handlers(
    settings: Settings, transactor: Transactor, model: Model, observer: Observer
) -> Mapping[JobKind, JobHandler]:
    extractor: Extractor = RuleExtractor() if settings.rules_extraction else ExtractsNothing()
    work = BackgroundWork(
        transactor,
        BackgroundDependencies(extractor, model, has_model=not isinstance(model, NoModel), observer=observer),
    )
    return {"mine": work.mine, "conclude": work.conclude, "expire": work.expire}


def tuning_of(settings: Settings) -> Tuning:
    return Tuning(
        lease_s=settings.job_lease_s,
        timeout_s=settings.job_timeout_s,
        attempts=settings.job_attempts,
        concurrency=settings.jobs_at_once,
    )
