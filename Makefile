# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
VENV42 := .venv-spark42
VENVDOCS := .venv-docs
VENVBQ := .venv-bigquery
BIN := $(VENV)/bin

# A program's first minutes with three sinks, on the newer Spark only.
FIRST_MINUTES := tests/install/test_first_minutes.py::test_what_init_writes_lands_every_change_since_the_command[iceberg-mirror-parquet]

RULES := tests/unit tests/simulation/test_lineage_rules.py

# Each of the tests' many processes would compile the program anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo check quick test types on-spark-42 on-spark-41 lint format lock jars newest audit docs release bench nightly faults clean

help: ## Show the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

PIP := $(BIN)/python -m pip -q --disable-pip-version-check

$(VENV)/.installed: requirements.lock pyproject.toml setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slackwater needs Python 3.11 or later; set PYTHON=/path/to/it")'
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

PACKAGES := 'import sysconfig; print(sysconfig.get_path("purelib"))'

# Spark 4.2 before everything that the other environment has.
$(VENV42)/.installed: requirements-spark42.lock $(VENV)/.installed
	@$(BIN)/python -m venv --clear --without-pip $(VENV42)
	$(PIP) --python $(VENV42)/bin/python install --no-deps --require-hashes -r requirements-spark42.lock
	@echo "import site; site.addsitedir('$$($(BIN)/python -c $(PACKAGES))')" \
		> "$$($(VENV42)/bin/python -c $(PACKAGES))/others.pth"
	@touch $@

# BigQuery's emulator needs an older DuckDB than the tests.
$(VENVBQ)/.installed: requirements-bigquery.lock $(VENV)/.installed
	@$(BIN)/python -m venv --clear --without-pip $(VENVBQ)
	$(PIP) --python $(VENVBQ)/bin/python install --require-hashes -r requirements-bigquery.lock
	@$(VENVBQ)/bin/python -c "from duckdb_extensions import import_extension; import_extension('spatial')"
	@touch $@

$(VENVDOCS)/.installed: requirements-docs.lock $(VENV)/.installed
	@$(BIN)/python -m venv --clear --without-pip $(VENVDOCS)
	$(PIP) --python $(VENVDOCS)/bin/python install --require-hashes -r requirements-docs.lock
	@touch $@

install: $(VENV)/.installed ## Install the locked dependencies and this checkout into .venv

demo: install ## Show the main job on the emulator, and check its output
	@$(BIN)/slackwater demo

check: install ## The quick checks: style, types, import contracts, unit tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j 2 types quick

# One more at once than there are processors: some tests wait.
quick:
	@$(BIN)/pytest -q -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --hypothesis-profile=quick -m "not slow and not long" tests/test_house.py $(RULES)

test: install ## The source's tests on Spark 4.2, and all tests on Spark 4.1
	@$(BIN)/python -m slackwater.pipeline.spark.java
	@$(BIN)/python -m tests.support.browsers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j 3 types on-spark-42 on-spark-41

types:
	@$(BIN)/mypy

# Its output comes when it fails. Neither the dialects nor what starts Spark anew depend on its
# version. The last module ends the JVM that those before it share.
on-spark-42: $(VENV42)/.installed
	@mkdir -p build
	@$(VENV42)/bin/python -m pytest -k "not POSTGRESQL and not started_anew" \
		tests/spark/test_source.py \
		tests/unit/pages/test_advisories.py \
		tests/unit/spark_sink/test_hadoop_connectors.py::test_connectors_are_of_the_hadoop_that_spark_has \
		"$(FIRST_MINUTES)" \
		tests/spark/test_pipeline_session.py \
		> build/on-spark-42.log 2>&1 || { cat build/on-spark-42.log; exit 1; }
	@echo "On Spark 4.2: $$(tail -n 1 build/on-spark-42.log)"

# Four at once on two cores: a test waits for other processes more than half of its time.
on-spark-41: $(VENVBQ)/.installed
	@$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" --durations=25 \
		--deselect "$(FIRST_MINUTES)"

lint: install ## Style and types
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: install ## Fix style and format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

COMPILE = $(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --no-emit-index-url --no-header --all-extras --group dev pyproject.toml

lock: install ## Resolve the lock files again, to the newest versions
	$(BIN)/python -m pip install -q uv
	$(COMPILE) -o requirements.lock
	$(subst --group dev ,,$(COMPILE)) -o requirements.runtime.lock
	$(subst --all-extras --group dev pyproject.toml,--group docs,$(COMPILE)) -o requirements-docs.lock
	echo 'pyspark>=4.2,<4.3' | $(subst --all-extras --group dev pyproject.toml,--no-deps -,$(COMPILE)) -o requirements-spark42.lock
	echo 'bqemulator==1.4.0 duckdb-extension-spatial==1.5.5 duckdb-extensions==1.5.5 numpy' | tr ' ' '\n' | $(subst --all-extras --group dev pyproject.toml,-,$(COMPILE)) -o requirements-bigquery.lock
	echo 'cyclonedx-bom==7.5.0' | $(subst --all-extras --group dev pyproject.toml,-,$(COMPILE)) -o deploy/sbom.lock
	@$(MAKE) --no-print-directory jars

jars: install $(VENV42)/.installed ## Fetch the jars that sinks need again, and write down their checksums
	@mkdir -p build
	$(BIN)/python -m tests.support.pinned_jars > build/jars
	$(VENV42)/bin/python -m tests.support.pinned_jars >> build/jars
	sort -k 2 -u build/jars > slackwater/pipeline/spark/jars.sha256

newest: lock ## Test the newest versions, as a plain install brings them; each week
	@$(MAKE) --no-print-directory test

AUDIT = $(BIN)/pip-audit --disable-pip
# It has known vulnerabilities. A source that does not say so says nothing of other packages either.
VULNERABLE := pyyaml==5.3

audit: install ## Check the locked dependencies against the advisory databases
	$(BIN)/python -m pip install -q pip-audit
	@mkdir -p build && echo '$(VULNERABLE)' > build/vulnerable.txt
	@$(AUDIT) --no-deps -f json -r build/vulnerable.txt 2> build/audit.log | grep -q '"id"' || { \
		echo "audit: nothing is shown: the source of advisories does not answer, or knows none for $(VULNERABLE)." >&2; \
		tail -n 3 build/audit.log >&2; exit 1; }
	for lock in requirements.lock requirements-spark42.lock requirements-docs.lock requirements-bigquery.lock deploy/sbom.lock; do \
		$(AUDIT) --require-hashes --strict -r $$lock || exit 1; done

# Its pages are those of the repository, in the same places, so that their links lead on.
docs: $(VENVDOCS)/.installed ## Build the pages as a site, in build/site
	@rm -rf build/pages && mkdir -p build/pages/deploy/chart
	@cp -r README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs examples build/pages
	@cp -r deploy/chart/README.md deploy/chart/examples build/pages/deploy/chart
	@$(BIN)/slackwater schema > build/pages/slackwater.schema.json
	@$(BIN)/python -m tests.support.reference_page > build/pages/docs/reference.md
	@$(VENVDOCS)/bin/mkdocs build --strict

ENGINE ?= docker

release: install ## Build packages, image, chart, bill of materials and notes of a version, in build/release
	@$(BIN)/python -m deploy.release --engine $(ENGINE) --to build/release

bench: install ## Measure everything; see docs/performance.md
	@$(BIN)/python -m bench $(if $(GO_TAIL),--go $(GO_TAIL))

nightly: $(VENV42)/.installed $(VENVBQ)/.installed ## Each night: the tests that `make test` leaves out
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m long --durations=25
	@$(VENV42)/bin/python -m pytest \
		tests/spark/test_bigtable_source.py \
		tests/spark/test_connectors.py::test_spark_writes_and_reads_s3_and_keeps_a_checkpoint_there \
		tests/spark/test_connectors.py::test_every_jar_that_was_fetched_is_one_that_was_tested \
		"tests/spark/test_object_stores.py::test_a_large_epoch_and_a_chunk_are_staged_and_land_whole[s3]" \
		"tests/spark/test_table_epochs.py::test_an_object_store_gets_the_table_that_a_disk_does[flat-s3]"

faults: nightly ## The long proofs: seeded faults, kills, takeovers, simulated lives
	@$(BIN)/pytest --hypothesis-profile=long $(RULES)
	@$(BIN)/python -m tests.simulation.test_epochs 0 5000
	@$(BIN)/python -m tests.simulation.test_epochs 0 5000 MUTABLE_KEY_RANGE
	@$(BIN)/python -m tests.simulation.test_epochs 0 5000 IMMUTABLE_KEY_RANGE continuous
	@$(BIN)/python -m tests.simulation.test_epochs 0 5000 MUTABLE_KEY_RANGE continuous
	@$(BIN)/python -m tests.faults.seeded --seeds 200
	@SLACKWATER_EPOCH_READING=continuous $(BIN)/python -m tests.faults.seeded --seeds 200
	@$(BIN)/python -m tests.faults.mutable_seeded --seeds 200
	@$(BIN)/python -m tests.faults.mutable_seeded --seeds 5000 --calm
	@$(BIN)/python -m tests.proofs.mutable_service --runs 200 --kills 3 --at-once 10
	@$(BIN)/python -m tests.faults.messages --messages 50000
	@$(BIN)/python -m tests.faults.codes --minutes 120
	@$(BIN)/python -m tests.proofs.kills --kills 30 --format parquet
	@$(BIN)/python -m tests.proofs.kills --kills 30 --format delta
	@$(BIN)/python -m tests.proofs.kills --kills 10 --dialect POSTGRESQL
	@$(BIN)/python -m tests.proofs.takeover
	@$(BIN)/python -m tests.proofs.restores --moments 10
	@$(BIN)/python -m tests.proofs.restores --moments 3 --format delta --store sqlite
	@for store in s3 gs; do for format in parquet json delta iceberg; do \
		$(BIN)/python -m tests.proofs.object_kills --format $$format --store $$store || exit 1; done; done
	@$(BIN)/python -m tests.proofs.object_kills --format mirror --store gs
	@$(BIN)/python -m tests.proofs.object_kills --format iceberg_mirror --store s3
	@for format in bigquery bigquery_changelogs bigquery_mirror bigquery_upserts \
		postgresql_changelogs postgresql_mirror; do \
		for dialect in GOOGLE_STANDARD_SQL POSTGRESQL; do \
		$(BIN)/python -m tests.proofs.object_kills --format $$format --dialect $$dialect || exit 1; done; done
	@for format in parquet json delta; do \
		$(BIN)/python -m tests.proofs.object_kills --rounds 2 --format $$format --store az || exit 1; done
	@$(BIN)/python -m tests.proofs.object_kills --rounds 2 --format mirror --store az
	@for format in json mirror; do \
		$(BIN)/python -m tests.proofs.object_kills --rounds 2 --format $$format --store gs --dialect POSTGRESQL \
		|| exit 1; done
	@$(BIN)/python -m tests.proofs.object_requests
	@$(BIN)/python -m tests.proofs.kafka_kills --kills 30 --freezes 3
	@for format in json avro; do for envelope in flat record wrapped row key_only enriched datastream debezium; do \
		$(BIN)/python -m tests.proofs.kafka_kills --kills 3 --freezes 1 --envelope $$envelope --format $$format \
		|| exit 1; done; done
	@$(BIN)/python -m tests.proofs.kafka_kills --kills 3 --freezes 1 --envelope debezium --format protobuf
	@$(BIN)/python -m tests.proofs.kafka_foreign --seconds 3600
	@$(BIN)/python -m tests.proofs.bigtable_lives --seeds 2000
	@$(BIN)/python -m tests.proofs.bigtable_java_reader
	@for format in parquet delta iceberg; do \
		$(BIN)/python -m tests.proofs.bigtable_kills --format $$format || exit 1; done
	@$(BIN)/python -m tests.proofs.pubsub_kills --kills 20
	@$(BIN)/python -m tests.proofs.mirrors --changes 2000 --looks 10
	@for place in catalog postgresql; do \
		$(BIN)/python -m tests.proofs.mirrors --in $$place || exit 1; done
	@$(BIN)/python -m tests.proofs.month
	@$(BIN)/python -m tests.proofs.rescans --rows 6000 --kills 3
	@$(BIN)/python -m tests.proofs.sinks --only passed folders delta_folders iceberg_folders
	@$(BIN)/python -m tests.proofs.sinks --only changelogs iceberg_changelogs
	@for dialect in GOOGLE_STANDARD_SQL POSTGRESQL; do for format in parquet json orc delta iceberg; do \
		$(BIN)/python -m tests.proofs.sinks --format $$format --dialect $$dialect || exit 1; done; done
	@$(BIN)/python -m tests.proofs.former_owner --every 5
	@$(BIN)/python -m tests.proofs.log_hour
	@$(BIN)/python -m tests.proofs.http_attack
	@$(BIN)/python -m tests.proofs.chart_on_control_plane
	@$(BIN)/python -m tests.proofs.executors_on_pods
	@$(BIN)/python -m tests.proofs.executors_on_pods --control-plane
	@$(BIN)/python -m tests.proofs.memory_limits
	@$(BIN)/python -m tests.proofs.full_disks
	@$(BIN)/python -m tests.proofs.image_build --arm64
	@$(BIN)/python -m tests.proofs.image_build

clean: ## Remove build output, but not what is installed
	rm -rf out build spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis
