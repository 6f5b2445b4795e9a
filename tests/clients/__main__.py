"""The official JavaScript client against the gateway, by `python -m tests.clients` after `npm ci` here.

Ends with node's own exit status.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.stand_ins import KEY, MODELS, client_world

HERE = Path(__file__).parent
WITHIN_S = 120.0


async def main() -> int:
    with TemporaryDirectory() as folder:
        async with client_world(Path(folder)) as world:
            environment = {
                **os.environ,
                "OPENAI_BASE_URL": f"{world.origin}/v1",
                "OPENAI_API_KEY": KEY,
                "MODELS": ",".join(MODELS),
            }
            node = await asyncio.create_subprocess_exec(
                "node", "--test", "openai.test.mjs", cwd=HERE, env=environment
            )
            try:
                async with asyncio.timeout(WITHIN_S):
                    return await node.wait()
            finally:
                if node.returncode is None:
                    node.kill()
                    await node.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
