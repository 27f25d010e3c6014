# Two commands do all the set-up: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# Two workers a core: whole jobs wait more than they compute. WORKERS=0 runs the tests one by one.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --durations 15
MINUTES ?= 5
SEED ?=
# Words of which the names of cases of `make test-zoo` have one.
ONLY ?=
# Bytecode is wanted: without it every process of the tests compiles torch again.
unexport PYTHONDONTWRITEBYTECODE
# A part of the tests: every folder of this name below tests/, as in PART=runner, PART=unit, PART=images.
PART ?=
# $(call run_tests,MARKS): the tests of that part with these pytest marks.
define run_tests
@folders="$$(find tests $(if $(PART),-type d -name '$(PART)',-maxdepth 0) -print)"; \
[ -n "$$folders" ] || { echo "there is no folder $(PART) below tests/"; exit 2; }; \
set -x; $(PYTEST) -m '$(1)' $$folders
endef

.PHONY: help demo fuzz test test-faults test-heavy test-unit test-zoo check docs setup clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/demo  ## train a small network on handwritten digits with two DDP processes, without Docker
	OMP_NUM_THREADS=1 $(BIN)/trainshed run entrypoints/digits.yaml

test: .venv/ready  ## every capability, or PART=runner; what needs containers runs where a Docker daemon answers
	$(call run_tests,not heavy)

test-heavy: .venv/ready  ## the costly variants that `make test` leaves out, or PART=runner (docs/evidence/heavy.md)
	$(call run_tests,heavy)

test-faults: .venv/ready  ## random faults at random moments, as long as MINUTES=5 says; SEED=... plays the same again (as root)
	$(BIN)/python tests/faults/play --minutes '$(MINUTES)' --seed '$(SEED)'

fuzz: .venv/ready  ## 100,000 mutated inputs through everything that reads other people's words; CASES=..., SEED=...
	PYTHONPATH=toolkit:tests $(BIN)/python -m fuzz --cases '$(or $(CASES),100000)' --seed '$(or $(SEED),1)'

test-unit: .venv/ready  ## what is tested without whole jobs, within a minute
	$(PYTEST) -m 'not heavy' tests/unit

test-zoo: .venv/ready  ## models and loops of many kinds in a pipeline and in one process, for hours; ONLY=..., SEED=... (docs/evidence/zoo.md)
	PYTHONPATH=toolkit:tests $(BIN)/python -m hostile --seed '$(or $(SEED),1)' $(if $(ONLY),--only $(ONLY))

check: .venv/ready  ## style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: .venv/ready  ## the documentation as a site in build/docs
	.venv/docs/bin/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m venv .venv/docs
	.venv/docs/bin/python -m pip install -q --disable-pip-version-check 'zensical>=0.0.73'
	.venv/docs/bin/zensical build --strict

setup: .venv/ready  ## the virtual environment that all of these use

# torch from its CPU index where that answers, so that nobody downloads CUDA to try the demo. Modules are compiled when
# they are first imported: most of them never are.
.venv/demo: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "trainshed needs Python 3.10 or newer (make PYTHON=python3.12 ...)")'
	$(PYTHON) -m venv .venv || { echo "no venv module: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	$(PIP) --no-compile '$(TORCH)' -e '.[demo]' \
	    $$($(BIN)/python -c 'import urllib.request as u; u.urlopen("$(TORCH_INDEX)/torch/", timeout=15)' 2>/dev/null \
	       && echo --extra-index-url $(TORCH_INDEX))
	touch $@

.venv/ready: .venv/demo images/cpu/constraints.txt
	$(PIP) --no-compile -e '.[dev,demo,transformers,ui]'
	touch $@

clean:  ## remove what the other targets have made
	rm -rf .venv .venv-clients runs build dist toolkit/*.egg-info .pytest_cache .mypy_cache .ruff_cache
