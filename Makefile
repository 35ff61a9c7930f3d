# Every target sets up what it needs: a virtual environment with the pinned packages of constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Which PyTorch: tested, with all pins of constraints.txt; oldest, the one that pyproject.toml allows; newest, of every package.
TORCH  ?= tested
FLOOR  := $(shell sed -n 's/^ *"torch>=\(.*\)",/\1/p' pyproject.toml)
PINS   := $(VENV)/constraints.txt
pins_tested := cat constraints.txt
pins_oldest := sed 's/^torch==.*/torch==$(FLOOR)/' constraints.txt
pins_newest := printf ''
PINNED := $(or $(pins_$(TORCH)),$(error TORCH is tested, oldest or newest, not $(TORCH)))
USABLE := $(VENV)/.usable
READY  := $(VENV)/.ready

# Compiles kernels that have changed, for this processor.
KERNELS := $(BIN)/python -m qkv.compiled.build
LINKER  := $(shell command -v ld >/dev/null || echo ziglang)

ARM64  ?= $(VENV)/arm64
GPU    := $(VENV)/gpu
TRITON := $(shell sed -n 's/^triton = \["\(.*\);.*/\1/p' pyproject.toml)

RELEASE := $(VENV)/release/$(notdir $(BIN))
TOOLS   := $(VENV)/release/.ready

HUB_FLOOR := $(shell sed -n 's/^hub = .*"transformers>=\([^"]*\)".*/\1/p' pyproject.toml)

PORTABLE := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 QKV_KERNELS=x86-64-v3
COMPUTED := $(addprefix tests/,algorithms compiled contract engine linalg masks normalizers scores introspect nn \
  models decode planner test_biases.py test_documents.py test_forward_mode.py test_functional.py test_tracing.py)

.PHONY: demo test test-all test-portable test-processors test-gpu test-arm64 test-hub hub-with coverage check fuzz results wheel \
  test-wheel release bench docs clean

demo: $(USABLE)       ## learn to read dates, then show what the model attends to
	$(KERNELS)
	$(BIN)/qkv demo

# Hundreds of processes would compile the package and the tests again where the environment forbids bytecode.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: $(READY)        ## the fast suite
	$(KERNELS)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-all: $(READY)    ## everything
	$(KERNELS)
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile=whole

test-portable: $(READY) ## what a processor decides, as on one without AVX-512: on such a processor `make test` is this test
	@if [ -e /proc/cpuinfo ] && ! grep -q avx512f /proc/cpuinfo; then \
	  echo "This processor has no AVX-512: make test has run what this target would."; else \
	  $(KERNELS) x86-64-v3 && $(PORTABLE) $(BIN)/pytest -n 2 --dist worksteal -m "not slow" $(COMPUTED); fi

test-gpu: $(GPU)/.ready ## every mechanism and model on fake CUDA tensors, Triton kernels interpreted; needs a C++ compiler, no GPU
	PYTHONPATH=src:. $(GPU)/bin/python -m tests.devices

test-arm64: $(READY)  ## some of every kind on 64-bit Arm, emulated, with the oldest PyTorch; as root on Debian, an hour
	PYTHON=$(abspath $(BIN))/python bash tests/platforms/arm64.sh $(abspath $(ARM64))

test-processors: $(READY) ## the tests that judge by errors as on four processors, on one and two threads, with several seeds
	$(KERNELS) all
	$(BIN)/python -m tests.processors $(if $(SETTING),--setting $(SETTING)) $(if $(SEEDS),--seeds $(SEEDS))

test-hub: $(READY)    ## tests/hub with the oldest transformers that the extra `hub` allows, then with the newest one
	$(KERNELS)
	$(MAKE) --no-print-directory hub-with RUN=oldest TRANSFORMERS=transformers==$(HUB_FLOOR)
	$(MAKE) --no-print-directory hub-with RUN=newest TRANSFORMERS=transformers

# A virtual environment above the usual one: it holds that version and what it needs in other versions, nothing else.
# PyTorch is the one of TORCH. Versions, day and counts of the run are kept, whether it passes or not; not those of a
# part, chosen by HUB_TESTS.
hub-with: LAYER ?= $(VENV)/hub-$(RUN)
hub-with: $(READY)
	$(PYTHON) -m venv --clear $(LAYER)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > $$($(LAYER)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beneath.pth
	$(LAYER)/bin/python -m pip install --quiet --upgrade "$(TRANSFORMERS)" "$$(grep ^torch== $(PINS) || echo torch)"
	$(LAYER)/bin/python -c "import transformers, torch; print('transformers', transformers.__version__, 'torch', torch.__version__)"
	PYTHONPATH=src:. $(LAYER)/bin/python -m pytest -n 2 --dist worksteal --junitxml=$(LAYER)/report.xml $(HUB_TESTS) tests/hub; \
	  status=$$?; $(if $(HUB_TESTS),,$(LAYER)/bin/python -m results.hub $(RUN) $(LAYER)/report.xml &&) exit $$status

coverage: $(READY)    ## lines and branches that the whole suite runs; the kernels through their Python form
	$(KERNELS)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal
	QKV_KERNELS=python $(BIN)/coverage run -m pytest tests/compiled/test_plain.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: $(READY)       ## lint, format, types, import rules, rules of the source
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=examples/mechanisms $(BIN)/mypy examples/mechanisms
	$(BIN)/mypy -p qkv --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy -p qkv --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.source_rules

fuzz: $(READY)        ## read 200,000 spoilt files of every kind; fewer with MUTATIONS=n
	$(BIN)/python -m tests.fuzz --mutations $(or $(MUTATIONS),200000)

results: $(READY)     ## the result table; DATA=folder trains and scores, without it the table is written again
	$(BIN)/python -m results $(if $(DATA),--data $(DATA))

wheel: $(TOOLS)       ## both packages under dist; the wheel has the kernels of every processor of this kind of machine
	$(RELEASE)/python -m build

test-wheel:           ## what a stranger tries first, in a clean environment with the wheel of dist
	$(PYTHON) -m release.trial dist

release: $(TOOLS)     ## check, build and try what a release needs, and write the text of its tag; publishes nothing
	$(RELEASE)/python -m release

bench: $(READY)       ## speed and memory, as JSON and plots under benchmarks/results
	$(KERNELS)
	$(BIN)/python -m benchmarks

docs: $(READY)        ## the documentation under build/docs, with every notebook run; no network
	$(BIN)/python docs/_site/build.py --out build/docs

clean:                ## everything that can be made again
	rm -rf $(VENV) build dist runs demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf src/qkv/compiled/libraries
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Kernels are compiled while packages are downloaded.
$(USABLE): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PINNED) > $(PINS)
	$(BIN)/python -m pip install --quiet --upgrade -c $(PINS) setuptools numba $(LINKER)
	PYTHONPATH=src $(KERNELS) & kernels=$$!; \
	QKV_TARGETS=none $(BIN)/python -m pip install --quiet --no-build-isolation -c $(PINS) -e '.[view]' && wait $$kernels
	touch $@

$(READY): $(USABLE)
	QKV_TARGETS=none $(BIN)/python -m pip install --quiet --no-build-isolation -c $(PINS) -e '.[dev]'
	touch $@

# Triton in a virtual environment above the usual one, which no other target needs.
$(GPU)/.ready: $(READY)
	$(PYTHON) -m venv --clear $(GPU)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > $$($(GPU)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beneath.pth
	$(GPU)/bin/python -m pip install --quiet '$(TRITON)'
	touch $@

# What builds and checks packages, apart from what runs them.
$(TOOLS): pyproject.toml
	$(PYTHON) -m venv $(VENV)/release
	$(RELEASE)/python -m pip install --quiet 'build>=1.2' 'pyroma>=4.2' 'twine>=6'
	touch $@
