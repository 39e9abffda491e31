# Two commands do everything: `make run` shows a sandbox, `make test` proves it. Both install what is missing.

.PHONY: run test soak check bench docs seccomp map sync clean

run: ## make a sandbox and run Python and shell code in it
	@scripts/setup run
	@.venv/bin/python scripts/with_own_server.py .venv/bin/python examples/first_sandbox.py
	@echo
	@echo "Next, as root:"
	@echo "    .venv/bin/atoll shell hello       # a computer of your own; Ctrl-D leaves it"
	@echo "    .venv/bin/atoll exec hello 'ls'   # a command in it; run, ls, top, cp and others: .venv/bin/atoll --help"
	@echo "    .venv/bin/atoll rm hello          # and it is gone"
	@echo "docs/getting-started.md goes on with Python."

test: ## every test, with the linters
	@scripts/setup test
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy
	@.venv/bin/pytest -n 3 -m 'not alone'
	@.venv/bin/pytest -m alone

soak: ## ten minutes of use under kills, stops and clocks that are set; nothing may be lost, done twice or left
	@scripts/setup test
	@.venv/bin/python -m tests.soak

check: ## format, lint and type-check
	@scripts/setup test
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .
	@.venv/bin/mypy

bench: ## how fast and how small it is, against the kernel's own price and crun
	@scripts/setup bench
	@.venv/bin/python benches/cold_start.py
	@.venv/bin/python benches/density.py
	@.venv/bin/python benches/exec.py
	@.venv/bin/python benches/files.py

docs: ## the guides and a reference as a site in build/site; a dead link fails
	@scripts/setup docs
	@.venv/bin/properdocs build --strict
	@echo "docs: build/site/index.html"

seccomp: ## compile the system-call filter again after a change to its policy
	@scripts/setup test
	@scripts/build_seccomp.py

map: ## make docs/map.md again, after files or the first sentences of their docstrings changed
	@python3 scripts/build_map.py

sync: map ## make the blocking SDK again after a change to the async one, and the map
	@scripts/setup test
	@.venv/bin/python scripts/build_sync_client.py

clean:
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
