"""`python -m service.cli`: what the console script runs, for processes that start each other."""

from service.cli.main import app

app(prog_name="flow-engine")
