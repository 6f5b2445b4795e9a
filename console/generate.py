"""What the console's sources take from the API: its OpenAPI document, and the linter's table of codes."""

import sys
import tempfile
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
    codes = {code: row.model_dump(exclude={"code"}) for code, row in CODES.items()}
    generated.mkdir(exist_ok=True)
    (generated / "openapi.json").write_bytes(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))
    (generated / "codes.json").write_bytes(orjson.dumps(codes))
