# Everything a fresh machine needs is made here: a virtual environment under .venv, then the target.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch = \["\(.*\)"\]$$/\1/p' pyproject.toml)
LOWEST := $(shell sed -n 's/^LOWEST.*= (\([0-9]*\), \([0-9]*\)),.*/\1.\2/p' graphc/torch/versions.py)
BETWEEN := 2.11
MODELS := $(VENV)-models
PAGES := view,browser,perfetto
# A worker a core: with more threads, BLAS and torch wait for cores that other workers have. One
# that has nothing left takes tests from another: some at night take a minute each. Workers and the
# processes that tests start read bytecode, also where the environment forbids to write it.
TESTING = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
PARALLEL = $(TESTING) $(BIN)/python -m pytest -n auto --dist worksteal
QUICK := not slow and not peers and not gpu and not browser and not perfetto
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
DIGITS := layers=4 hidden=128 inputs=64 classes=10 batch=64

.NOTPARALLEL:
.PHONY: demo test quick torch nightly tests-of-all emulated-gpu large-products models mutants gpu gpu-offline browser chromium lint docs benchmarks figures wheel clean

demo: $(VENV)/.installed-$(EXTRAS)
	@for allocate in none inplace sharing packed; do \
		$(BIN)/graphc plan mlp $(DIGITS) --optimizer adam --allocate $$allocate || exit 1; echo; \
	done
	@$(BIN)/graphc compare mlp $(DIGITS) --optimizer adam
	@$(BIN)/graphc train digits

test: $(VENV)/.installed-$(EXTRAS)
	$(PARALLEL) -m "$(QUICK)"

# Tests near the files that differ from the last commit, or from the commit in $SINCE.
quick: $(VENV)/.installed-$(EXTRAS)
	PYTHONPATH=tests $(TESTING) $(BIN)/python tests/quick.py

# A CPU build of torch, so that `make test` includes tests of graphc.torch: a wheel from a folder
# that pip is configured to look in, else one from PyTorch's own index, which uv knows. For Linux,
# other indices have builds for CUDA, of several GB.
torch: $(VENV)/.torch
$(VENV)/.torch: pyproject.toml | $(BIN)/python
	$(PIP) --no-index --no-deps '$(TORCH)' 2> /dev/null || { $(PIP) uv && \
		$(BIN)/uv pip install --python $(BIN)/python --torch-backend cpu --no-deps '$(TORCH)'; }
	$(PIP) --editable '.[torch]'
	$(BIN)/python -c "import torch; assert torch.version.cuda is None, 'not a CPU build'"
	touch $@

# All parts run, also after one that fails.
nightly: torch $(VENV)/.installed-$(EXTRAS),dev,cudnn,peers,$(PAGES) chromium
	$(MAKE) --keep-going tests-of-all emulated-gpu large-products \
		torch-$(LOWEST) torch-$(BETWEEN) models

tests-of-all:
	$(PARALLEL) --hypothesis-profile nightly --durations 40

# What runs on a GPU, on the emulated one, so that it works on the day.
emulated-gpu:
	$(PARALLEL) tests/on_gpu --emulated-gpu

# Runs whose products are large enough for several threads of BLAS: they change no bit.
large-products:
	$(BIN)/python -m pytest tests/cli/test_train.py tests/docs/test_examples.py

# graphc.torch with one version of torch, in an environment of its own: make torch-2.11. Of slow
# tests only those of operators, whose decompositions depend on the version; others vary the model.
torch-%: BIN = $(VENV)-torch-$*/bin
torch-%: $(VENV)-torch-%/.installed
	$(PARALLEL) tests/pytorch -m "not slow"
	$(PARALLEL) tests/pytorch/test_operators.py -m slow

# Plans of real classes, in an environment of its own: torchvision requires one version of torch.
models: BIN := $(MODELS)/bin
models: $(MODELS)/.installed
	$(PARALLEL) tests/pytorch/real

# Of some groups alone: make mutants GROUPS="checker packing". An hour for all on one core. The group
# torch needs torch (make torch).
mutants: $(VENV)/.installed-$(EXTRAS)
	PYTHONPATH=tests OPENBLAS_NUM_THREADS=1 $(BIN)/python -m mutants $(GROUPS)

# cuDNN's frontend without the packages that it declares and graphc has no use for.
gpu: $(VENV)/.installed-$(EXTRAS),gpu
	$(PIP) cuda-bindings nvidia-cudnn-cu13
	$(PIP) --no-deps nvidia-cudnn-frontend
	$(BIN)/python -m pytest tests/on_gpu tests/pytorch/test_gpu.py -m gpu

# On a bare machine without a network, with what benchmarks/gpu_day/prepare.sh has collected elsewhere.
gpu-offline:
	bash benchmarks/gpu_day/run.sh

browser: $(VENV)/.installed-$(EXTRAS),$(PAGES) chromium
	$(BIN)/python -m pytest tests/view -m "browser or perfetto"

# Any on the path, else Debian's, else Playwright's own.
chromium: $(VENV)/.installed-$(EXTRAS),$(PAGES)
	test -n "$$CHROMIUM" || command -v chromium || command -v google-chrome || \
		{ apt-get update && apt-get install --yes --no-install-recommends chromium; } || \
		$(BIN)/playwright install chromium

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q tests/docs/test_docstrings.py
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, under build/site; a warning or a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/build.py

benchmarks: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/python benchmarks/planning_time.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/documents.py

figures: $(VENV)/.installed-view
	$(BIN)/python benchmarks/figures.py

# A source distribution, and a wheel that is built from it.
wheel: | $(BIN)/python
	$(PIP) 'build>=1.2'
	$(BIN)/python -m build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

.PRECIOUS: $(VENV)-torch-%/.installed
$(VENV)-torch-%/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' "torch==$*.*"
	touch $@

$(MODELS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(MODELS)
	$(MODELS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[models,test]'
	touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-torch-* $(MODELS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
