"""The command line, `flow-engine`: one module for each group of commands."""

from __future__ import annotations

from service.cli.main import app

__all__ = ["app"]
