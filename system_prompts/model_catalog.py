"""Reads `model_catalog.json`: the models, voices, STT engines and languages that editors offer (F27)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from flow_engine.errors import CallTheOperator, pointer
from flow_engine.use_cases.model_catalog import ModelCatalog

_FILE = Path(__file__).parent / "model_catalog.json"


def load_model_catalog(path: Path = _FILE) -> ModelCatalog:
    """Raises CallTheOperator `catalogue_invalid`, whose detail has one line for each problem. Read once, as
    JSON."""
    try:
        model_catalog = ModelCatalog.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _invalid(path, [f"cannot be read ({error.strerror})"]) from None
    except ValidationError as error:
        problems = [
            f"at {pointer(*each['loc'])!r}: {each['msg']}" for each in error.errors(include_url=False)
        ]
        raise _invalid(path, problems) from None
    problems = list(_problems(model_catalog))
    if problems:
        raise _invalid(path, problems)
    return model_catalog


def _problems(model_catalog: ModelCatalog) -> Iterator[str]:
    listed = {
        "models": [(offer.provider, offer.id) for offer in model_catalog.models],
        "voices": [(offer.provider, offer.id) for offer in model_catalog.voices],
        "sttEngines": [(offer.provider, offer.name) for offer in model_catalog.stt_engines],
        "languages": [(offer.code,) for offer in model_catalog.languages],
    }
    for what, keys in listed.items():
        yield from (f"{what}: {' '.join(key)!r} stands twice" for key, n in Counter(keys).items() if n > 1)
    known = {language.code for language in model_catalog.languages}
    for offer in (*model_catalog.voices, *model_catalog.stt_engines):
        unknown = sorted(set(offer.languages or ()) - known)
        if unknown:
            yield f"{offer.provider} {offer.name!r} names languages that are not listed: {', '.join(unknown)}"


def _invalid(path: Path, problems: list[str]) -> CallTheOperator:
    return CallTheOperator("catalogue_invalid", "\n".join(f"{path.name}: {each}" for each in problems))
