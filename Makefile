# The commands of the project. Each does its own set-up first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup run up down test test-slow test-install test-stack test-ui lint format conformance conformance-all properties cuts snapshots fuzz mutants chaos chaos-full orders month extreme accuracy browser bench bench-quick recorder bench-recorder test-recorder soak states reproduce zoo clean

# Interpreter to build .venv on; empty = the first suitable one on PATH.
PYTHON ?=
# Further arguments for pytest, the run or the benchmark, e.g. make test ARGS='-k selectors', make run ARGS='--source my/logs',
# make bench ARGS='--only sticky --times 3'.
ARGS ?=
# Release of the broker that the recorder is tested in; empty = the one in recorder/pom.xml.
PULSAR ?=
# Seeds of `make soak`, a..b with both ends, and the release to judge; empty = 0..19, and the one in recorder/trace/pom.xml.
SEEDS ?=
RELEASE ?=
# Releases of `make states`; empty = 4.0.0 and 4.2.4.
RELEASES ?=
LOG ?=

WITH_ENV := . .venv/env.sh &&

help: ## Print this list
	@echo 'pulsar-dispatch-audit: did the broker keep its promises? make run shows it on recorded logs.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z-]*\):.*##/  make \1 :/p' Makefile

setup: ## Install the Python environment, Java and Spark's jars, and compile; quick the second time (PYTHON=python3.11 to choose)
	@PYTHON='$(PYTHON)' .ci/setup

run: setup ## Run the whole pipeline on the sample logs: Airflow, Spark, Great Expectations, a verdict per subscription
	@$(WITH_ENV) exec python -m dispatch_airflow.local_run run $(ARGS)

up: setup ## Start Airflow with its web pages and leave it running; prints address and login
	@$(WITH_ENV) exec python -m dispatch_airflow.local_run up

down: setup ## Stop what `make up` started
	@$(WITH_ENV) exec python -m dispatch_airflow.local_run down

test: setup ## Run the tests that need only this repository, but for the slow ones; a quarter of an hour
	@$(WITH_ENV) exec .ci/test $(ARGS)

test-slow: setup ## Run the tests that `make test` leaves out because they take long; half an hour
	@$(WITH_ENV) exec .ci/test slow

conformance: setup ## Compare with the recordings and vectors in ../shared, if they are present
	@$(WITH_ENV) exec .ci/conformance $(ARGS)

browser: setup ## Test reports in a headless Chromium, which must be installed (apt-get install chromium)
	@$(WITH_ENV) exec .ci/browser $(ARGS)

test-stack: ## Test the services of docker-compose.yml natively: Postgres, a Spark cluster, S3, mail, kill -9 (needs postgresql, versitygw)
	@DISPATCH_AUDIT_EXTRAS=stack,stack-test PYTHON='$(PYTHON)' .ci/setup
	@$(WITH_ENV) exec .ci/stack $(ARGS)

test-ui: setup ## Test login, backfill and what-if in Airflow's pages with a headless Chromium (apt-get install chromium)
	@$(WITH_ENV) exec .ci/ui $(ARGS)

test-install: setup ## Install the wheel into new environments and run the DAG beside a foreign package dags; ten minutes (needs the package index)
	@$(WITH_ENV) exec python -m pytest -p no:cacheprovider -o faulthandler_timeout=0 tests/install $(ARGS)

accuracy: setup ## Measure how often what-if is right; writes bench/results/what-if-accuracy.md and the coefficients of its probabilities (half an hour)
	@$(WITH_ENV) exec python -m tests.conformance.what_if_accuracy $(ARGS)

conformance-all: setup ## Run conformance with every recording in every test; half an hour
	@$(WITH_ENV) DISPATCH_AUDIT_CONFORMANCE=all exec .ci/conformance $(ARGS)

properties: setup ## Search for counterexamples of the property tests with new examples, thousands of each; half an hour
	@$(WITH_ENV) exec python -m pytest -q --hypothesis-profile=search $$(grep -rl '^from hypothesis' tests) $(ARGS)

cuts: setup ## Cut every recording at random lines and judge it as of then; goes on where it was stopped; a few minutes (ARGS='--only ch')
	@$(WITH_ENV) exec python -m tests.conformance.cuts $(ARGS)

snapshots: setup ## Cut every recording into intervals, and replay them from snapshots and from the beginning; goes on where it was stopped; an hour
	@$(WITH_ENV) exec python -m tests.conformance.snapshots $(ARGS)

chaos: setup ## Test kills at seeded points, full disks, runs side by side: a sample of half an hour (SEED=1; root for the disks)
	@$(WITH_ENV) exec .ci/chaos $(ARGS)

chaos-full: setup ## Run all of chaos: 120 kills, every stage on every disk; some hours
	@$(WITH_ENV) exec .ci/chaos full $(ARGS)

fuzz: setup ## Feed a million hostile files to every reader; half an hour and more (ARGS='--seed 2 --only events --executions 50000')
	@$(WITH_ENV) exec python -m tests.fuzz --jobs $$(nproc) $(ARGS)

mutants: setup ## Hunt 30 mutants of the newest core, a minute each: hunt alone must kill 28 (ARGS='r0_off --seed 2'; docs/hunt.md)
	@$(WITH_ENV) exec python -m tests.hunted --jobs $$(nproc) $(ARGS)

orders: setup ## Test that running intervals in every order, late and again gives the same tables; ten minutes
	@$(WITH_ENV) exec python -m pytest -p no:cacheprovider tests/spark_jobs/test_orders.py tests/spark_jobs/test_hourly.py tests/conformance/test_orders.py $(ARGS)

month: setup ## Test that a simulated month of hourly runs leaves no files but what retention says; some minutes
	@$(WITH_ENV) exec python -m pytest -p no:cacheprovider tests/spark_jobs/maintenance/test_month.py $(ARGS)

extreme: setup ## Measure audits of legal logs of extreme forms against ordinary logs; ten minutes (ARGS='subs=2000 garbage')
	@$(WITH_ENV) exec python -m tests.extreme $(ARGS)

bench: setup ## Measure replays against copying their bytes; hours (docs/performance.md)
	@$(WITH_ENV) exec python -m bench $(ARGS)

bench-quick: setup ## Run the benchmark on small logs; some minutes
	@$(WITH_ENV) exec python -m bench --quick $(ARGS)

recorder: ## Build the broker's recorder, recorder/target/*.nar (needs Java 17 and Maven; docs/recorder.md)
	@mvn -B -q -f recorder package

bench-recorder: ## Measure the recorder's cost for a broker; ten minutes, nothing else running (needs Maven)
	@.ci/bench-recorder $(ARGS)

test-recorder: ## Test the recorder in real brokers with real clients; minutes (PULSAR=4.0.0 ARGS='-k kill'; needs Maven)
	@DISPATCH_AUDIT_EXTRAS=record,stack,stack-test PYTHON='$(PYTHON)' .ci/setup
	@$(WITH_ENV) PULSAR='$(PULSAR)' exec .ci/recorder $(ARGS)

soak: setup ## Judge a broker's build by seeded clients; goes on where it was stopped (SEEDS=0..20 RELEASE=4.2.4 ARGS='--jobs 2'; needs Maven; docs/soak.md)
	@$(WITH_ENV) SEEDS='$(SEEDS)' RELEASE='$(RELEASE)' exec .ci/soak $(ARGS)

states: ## Bring brokers into each known state and keep their statistics as test data; ten minutes (RELEASES='4.0.0 4.2.4' ARGS='shared-lost-read'; needs Maven; docs/diagnose.md)
	@RELEASES='$(RELEASES)' exec .ci/states $(ARGS)

zoo: setup ## Play the schedules of docs/zoo on brokers in process; five minutes (RELEASES='4.0.0 4.2.4' FOLDER=docs/zoo ARGS='NAME...'; needs Maven; docs/hunt.md)
	@$(WITH_ENV) RELEASES='$(RELEASES)' FOLDER='$(FOLDER)' exec .ci/zoo $(ARGS)

reproduce: setup ## Minimize a log and run the Java test of it on brokers in process (LOG=PATH RELEASES='4.0.0 4.2.4' ARGS='--finding stuck_key'; needs Maven; docs/minimize.md)
	@$(WITH_ENV) LOG='$(LOG)' RELEASES='$(RELEASES)' exec .ci/reproduce $(ARGS)

lint: setup ## Check style, formatting and types
	@$(WITH_ENV) .ci/lint

format: setup ## Bring the code into its standard format
	@$(WITH_ENV) ruff format . && ruff check --fix .

clean: ## Remove .venv, run data and caches
	@[ ! -x .venv/bin/python ] || [ ! -e dags/dispatch_airflow/local_run ] || .venv/bin/python -m dispatch_airflow.local_run down || true
	@rm -rf .venv .venv.lock .dispatch-audit build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
