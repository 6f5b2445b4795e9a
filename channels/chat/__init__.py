"""The chat: agents from a table behind one WebSocket. `tool` makes a function one of their tools."""

from channels.chat.tools import tool

__all__ = ["tool"]
