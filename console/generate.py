"""What the console's sources take from the API: its OpenAPI document, and the linter's table of codes in each
language. A code that a translation lacks is explained in English."""

import sys
import tempfile
import tomllib
from importlib.resources import files
from pathlib import Path

import orjson

from flow_engine.linting import CODES
from service.settings import Settings
from service.wiring import build_service

if __name__ == "__main__":
    generated = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), redis_url=None, mongo_url=None, api_keys_file=None)
        document = build_service(settings, host="127.0.0.1", port=8080).app.openapi()
    generated.mkdir(exist_ok=True)
    (generated / "openapi.json").write_bytes(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))
    translations: dict[str, dict[str, dict[str, str]]] = {"en": {}} | {
        language: tomllib.loads(
            files("flow_engine.linting").joinpath(f"codes.{language}.toml").read_text("utf-8")
        )
        for language in ("it", "es")
    }
    for language, rows in translations.items():
        codes = {
            code: row.model_dump(include={"title", "why", "advice", "example"})
            | {"language": language if code in rows else "en"}
            | rows.get(code, {})
            for code, row in CODES.items()
        }
        (generated / f"codes.{language}.json").write_bytes(orjson.dumps(codes))
