"""The command line, `flow-engine`: one module for each group of commands."""

from service.cli.main import app

__all__ = ["app"]
