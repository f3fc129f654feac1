# Each target creates the virtual environment .venv and builds what it needs.
#   demo              train a convolutional network on handwritten digits
#   test              run all tests
#   test-one OP=Conv  run the tests of one operator, and those that tell what an operator lacks
#   lint              ruff, mypy and cython-lint; check-jsonschema and zizmor for the release workflow
#   generate          render the files that come from bindings_spec
#   site              build the documentation site into site/
#   tutorials         run the tutorials, whose outputs `make site` then shows
#   integrations      run the tests that need packages of other projects: Hugging Face datasets, MLflow, Weights & Biases, notebooks
#   parallel          train in several processes with MPICH, with Open MPI and with Ray
#   federated         run the tests of federated learning with Flower and its simulation engine
#   bench             compare speed and memory with other runtimes, which are installed into .venv-bench
#   accuracy          train six networks with five seeds each in float32 and in bfloat16, and compare what they reach
#   peer              exchange artifacts and checkpoints with onnxruntime-training 1.19.2
#   native            fetch the published sources, test the native library with programs in seven languages, print what they do and its costs
#   wheels            build a wheel with each of PYTHONS, twice, and run tests with what it installs
#   models            train models that ship in PyPI packages
#   arm               cross-compile for arm64 and run a part of the tests in an emulator
#   browser           compile to WebAssembly, run the conformance suite in Node, and train in headless Chromium
#   clean             remove what the targets created, except .venv-bench

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python

.PHONY: demo test test-one lint generate site tutorials integrations parallel federated bench accuracy peer native wheels models arm browser-tools browser clean

$(VENV)/ready: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip setuptools wheel
	touch $@

# An editable install: the next target compiles kernels that have changed since, and nothing else.
SOURCES := pyproject.toml setup.py $(shell find ortrain/_core ortrain/_native -name '*.pyx' -o -name '*.px[di]' -o -name '*.[ch]')
$(VENV)/built: $(VENV)/ready $(SOURCES)
	$(RUN) -m pip install --quiet --editable .
	touch $@

# Installs the requirements of an extra without ortrain itself, which pip would compile again for every extra.
EXTRA := import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
install = $(RUN) -c '$(EXTRA)' $(1) > $(VENV)/$(1).txt && $(RUN) -m pip install --quiet --requirement $(VENV)/$(1).txt

demo: $(VENV)/built
	$(call install,demo)
	$(RUN) examples/digits/train_digits.py

test: $(VENV)/built
	$(call install,test)
	$(RUN) -m pytest -n auto

test-one: $(VENV)/built
	$(call install,test)
	$(RUN) -m pytest tests/ops -k "$(OP)"
	$(RUN) -m pytest tests/test_registry.py tests/test_operators.py

lint: $(VENV)/built
	$(call install,lint)
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	PATH="$(abspath $(VENV))/bin:$$PATH" cython-lint ortrain
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/zizmor --quiet --offline --no-progress .github/workflows

generate: $(VENV)/ready
	$(RUN) bindings_spec/generate.py

site: $(VENV)/ready
	$(call install,docs)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

tutorials: $(VENV)/built
	$(call install,tutorials)
	$(RUN) -m pip install --quiet --no-deps --ignore-requires-python --requirement docs/tutorials/packages.txt
	$(RUN) docs/tools/render_tutorials.py docs/tutorials build/tutorials --execute

integrations: $(VENV)/built
	$(call install,test)
	$(call install,docs)
	$(call install,integrations)
	$(RUN) -m pytest --no-skips tests/integrations/test_data.py tests/trainer tests/data_loading tests/test_documentation_site.py \
		--ignore tests/trainer/test_privacy.py  # needs packages that the others exclude; `make federated` runs it

parallel: $(VENV)/built
	$(call install,test)
	$(RUN) -m tests.distributed

federated: $(VENV)/built
	$(call install,test)
	$(RUN) -m tests.federated

bench: $(VENV)/built
	$(call install,demo)
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(RUN) -m benchmarks

accuracy: $(VENV)/built
	$(call install,accuracy)
	$(RUN) -m benchmarks accuracy

peer: $(VENV)/built
	$(call install,peer)
	$(RUN) -m pytest tests/peer/stock_runtime.py tests/peer/contrib_operators.py
	$(RUN) -m tests.peer

native: $(VENV)/built
	$(call install,test)
	$(RUN) -m tests.native.published || echo "the published sources cannot be fetched: tests that need them are skipped"
	$(RUN) -m pytest -v -rs tests/native
	$(RUN) -m tests.native
	$(RUN) -m tests.native.ports
	$(RUN) -m benchmarks native

PYTHONS ?= $(PYTHON)
wheels:
	$(PYTHON) -m tests.wheels --reproduce $(PYTHONS)

models: $(VENV)/built
	$(call install,peer)
	$(RUN) -W ignore -m tests.real_models
	$(RUN) -W ignore -m tests.real_models --halves

BUILD_REQUIREMENTS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
arm: $(VENV)/built
	$(call install,test)
	$(RUN) -c '$(BUILD_REQUIREMENTS)' > $(VENV)/build.txt && $(RUN) -m pip install --quiet --requirement $(VENV)/build.txt
	$(RUN) -m tests.arm

browser-tools:
	@$(PYTHON) -m tests.browser.environment

browser: browser-tools $(VENV)/built
	$(call install,browser)
	$(RUN) -m tests.browser.environment build/browser
	$(RUN) -m tests.browser.build build/browser
	$(RUN) -m ortrain conformance run --port "node tests/browser/port.mjs build/browser/site $(CURDIR) $${TMPDIR:-/tmp}"
	$(RUN) -m pytest tests/browser/training.py

clean:
	rm -rf build .venv .venv-peer demo_output site ortrain.egg-info
	find ortrain -name '*.so' -delete -o -name 'libonnxruntime*' -delete
