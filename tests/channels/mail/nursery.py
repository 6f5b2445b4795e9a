"""Agents that start at once: everything is imported before, and each agent is a fork.

Every line on standard input is the arguments of one `flow-engine` command, as JSON; the answer is its process
id. With `--naive` the agents leave out the first of the two steps of sending, which the proof has to catch.
"""

from __future__ import annotations

import os
import signal
import sys

import orjson

from channels.mail.state import MailboxState
from service import mail_serve
from service.cli import app


async def _forgets(self: MailboxState, message_id: str) -> None:
    return None


def main() -> None:
    assert mail_serve.serve_until_stopped
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    if "--naive" in sys.argv:
        MailboxState.intend = _forgets  # type: ignore[method-assign,assignment]
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(2, 1)
            app(orjson.loads(line))
            return
        sys.stdout.buffer.write(b"%d\n" % pid)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
