# `make demo` and `make test` work on a fresh machine with Python 3.11 or newer; everything lands in .venv.

PYTHON ?= python3
# What pip gets when it installs torch, such as TORCH_ARGS='--index-url https://download.pytorch.org/whl/cpu'.
TORCH_ARGS ?=
# What `accordion demo` and pytest get, such as DEMO_ARGS='--json out.json' and PYTEST_ARGS='-m "not slow"'.
DEMO_ARGS ?=
PYTEST_ARGS ?=
# How many processes run tests, each a whole file at a time.
TEST_PROCESSES ?= 3
# How many run those with Ray or a browser, of which each starts many processes: Ray gives up a node after 30 s.
LIVE_PROCESSES ?= 3
# Tests of faults start several nodes each.
ELASTIC_PROCESSES ?= 2
IN_PROCESSES = --dist loadfile --no-loadscope-reorder -n
# What test-ray runs on another release of Ray, beside the unit tests of Ray Train's private names.
RAY_TESTS ?= tests/elastic/test_ray_train.py tests/elastic/test_ray_train_engine.py tests/elastic/test_nodes.py
# Engine of the jobs of test-elastic, `ray-train` or `actors`; empty for the product's default.
ENGINE ?=
# What `make schemathesis` tests: the address of a service, its token and those of other users, and for how long.
URL ?= http://127.0.0.1:8080
TOKEN ?=
OTHER_TOKENS ?=
SECONDS ?= 600
# What the bench gets, such as BENCH_ARGS='--quick --rows encode'.
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Where images of containers turn bytecode off, every process of a test would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed
# What the tests, the benches and the examples of other frameworks import besides.
TEST_STAMP := $(VENV)/.installed-for-tests
# What builds the book.
DOCS_STAMP := $(VENV)/.installed-for-docs
# Where a test process that crashes leaves the stacks of its threads.
CRASHES := build/crashes
PYTEST := ACCORDION_CRASHES=$(CRASHES) $(BIN)/python -m pytest
SHOW_CRASHES = grep -lr 'Fatal Python error' $(CRASHES) 2>/dev/null | xargs -r tail -n +1
# After pytest ended with another status than that of failed tests: nobody knows which tests passed, so none counts as passed.
CRASHED = $(SHOW_CRASHES); [ $$status -le 1 ] || { rm -rf .pytest_cache; echo "pytest ended with status $$status"; exit $$status; };
# With --last-failed, pytest selects no test in a part where none failed, and ends with status 5.
NONE_FAILED = [ "$$status" = "$(if $(findstring --last-failed,$(PYTEST_ARGS)),5)" ]

.PHONY: help venv demo docs test test-postgresql test-elastic test-ray test-gpu lint format bench-library bench-gpu bench-network bench-plan bench-mixed bench-sharded bench-sharded-learning bench-learning bench-paper bench-accuracy bench-service bench-recovery chaos schemathesis

help:
	@echo "make demo    train a job from end to end on this machine and show it"
	@echo "make test    linters, types, import contracts, then all tests"
	@echo "make test-elastic  only the faults that a job has to survive, with a table of what each cost; ENGINE=actors for the other engine"
	@echo "make test-postgresql  on PostgreSQL the tests that 'make test' runs on SQLite only; 'make chaos' runs them too"
	@echo "make test-ray RAY=2.57.1  the engine, guests and lost nodes on another release of Ray"
	@echo "make test-gpu  the library on one card; without a card nothing is run, and it says so"
	@echo "make docs    build the book of docs/ into build/docs; a warning or a dead link fails it"
	@echo "make lint    the checks without the tests"
	@echo "make format  format the code"
	@echo "make bench-library  time the library against its peers; as root, and alone on the machine"
	@echo "make bench-gpu      time encode and decode, the statistic and a step on one card, 2 minutes"
	@echo "make bench-network  time the training step over links with latency and without; as root, alone on the machine, 40 minutes (BENCH_ARGS='--links NAME' for some)"
	@echo "make bench-plan     compare the predictions of 'accordion plan' with real steps over links; as root, with ACCORDION_DATA"
	@echo "make bench-mixed    time two workers of which one has half a processor; as root"
	@echo "make bench-sharded  time steps of a model that FSDP2 shards beside FSDP2's own exchange; as root"
	@echo "make bench-sharded-learning  time until such a model has learned; as root, with ACCORDION_DATA, an hour"
	@echo "make bench-paper     simulate what the papers claim; with ACCORDION_DATA, an hour"
	@echo "make bench-accuracy  time, bytes and accuracy on shaped links beside DDP, PowerSGD and torchft; root and ACCORDION_DATA"
	@echo "make bench-learning  simulate what methods and local steps learn, each at its best learning rate; with ACCORDION_DATA, some hours (BENCH_ARGS='--recipes NAME' for some)"
	@echo "make bench-service  load the control plane on both databases; alone on the machine, 20 minutes (BENCH_ARGS='--rows NAME' for some)"
	@echo "make chaos   kill parts of a service at random while 30 jobs of three owners run, then check every job; with PostgreSQL (CHAOS_ARGS='--database sqlite' without), 20 minutes at most"
	@echo "make schemathesis  test the REST API of a running service with random requests (URL=..., TOKEN=..., SECONDS=600); it gets random jobs and users"
	@echo "make bench-recovery  time faults and starts on both engines and of plain Ray Train; alone on the machine, two hours (BENCH_ARGS='--rows NAME' for some)"
	@echo "make venv    install everything into $(VENV)"

venv: $(TEST_STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "$(PYTHON) is Python %d.%d and 3.11 is the oldest that works; run make PYTHON=python3.11" % sys.version_info[:2])'
	@echo "installing Accordion, torch and Ray into $(VENV), which takes 3 to 20 minutes"
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(TORCH_ARGS) torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[service,demo]'
	@touch $@

$(TEST_STAMP): $(STAMP)
	@echo "installing what the tests need"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[service,demo,test]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	@echo "installing what builds the book"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[service,demo,docs]'
	@touch $@

docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -b html -W --keep-going -q -j auto docs build/docs
	@echo "the book is at build/docs/index.html"

demo: $(STAMP)
	$(BIN)/accordion demo $(DEMO_ARGS)

test: lint
	@rm -rf $(CRASHES); failed=; \
	for part in "parallel $(IN_PROCESSES) $(TEST_PROCESSES)" "live $(IN_PROCESSES) $(LIVE_PROCESSES)" serial; do \
	  $(PYTEST) --part $$part $(PYTEST_ARGS) || \
	    { status=$$?; $(NONE_FAILED) || { $(CRASHED) failed="$$failed $${part%% *}"; }; }; \
	done; \
	[ -z "$$failed" ] || { $(PYTEST) --cache-show cache/lastfailed; echo "tests failed in:$$failed"; exit 1; }

test-elastic: $(TEST_STAMP)
	@rm -rf $(CRASHES)
	@ACCORDION_TEST_ENGINE=$(ENGINE) $(PYTEST) --part elastic $(IN_PROCESSES) $(ELASTIC_PROCESSES) tests/elastic $(PYTEST_ARGS) || \
	  { status=$$?; $(NONE_FAILED) || { $(CRASHED) exit 1; }; }

# Another release of Ray beside that of the environment: the folder comes first in the path of every process.
test-ray: $(TEST_STAMP)
	@[ -n "$(RAY)" ] || { echo "give a release of Ray, such as make test-ray RAY=2.55.1"; exit 1; }
	@[ -d build/ray-$(RAY) ] || $(BIN)/python -m pip install --quiet --no-deps --target build/ray-$(RAY) ray==$(RAY)
	@rm -rf $(CRASHES)
	PYTHONPATH=$(CURDIR)/build/ray-$(RAY) $(BIN)/python -m pytest tests/unit/accordion_ray tests/unit/workers/test_ray_train_private_api.py tests/unit/workers/test_ray_train_pool.py
	PYTHONPATH=$(CURDIR)/build/ray-$(RAY) $(PYTEST) --part elastic $(IN_PROCESSES) $(ELASTIC_PROCESSES) $(RAY_TESTS) $(PYTEST_ARGS)

test-gpu: $(TEST_STAMP)
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "there is no GPU: nothing is tested")'
	$(BIN)/python -m pytest --confcutdir tests/gpu tests/gpu $(PYTEST_ARGS)

lint: $(TEST_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(TEST_STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench-library: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.compare $(BENCH_ARGS)

bench-gpu: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.gpu $(BENCH_ARGS)

bench-network: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.network $(BENCH_ARGS)

bench-plan: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.plan_accuracy $(BENCH_ARGS)

bench-mixed: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.mixed_workers $(BENCH_ARGS)

bench-sharded: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.sharded $(BENCH_ARGS)

bench-sharded-learning: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.sharded_learning $(BENCH_ARGS)

bench-learning: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.learning $(BENCH_ARGS)
	$(BIN)/python -m tests.bench.learning_figure

bench-paper: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.paper $(BENCH_ARGS)

bench-accuracy: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.accuracy $(BENCH_ARGS)
	$(BIN)/python -m tests.bench.accuracy_figure

bench-service: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.service $(BENCH_ARGS)

test-postgresql: $(TEST_STAMP)
	$(PYTEST) --postgresql --part parallel $(IN_PROCESSES) $(TEST_PROCESSES) tests/api tests/unit $(PYTEST_ARGS)

chaos: test-postgresql
	$(BIN)/python -m tests.chaos.run $(CHAOS_ARGS)

schemathesis: $(TEST_STAMP)
	@TOKENS='$(TOKEN) $(OTHER_TOKENS)' $(BIN)/python -m tests.api.schema_run $(URL) --seconds $(SECONDS)

bench-recovery: $(TEST_STAMP)
	$(BIN)/python -m tests.bench.recovery $(BENCH_ARGS)
