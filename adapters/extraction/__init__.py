"""Values found by rules in what a user said, without a model (F38).

    extract(ExtractionRequest(utterance=…, previous_bot_turn=…, …))  →  {"variableId": canonical value}

Pure and deterministic: no I/O but the package's own tables, read on first use, and no clock. Phones, e-mail
addresses, dates, numbers, booleans and enums are looked for, in Italian, English and Spanish; the rules are
in `pipeline`, the words of each language in `languages/*.toml`. Precision comes first: what is in doubt is
left out.
"""

from adapters.extraction.pipeline import extract
from flow_engine.ports.extraction import ExtractionRequest

__all__ = ["ExtractionRequest", "extract"]
