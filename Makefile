# make run    install and serve on the embedded default: no Redis, no MongoDB, no key
#             (then: .venv/bin/flow-engine chat serve, for agents behind one WebSocket);
#             the console is built beside it the first time
# make console  build the console alone
# make test   install and run the tests
# make long   the tests that take long: kills over and over, thousands of documents, guides walked through
# make conformance  generated requests over the whole OpenAPI document, with every boundary
# make browser  the chat's page in a real Chromium, which has to be installed
# make clients  the official JavaScript client against the gateway: needs node and npm
# make check  formatting, lint, types and import contracts, of the console too
# make proof  the stores' promises, held against killed processes and cut networks; FULL=1 for 15 minutes
# make proof-journal  500 conversations with faults: every revision rebuilt as it was sent, forks go on
# make proof-mail  200 mails, two agents, killed and cut off: each mail is answered once
# make proof-replay  500 recorded conversations on a draft with three planted changes: exactly these are found
# make proof-rollout  a tag split over 10,000 conversations: shares, sides, and a worse version rolled back
# make bench  round trips, throughput and memory, measured on this machine, against budgets
# make bench-voice  how many calls one core holds
# make bench-console  first load, a slow line, 300 tasks and 10,000 conversations, in a real Chromium
# make bench-gateway  what the gateway adds to a request, beside a bare relay and LiteLLM's proxy
# make lock   write the lock files anew (needs uv)

# A system's own Python is built with profile-guided optimisation, which many others lack: up to a quarter
# more requests a second. It needs the module with which environments are made.
PYTHON ?= $(shell for python in /usr/bin/python3 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && exit; \
	done; echo python3)
HOST ?= 127.0.0.1
PORT ?= 8080
# Many tests wait for time to pass, so there is room for more of them than cores.
WORKERS ?= 3
BIN := .venv/bin

.PHONY: run console test long conformance browser clients check proof proof-journal proof-mail proof-replay proof-rollout bench bench-voice bench-console bench-gateway lock

run: .venv/run.stamp
	@$(BIN)/python console/build.py & exec $(BIN)/flow-engine serve --host $(HOST) --port $(PORT)

# Where Node or its packages cannot be had (3), everything but the console is there all the same.
console: .venv/run.stamp
	$(BIN)/python console/build.py

test: .venv/dev.stamp
	$(BIN)/python console/build.py build test || [ $$? -eq 3 ]
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --ignore tests/browser -m "not long"

long: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --ignore tests/browser -m long

conformance: .venv/dev.stamp
	FLOW_ENGINE_TEST_EXAMPLES=25 $(BIN)/python -m pytest -n 2 tests/api/test_openapi_conformance.py

browser: .venv/dev.stamp
	$(BIN)/python console/build.py || [ $$? -eq 3 ]
	$(BIN)/python -m pytest tests/browser

clients: .venv/dev.stamp
	cd tests/clients && npm ci --silent
	$(BIN)/python -m tests.clients

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python console/build.py check || [ $$? -eq 3 ]

proof: .venv/dev.stamp
	$(BIN)/python -m tests.proof $(if $(FULL),--full)

proof-journal: .venv/dev.stamp
	$(BIN)/python -m tests.scripted

proof-mail: .venv/dev.stamp
	$(BIN)/python -m tests.channels.mail.once_only

proof-replay: .venv/dev.stamp
	$(BIN)/python -m tests.proof.replay

proof-rollout: .venv/dev.stamp
	$(BIN)/python -m tests.proof.rollout

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks

bench-voice: .venv/dev.stamp
	$(BIN)/python -m benchmarks.voice

bench-console: .venv/dev.stamp
	$(BIN)/python console/build.py
	$(BIN)/python -m benchmarks.console

bench-gateway: .venv/dev.stamp
	$(BIN)/python -m benchmarks.gateway --litellm

lock:
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--extra build pyproject.toml -o requirements.lock
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--extra build --extra dev pyproject.toml -o requirements-dev.lock
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--group console -o requirements-console.lock

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/run.stamp: requirements.lock pyproject.toml | .venv/bin/python
	@echo "Installing packages, this time only: some minutes on a slow machine or line ..."
	@test -e .venv/dev.stamp || $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: requirements-dev.lock pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
