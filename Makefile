# Everything that people and CI do in a checkout. `make run` and `make test` need only Python ≥ 3.11 and make.
PYTHON ?= python3
VENV := .venv
TENSORFLOW := .venv-tensorflow
BIN := $(VENV)/bin
# Test files run in parallel, longest first (tests/seconds.json), so that all workers finish at about the same time.
# Two more workers than CPUs, since tests wait for each other's processes.
WORKERS := $(shell n=$$(( $$(getconf _NPROCESSORS_ONLN) + 2 )); echo $$(( n < 4 ? n : 4 )))
BESIDE := -n $(WORKERS) --dist=loadfile --no-loadscope-reorder
PATHS ?= src tests
# Tests for which it could matter that `make test` forks commands from one process: here each starts as for a user.
BY_REAL_STARTS := $(addprefix tests/integration/test_,failures.py ranks.py resume.py documented_commands.py data.py plugins.py \
  pipeline.py monitor_exec.py monitor_view.py sampler_process.py working_directory.py lost_output.py)
# pip would compile everything it installs on one CPU, including modules that nothing here imports.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/|/kubernetes/aio/|/transformers/models/' $(VENV)/lib || true

COSTS := startup command_overhead case_overhead load_overhead worker_memory step_overhead monitor_slowdown monitor_cost recording_24h \
  serving_generator conclude_fleet page_size collective_times quick_verdicts idle_on_simgpu limits_on_simgpu scaling_on_simgpu validate_forecast
SIMULATIONS := rank_errors repeats_until unsteady_windows outlier_limits healthy_fleets compare_false_alarms serving_search comparison_errors precision_cost rules_on_fleets blame_tests scaling_fits matrix_best throttle_counters hostile_inputs spinning_false_alarms soak_trends power_cap_windows

.PHONY: test-matrix parallel size docs help run test test-changed test-long check golden bench pyz clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gpuproof needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Set another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 2; }

$(VENV)/run-ready: $(BIN)/pip pyproject.toml constraints.txt
	@echo "Installing gpuproof and PyTorch into $(VENV) (once)"
	@$(INSTALL) -e '.[torch,monitor]'
	@$(COMPILE)
	@touch $@

$(VENV)/dev-ready: $(BIN)/pip pyproject.toml constraints.txt simulator/pyproject.toml
	@echo "Installing gpuproof, PyTorch and the test dependencies into $(VENV) (once)"
	@$(INSTALL) -e '.[torch,monitor,dev]' -e simulator
	@$(COMPILE)
	@touch $(VENV)/run-ready
	@echo "Compiling the simulated device (once)"
	@$(BIN)/python -m gpuproof_simgpu > $(VENV)/simgpu || cat $(VENV)/simgpu
	@touch $@

# TensorFlow has a separate environment, so that its dependencies do not conflict with torch's.
$(TENSORFLOW)/ready: constraints.txt
	@echo "Installing TensorFlow into $(TENSORFLOW) for its tests (once; 1.6 GB)"
	@$(PYTHON) -m venv $(TENSORFLOW)
	@$(TENSORFLOW)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt tensorflow-cpu
	@touch $@

run: $(VENV)/run-ready ## measure this machine with the quick recipe
	@$(BIN)/gpuproof run quick

MATRIX ?= examples/matrix/matrix.yaml
PARALLEL ?= 8

test-matrix: $(VENV)/run-ready ## run every case of MATRIX, each with its monitor
	@$(BIN)/gpuproof matrix $(MATRIX)

parallel: $(VENV)/run-ready ## run the matrix with PARALLEL cases at a time
	@$(BIN)/gpuproof matrix $(MATRIX) --parallel $(PARALLEL)

test: $(VENV)/dev-ready ## run all tests except the long ones, or those in PATHS="tests/unit tests/golden"
	$(BIN)/python -m pytest $(BESIDE) --doctest-modules $(PATHS)

test-changed: $(VENV)/dev-ready ## run the tests that import, directly or indirectly, a file changed since main
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/changed_tests.py | xargs $(BIN)/python -m pytest $(BESIDE)

test-long: $(VENV)/dev-ready $(TENSORFLOW)/ready ## run the long tests (CONTRIBUTING.md explains when)
	$(BIN)/python -m pytest $(BESIDE) -m long tests
	GPUPROOF_TESTS_START=exec $(BIN)/python -m pytest $(BESIDE) $(BY_REAL_STARTS)

check: $(VENV)/dev-ready ## run what every commit must pass: format, lint, types, layers, unit tests
	$(BIN)/ruff format --check src simulator tests benchmarks examples notebooks gpu_loadtest.py run_benchmark.py cli.py
	$(BIN)/ruff check src simulator tests benchmarks examples notebooks gpu_loadtest.py run_benchmark.py cli.py
	$(BIN)/codespell src simulator tests benchmarks examples scripts docs README.md CONTRIBUTING.md CHANGELOG.md
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q $(BESIDE) --doctest-modules src tests/unit tests/contract

golden: $(VENV)/dev-ready ## rewrite the golden files from the current output; review the diff
	$(BIN)/python -m pytest -q tests/golden --update-golden

docs: $(VENV)/dev-ready ## build the pages of docs/ as a site in build/site, in strict mode
	@$(BIN)/python scripts/build_site.py

size: ## show the size of the source, by folder
	@$(PYTHON) scripts/size.py

bench: $(VENV)/dev-ready ## measure overhead, and how often rules are wrong (simulated): about two hours on a quiet machine
	@for program in $(COSTS) $(SIMULATIONS); do \
	  echo; echo "== $$program"; $(BIN)/python benchmarks/$$program.py || exit 1; done

pyz: $(VENV)/run-ready ## build the node side as one file: dist/gpuproof-node.pyz
	@$(BIN)/python -m gpuproof.launchers.archive dist/gpuproof-node.pyz

clean: ## remove the environments and all build products
	rm -rf $(VENV) $(TENSORFLOW) build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
