# Two commands for a newcomer: `make demo` and `make test`. Both build .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-browser mutations lint format bench clean

demo: $(READY)
	$(BIN)/fedslice compare hotcold --recipes fedavg,fedsubavg --target test_auc=0.7 --seeds 2 --resume --report report.html

test: $(READY)
	$(BIN)/pytest -n 2

# The report in a real browser; on Debian its packages are installed if they are missing, elsewhere the tests are skipped.
test-browser: $(READY)
	command -v chromium chromedriver >/dev/null || { apt-get update --quiet && apt-get install --yes --quiet chromium chromium-driver; } || true
	$(BIN)/pytest -m browser

# 100,000 mutated messages of each kind, over twenty recipes: about ten minutes of two cores.
mutations: $(READY)
	$(BIN)/python tests/mutations.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks $(if $(DATA),--data $(DATA)) $(BENCH)

# torch comes first and alone, so that no dependency can ask for another build of it.
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
