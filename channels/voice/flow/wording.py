"""What the agent itself tells the model, beside the engine's prompts and commands."""

from __future__ import annotations

from typing import Final

SILENCES_BEFORE_GOODBYE: Final = 3

LOST: Final = (
    "This conversation goes on elsewhere and this call can do nothing more in it. Say goodbye in one short "
    "sentence, in the language of the conversation, and call end_call."
)
NOBODY_FREE: Final = (
    "Nobody could be reached who would take over. Tell the caller so with an apology, in the language of the "
    "conversation, and offer what else you can do."
)
WHEN_TO_END: Final = (
    "Hang up. Call it after saying goodbye, when the caller needs nothing more or wants to end the call."
)
TRY_AGAIN: Final = "The change cannot be made at the moment. Go on in this task and try once more later."


def nobody_spoke(seconds: float, times: int) -> str:
    """`times` in a row, this one included."""
    silence = f"The caller has said nothing for {seconds:g} seconds."
    if times >= SILENCES_BEFORE_GOODBYE:
        return f"{silence} That was {times} times in a row: say goodbye in one sentence and call end_call."
    return f"{silence} Ask in one short sentence whether they are still there, or repeat your last question."
