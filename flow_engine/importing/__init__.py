"""Flows of other systems as drafts, with a report of what could not be carried.

    drafts      what every importer fills: tasks, ways, variables, tools, remarks
    elements    what a draft consists of
    foreign     what every importer reads: parts of another system's document
    retell      Retell's conversation flows
    dialogflow  Dialogflow CX agents, as dialogflow_package reads them; their words, and their playbooks
    rasa        Rasa's flows (CALM)
    pipecat     Pipecat Flows

Nothing is run and nothing is asked: an importer reads decoded JSON or YAML, and gives a document that a
designer looks over.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from pydantic import JsonValue

from flow_engine.importing.dialogflow import from_dialogflow
from flow_engine.importing.dialogflow_package import gathered
from flow_engine.importing.drafts import ImportedDraft
from flow_engine.importing.pipecat import from_pipecat
from flow_engine.importing.rasa import from_rasa
from flow_engine.importing.retell import from_retell

OriginalFormat = Literal["retell", "dialogflow-cx", "rasa", "pipecat"]

IMPORTERS: Final[Mapping[OriginalFormat, Callable[[JsonValue], ImportedDraft]]] = {
    "retell": from_retell,
    "dialogflow-cx": from_dialogflow,
    "rasa": from_rasa,
    "pipecat": from_pipecat,
}

__all__ = ["IMPORTERS", "ImportedDraft", "OriginalFormat", "gathered"]
