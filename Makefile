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
# Of `make bench`: words for benchmarks/bench.py.
BENCH ?=
# Bytecode is wanted: without it every process of the tests compiles torch again.
unexport PYTHONDONTWRITEBYTECODE
# A part of the tests: every folder of this name below tests/, as in PART=runner, PART=unit, PART=images.
PART ?=
# The commit since which a change is looked at, and the share of the matrix that is played: 1/4, 2/4, 3/4 or 4/4.
CHANGED ?=
SLICE ?=
# Of `make test-all`: only tests with this mark, as in MARK=heavy.
MARK ?=
# $(call run_tests,OPTIONS): the tests of that part with these options. Those that fail run once more, alone (docs/evidence/gate.md).
define run_tests
@folders="$$(find tests $(if $(PART),-type d -name '$(PART)',-maxdepth 0) -print)"; \
[ -n "$$folders" ] || { echo "there is no folder $(PART) below tests/"; exit 2; }; \
set -x; $(PYTEST) --repeat $(1) $$folders
endef

.PHONY: bench help demo fuzz test test-all test-faults test-matrix test-unit test-zoo check docs prepare setup clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/demo  ## train a small network on handwritten digits with two DDP processes, without Docker
	OMP_NUM_THREADS=1 $(BIN)/trainshed run entrypoints/digits.yaml

test: prepare  ## unit tests and one real case of every capability; CHANGED=COMMIT adds the folders that a change reaches
	$(call run_tests,--quick $(if $(CHANGED),--changed '$(CHANGED)') $(if $(SLICE),--slice '$(SLICE)'))

test-all: prepare  ## everything, costly variants included; PART=runner, MARK=heavy
	$(call run_tests,$(if $(MARK),-m '$(MARK)'))

test-matrix: prepare  ## a share of the large tables of cases: SLICE=1/4
	$(call run_tests,--slice '$(or $(SLICE),1/1)' $(if $(CHANGED),--changed '$(CHANGED)'))

test-faults: .venv/ready  ## random faults at random moments, as long as MINUTES=5 says; SEED=... plays the same again (as root)
	$(BIN)/python tests/faults/play --minutes '$(MINUTES)' --seed '$(SEED)'

bench: .venv/ready  ## every benchmark that needs no special machine, in one table, within 30 minutes; BENCH='--only data tune'
	$(BIN)/python benchmarks/bench.py $(BENCH)

fuzz: .venv/ready  ## 100,000 mutated inputs through everything that reads other people's words; CASES=..., SEED=...
	PYTHONPATH=toolkit:tests $(BIN)/python -m fuzz --cases '$(or $(CASES),100000)' --seed '$(or $(SEED),1)'

test-unit: .venv/ready  ## what is tested without whole jobs, within a minute
	$(PYTEST) --quick tests/unit

test-zoo: .venv/ready  ## models and loops of many kinds in a pipeline and in one process, for hours; ONLY=..., SEED=... (docs/evidence/zoo.md)
	PYTHONPATH=toolkit:tests $(BIN)/python -m hostile --seed '$(or $(SEED),1)' $(if $(ONLY),--only $(ONLY))

prepare: .venv/ready  ## the image and the environments of SDKs that some tests need; `make test` does it, too
	@$(BIN)/python tests/support/prepare.py

check: .venv/ready  ## style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# The wheel, and beside it what an installation of it holds, as CycloneDX.
wheel: .venv/ready  ## build/wheel: the wheel and its SBOM
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv && build/wheel/venv/bin/python -m pip install --quiet build/wheel/*.whl
	$(PYTHON) images/install/sbom.py build/wheel/venv/bin/python trainshed >build/wheel/trainshed.cdx.json
	rm -r build/wheel/venv

# The pages of the site, in their folders.
SITE := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs entrypoints/README.md images/README.md examples benchmarks/README.md
docs: .venv/ready  ## the documentation as a site in build/docs
	.venv/docs/bin/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m venv .venv/docs
	.venv/docs/bin/python -m pip install -q --disable-pip-version-check 'zensical>=0.0.73'
	rm -rf build/pages && mkdir -p build/pages && cp -r --parents $(SITE) build/pages
	.venv/docs/bin/zensical build --strict

setup: .venv/ready  ## the virtual environment that all of these use

# torch from its CPU index where that answers, so that nobody downloads CUDA to try the demo. Modules are compiled when
# they are first imported: most of them never are.
.venv/demo: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "trainshed needs Python 3.10 or newer (make PYTHON=python3.12 ...)")'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv || { echo "no venv module: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	$(PIP) --no-compile '$(TORCH)' -e '.[demo]' \
	    $$($(BIN)/python -c 'import urllib.request as u; u.urlopen("$(TORCH_INDEX)/torch/", timeout=15)' 2>/dev/null \
	       && echo --extra-index-url $(TORCH_INDEX))
	touch $@

.venv/ready: .venv/demo images/cpu/constraints.txt
	$(PIP) --no-compile -e '.[dev,demo,transformers,ui]'
	touch $@

clean:  ## remove what the other targets have made
	rm -rf .venv .venv-clients runs build dist toolkit/*.egg-info .pytest_cache .mypy_cache .ruff_cache
