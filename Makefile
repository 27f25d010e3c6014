# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin

.PHONY: demo test setup check clean

demo: .venv/ready  ## train a small network on handwritten digits with two DDP processes, without Docker
	OMP_NUM_THREADS=1 $(BIN)/trainshed run entrypoints/digits.yaml

test: .venv/ready  ## all tests; those that need containers run where a Docker daemon answers
	$(BIN)/python -m pytest -q

check: .venv/ready  ## style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

setup: .venv/ready  ## the virtual environment that all of these use

# torch from its CPU index where that answers, so that nobody downloads CUDA to try the demo.
.venv/ready: pyproject.toml images/cpu/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "trainshed needs Python 3.10 or newer (make PYTHON=python3.12 ...)")'
	$(PYTHON) -m venv .venv || { echo "no venv module: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check $(TORCH) \
	    $$($(BIN)/python -c 'import urllib.request as u; u.urlopen("$(TORCH_INDEX)/torch/", timeout=15)' 2>/dev/null \
	       && echo --extra-index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,demo,transformers]'
	touch $@

clean:
	rm -rf .venv .venv-clients runs build dist toolkit/*.egg-info .pytest_cache .mypy_cache .ruff_cache
