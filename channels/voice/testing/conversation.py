"""The conversation that a fake model keeps: items in order, and what may be done to them."""

from dataclasses import dataclass
from typing import Literal, cast

from channels.voice.testing.realtime_checks import Refusal
from channels.voice.wires.frames import Object
from flow_engine.values import JsonValue


@dataclass(slots=True)
class Item:
    """`audio_ms` is how many milliseconds of audio there are of it up to now; `cut_ms` where it was
    truncated."""

    item_id: str
    kind: Literal["message", "function_call", "function_call_output"]
    role: str | None = None
    text: str = ""
    """What is in it: the words, a call's arguments, a tool's output."""
    audio_ms: int = 0
    cut_ms: int | None = None
    call_id: str = ""
    name: str = ""
    status: Literal["in_progress", "completed", "incomplete"] = "completed"

    def wire(self) -> dict[str, JsonValue]:
        fields: dict[str, JsonValue] = {"id": self.item_id, "object": "realtime.item", "type": self.kind}
        if self.kind == "function_call_output":
            return {**fields, "call_id": self.call_id, "output": self.text}
        fields["status"] = self.status
        if self.kind == "function_call":
            return {**fields, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        return {**fields, "role": self.role, "content": self._content()}

    def _content(self) -> JsonValue:
        if self.role == "assistant":
            if self.status == "in_progress":
                return []
            spoken: dict[str, JsonValue] = {"type": "output_audio", "transcript": self.text}
            return [spoken if self.audio_ms else {"type": "output_text", "text": self.text}]
        if self.audio_ms:
            return [{"type": "input_audio", "transcript": None}]
        return [{"type": "input_text", "text": self.text}]


class Conversation:
    """Methods that the client asks for return why they are refused, or None where they are not."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def find(self, item_id: object) -> Item | None:
        return next((item for item in self.items if item.item_id == item_id), None)

    def before(self, item: Item) -> str | None:
        at = self.items.index(item)
        return self.items[at - 1].item_id if at else None

    def insert(self, item: Item, after: object) -> Refusal | None:
        """Put in the item behind the one whose id is `after`: at the end for None, first for `root`. Why it
        is refused, None where it is in."""
        if self.find(item.item_id) is not None:
            message = f"Error adding item: an item with id '{item.item_id}' is there already."
            return Refusal("item_create_invalid_item_id", message, "item.id")
        if item.kind == "function_call_output" and not any(
            known.kind == "function_call" and known.call_id == item.call_id for known in self.items
        ):
            message = f"Tool call ID '{item.call_id}' not found in conversation."
            return Refusal("invalid_tool_call_id", message, "item.call_id")
        if after is None or after == "root":
            self.items.insert(0 if after == "root" else len(self.items), item)
            return None
        previous = self.find(after)
        if previous is None:
            message = f"Error adding item: the previous item with id '{after}' does not exist."
            return Refusal("item_create_invalid_previous_item_id", message, "previous_item_id")
        self.items.insert(self.items.index(previous) + 1, item)
        return None

    def delete(self, item_id: object) -> Refusal | None:
        item = self.find(item_id)
        if item is None:
            message = f"Error deleting item: the item with id '{item_id}' does not exist."
            return Refusal("item_delete_invalid_item_id", message, "item_id")
        self.items.remove(item)
        return None

    def truncate(self, item_id: object, content_index: int, audio_end_ms: int) -> Refusal | None:
        item = self.find(item_id)
        if item is None:
            message = f"Error truncating item: the item with id '{item_id}' does not exist."
            return Refusal("item_truncate_invalid_item_id", message, "item_id")
        if item.role != "assistant" or not item.audio_ms or content_index != 0 or audio_end_ms <= 0:
            message = "Only model output audio messages can be truncated"
            return Refusal("unsupported_content_type", message, "content_index")
        lasts_ms = item.audio_ms if item.cut_ms is None else item.cut_ms
        if audio_end_ms > lasts_ms:
            message = f"Audio content of {lasts_ms}ms is already shorter than {audio_end_ms}ms"
            return Refusal("invalid_value", message, "audio_end_ms")
        item.cut_ms, item.text = audio_end_ms, ""
        return None


def item_of(wire: Object, item_id: str) -> Item | None:
    """The item of a command, JSON of the right form; None for what no client creates: items of other kinds,
    and a function call without its `call_id`."""
    call_id, output = wire.get("call_id"), wire.get("output")
    if wire.get("type") == "function_call_output":
        return Item(item_id, "function_call_output", call_id=str(call_id), text=str(output))
    if wire.get("type") == "function_call" and call_id:
        name, arguments = str(wire.get("name")), str(wire.get("arguments"))
        return Item(item_id, "function_call", call_id=str(call_id), name=name, text=arguments)
    if wire.get("type") != "message":
        return None
    parts = cast("list[Object]", wire.get("content"))
    words = " ".join(str(part.get("text", "")) for part in parts)
    return Item(item_id, "message", role=str(wire.get("role")), text=words)
