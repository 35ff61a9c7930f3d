# Every target sets up what it needs: a virtual environment with the pinned packages of constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
USABLE := $(VENV)/.usable
READY  := $(VENV)/.ready
KERNELS := $(VENV)/.demo-kernels

ARM64  ?= $(VENV)/arm64

HUB_FLOOR := $(shell sed -n 's/^hub = \["transformers>=\(.*\)"\]/\1/p' pyproject.toml)

# Empty features keep Numba from using the host's.
PORTABLE := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
  NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= NUMBA_CACHE_DIR=$(abspath $(VENV))/portable-kernels
COMPUTED := $(addprefix tests/,algorithms compiled contract engine linalg masks normalizers scores introspect nn \
  models decode planner test_biases.py test_documents.py test_forward_mode.py test_functional.py test_tracing.py)

.PHONY: demo test test-all test-portable test-processors test-arm64 test-hub hub-with coverage check fuzz results bench docs clean

demo: $(KERNELS)       ## learn to read dates, then show what the model attends to; its kernels are compiled first, on all cores
	$(BIN)/qkv demo

test: $(READY)        ## the fast suite
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-all: $(READY)    ## everything
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile=whole

test-portable: $(READY) ## what a processor decides, as on one without AVX-512: on such a processor `make test` is this test
	@if [ -e /proc/cpuinfo ] && ! grep -q avx512f /proc/cpuinfo; then \
	  echo "This processor has no AVX-512: make test has run what this target would."; else \
	  $(PORTABLE) $(BIN)/pytest -n 2 --dist worksteal -m "not slow" $(COMPUTED); fi

test-arm64:           ## some of every kind on 64-bit Arm, emulated, with the oldest PyTorch; as root on Debian, two hours
	bash tests/platforms/arm64.sh $(abspath $(ARM64))

test-processors: $(READY) ## the tests that judge by errors as on four processors, on one and two threads, with several seeds
	QKV_PROCESSORS_CACHE=$(VENV) $(BIN)/python -m tests.processors $(if $(SETTING),--setting $(SETTING)) $(if $(SEEDS),--seeds $(SEEDS))

test-hub: $(READY)    ## tests/hub with the oldest transformers that the extra `hub` allows, then with the newest one
	$(MAKE) --no-print-directory hub-with TRANSFORMERS=transformers==$(HUB_FLOOR) LAYER=$(VENV)/hub-floor
	$(MAKE) --no-print-directory hub-with TRANSFORMERS=transformers LAYER=$(VENV)/hub-newest

# A virtual environment above the usual one: it holds that version and what it needs in other versions, nothing else.
hub-with: $(READY)
	$(PYTHON) -m venv --clear $(LAYER)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > $$($(LAYER)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beneath.pth
	$(LAYER)/bin/python -m pip install --quiet --upgrade "$(TRANSFORMERS)" "$$(grep ^torch== constraints.txt)"
	$(LAYER)/bin/python -c "import transformers, torch; print('transformers', transformers.__version__, 'torch', torch.__version__)"
	PYTHONPATH=src:. $(LAYER)/bin/python -m pytest -n 2 --dist worksteal $(HUB_TESTS) tests/hub

coverage: $(READY)    ## lines and branches that the whole suite runs; the kernels through their Python form
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest tests/compiled/test_plain.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: $(READY)       ## lint, format, types, import rules, rules of the source
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.source_rules

fuzz: $(READY)        ## read 200,000 spoilt files of every kind; fewer with MUTATIONS=n
	$(BIN)/python -m tests.fuzz --mutations $(or $(MUTATIONS),200000)

results: $(READY)     ## the result table; DATA=folder trains and scores, without it the table is written again
	$(BIN)/python -m results $(if $(DATA),--data $(DATA))

bench: $(READY)       ## speed and memory, as JSON and plots under benchmarks/results
	$(BIN)/python -m benchmarks

docs: $(READY)        ## the documentation under build/docs, with every notebook run; no network
	$(BIN)/python docs/_site/build.py --out build/docs

clean:                ## everything that can be made again
	rm -rf $(VENV) build dist runs demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(USABLE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(KERNELS): $(USABLE)
	$(BIN)/qkv warm recurrent additive.direct linalg --dtype float32
	touch $@

$(READY): $(USABLE)
	$(BIN)/python -m qkv warm & kernels=$$!; \
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' && wait $$kernels
	touch $@
