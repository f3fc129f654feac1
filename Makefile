# demo, test, test-one OP=Conv, lint, generate, bench (beside the peers that install, in .venv-bench); peer compares with the old package, models runs
# models that ship on PyPI. Each makes its own virtual environment (.venv).

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python

.PHONY: demo test test-one lint generate bench peer models clean

$(VENV)/ready: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip setuptools wheel
	touch $@

# an editable install, so that a changed kernel is compiled again by the next command and nothing else is
install = $(RUN) -m pip install --quiet --editable '.[$(1)]'

demo: $(VENV)/ready
	$(call install,demo)
	$(RUN) examples/digits/train_digits.py

test: $(VENV)/ready
	$(call install,test)
	$(RUN) -m pytest -n auto

test-one: $(VENV)/ready
	$(call install,test)
	$(RUN) -m pytest tests/ops -k "$(OP)"

lint: $(VENV)/ready
	$(call install,lint)
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	PATH="$(abspath $(VENV))/bin:$$PATH" cython-lint ortrain

generate: $(VENV)/ready
	$(RUN) bindings_spec/generate.py

bench: $(VENV)/ready
	$(call install,demo)
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(RUN) -m benchmarks

peer: $(VENV)/ready
	$(call install,peer)
	$(RUN) -m pytest tests/peer/stock_runtime.py tests/peer/contrib_operators.py
	$(RUN) -m tests.peer

models: $(VENV)/ready
	$(call install,peer)
	$(RUN) -W ignore -m tests.real_models
	$(RUN) -W ignore -m tests.real_models --halves

clean:
	rm -rf build .venv .venv-peer demo_output ortrain.egg-info
	find ortrain -name '*.so' -delete
