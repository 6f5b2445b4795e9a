"""Flow documents: typed models, parsing with every error at once, checks."""

from flow_engine.documents.checks import DocumentLimits, ReviewEnvironment
from flow_engine.documents.differences import (
    MergedVersion,
    VersionDifference,
    difference,
    merged,
)
from flow_engine.documents.media import (
    AudioMediaConfigPreset,
    BaseSttConfig,
    BaseTtsConfig,
    CourtesyMessageRandomParams,
    LocalizedText,
)
from flow_engine.documents.model import (
    MINER_SETTINGS,
    AiHelper,
    Checkpoint,
    ClosureConfig,
    FlowVersion,
    McpToolParameter,
    McpToolParametersMap,
    PlacedCondition,
    Scorecard,
    ScorecardCriterion,
    Task,
    Variable,
)
from flow_engine.documents.parsing import (
    SET_BY_SERVER,
    changed_by_reading,
    complete_version,
    content_hash,
    parse_document,
    parse_json,
    parse_version,
    refusal,
)
from flow_engine.documents.references import normalise_name
from flow_engine.documents.values import Document, parse_date_time

__all__ = [
    "MINER_SETTINGS",
    "SET_BY_SERVER",
    "AiHelper",
    "AudioMediaConfigPreset",
    "BaseSttConfig",
    "BaseTtsConfig",
    "Checkpoint",
    "ClosureConfig",
    "CourtesyMessageRandomParams",
    "Document",
    "DocumentLimits",
    "FlowVersion",
    "LocalizedText",
    "McpToolParameter",
    "McpToolParametersMap",
    "MergedVersion",
    "PlacedCondition",
    "ReviewEnvironment",
    "Scorecard",
    "ScorecardCriterion",
    "Task",
    "Variable",
    "VersionDifference",
    "changed_by_reading",
    "complete_version",
    "content_hash",
    "difference",
    "merged",
    "normalise_name",
    "parse_date_time",
    "parse_document",
    "parse_json",
    "parse_version",
    "refusal",
]
