"""The command line, `flow-engine`: one module for each group of commands."""

try:
    from service.cli.main import app
except KeyboardInterrupt:  # Ctrl-C while it loads: where it was loading tells nobody anything
    raise SystemExit(130) from None  # as of a command that is interrupted

__all__ = ["app"]
