# make demo    armtrace on a real MySQL under load, from a fresh clone
# make check   what to run while changing code: no root, no server
# make test    everything that must hold
# make help    all targets

ARMTRACE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/armtrace
export ARMTRACE_CACHE
# rustup's folder, for shells that have not been told of it.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

TARGET := $(or $(CARGO_TARGET_DIR),target)
# What `make truth` measures: those whose name begins so, separated by commas.
export ARMTRACE_TRUTH_SERVERS := $(ARGS)
export ARMTRACE_TRUTH_LOADS := $(LOADS)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo env ARMTRACE_CACHE=$(ARMTRACE_CACHE) \
	ARMTRACE_TRUTH_SERVERS=$(ARMTRACE_TRUTH_SERVERS) ARMTRACE_TRUTH_LOADS=$(ARMTRACE_TRUTH_LOADS) \
	$(if $(ARMTRACE_ALL_SERVERS),ARMTRACE_ALL_SERVERS=1))
# Built as the caller, run as root: nothing in the target folder gets another owner.
comma := ,
empty :=
RUNNER := $(if $(SUDO),--config 'target."cfg(unix)".runner = ["$(subst $(empty) ,"$(comma)",$(SUDO))"]')
BPF := $(filter-out %/vmlinux.h,$(shell find bpf benches -name '*.[ch]' 2>/dev/null))
SCRIPTS := $(addprefix tests/lab/,lib.sh setup suite fetch serve load demo demo-recording) scripts/sweep .ci/run dashboards/provisioning/pmm/add
# clang-format differs between versions, so CI has one: 16.
export CLANG_FORMAT ?= $(notdir $(or $(shell command -v clang-format-16),clang-format))
VM_SCRIPTS := $(addprefix tests/vm/,common data image system kernel guest check live matrix server-binary packages packaged text smoke) scripts/debs packaging/dist packaging/sbom packaging/packages fuzz/run fuzz/seed

.PHONY: help demo build setup check deny fmt fmt-check fmt-check-rust fmt-check-bpf lint clippy shellcheck
.PHONY: unit unit-tests programs prometheus binaries live live-advice chaos schemas truth truth-page guest test test-all bench bench-counting clean

help: ## this list
	@sed -n -e 's/^##@ \(.*\)/\n\1/p' -e 's/^\([a-z0-9-]*\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 18

##@ Try it

demo: ## armtrace on a real server under load, from a fresh clone, in minutes (SERVER=mysql-9.7, mariadb-11.4, ...)
	@tests/lab/demo $(SERVER)

build: ## target/release/armtrace
	@tests/lab/setup build
	cargo build --locked --release

##@ While changing code

check: fmt-check lint unit ## formatting, lint and unit tests: no root, no server, two minutes once built

fmt: ## format everything
	cargo fmt --all
	$(if $(BPF),$(CLANG_FORMAT) -i $(BPF))

fmt-check: fmt-check-rust fmt-check-bpf

fmt-check-rust:
	cargo fmt --all --check

fmt-check-bpf:
	$(if $(BPF),$(CLANG_FORMAT) --dry-run -Werror $(BPF) || { $(CLANG_FORMAT) --version; echo "CI has version 16"; exit 1; })

lint: clippy shellcheck ## clippy and shellcheck, warnings are errors

clippy:
	cargo clippy --locked $(PROFILE) --workspace --all-targets -- -D warnings
	cargo clippy --locked $(PROFILE) --test live --test binaries --test programs --test prometheus -- -D warnings

deny: ## licences and sources of all dependencies with cargo-deny, and known vulnerabilities where their database can be reached
	cargo deny --locked --offline check --hide-inclusion-graph licenses bans sources
	@if timeout 60 cargo deny fetch db >/dev/null 2>&1; then cargo deny --locked check advisories; \
	else echo "advisories: not checked, their database cannot be reached"; fi

shellcheck:
	shellcheck -x -P SCRIPTDIR $(SCRIPTS)
	shellcheck -x -P SCRIPTDIR -S error $(VM_SCRIPTS)

unit: unit-tests programs prometheus ## tests that need neither root nor a server

unit-tests:
	cargo test --locked $(PROFILE)

programs prometheus:
	cargo test --locked $(PROFILE) --test $@

schemas: ## docs/reference/schema/ anew, from the types that are printed as JSON
	ARMTRACE_WRITE_SCHEMAS=1 cargo test --locked --lib schema::

clean: ## delete what was built; servers stay in the cache
	cargo clean

##@ Tests on real servers, as root

setup: ## install what is missing for all tests, on Debian or Ubuntu (FOR=check: for make check)
	@tests/lab/setup $(FOR)

live: setup ## tests on real servers under load, as root (ARGS=name picks some)
	cargo test --locked --release --test live $(RUNNER) -- --test-threads=1 --skip guest:: $(ARGS)

live-advice: setup ## makes causes of waits on real servers, and follows what the report says to do, as root: two minutes
	cargo test --locked --release --test live $(RUNNER) -- --test-threads=1 --nocapture --include-ignored advice::

chaos: setup ## kills at random moments, attachments, churn, and slow clients, as root: an hour (ROUNDS=300 CYCLES=1000 TABLES=20000)
	ARMTRACE_CHAOS=$(or $(ROUNDS),300) ARMTRACE_CYCLES=$(or $(CYCLES),1000) ARMTRACE_CHURN=$(or $(TABLES),20000) ARMTRACE_SLOW_CLIENTS=60 \
		cargo test --locked --release --test live $(RUNNER) -- --test-threads=1 --nocapture --include-ignored chaos:: churn:: slow_clients

truth: setup ## docs/explanation/truth.md anew: servers against performance_schema, as root: hours (ARGS=mysql_8_0 picks servers; LOADS=tpcc, prints only)
	cargo test --locked --release --test live $(RUNNER) -- --test-threads=1 --nocapture --ignored --exact truth_suite::truth_suite

truth-page: setup ## docs/explanation/truth.md from docs/explanation/truth.tsv, without measuring
	cargo test --locked --release --test live -- --ignored --exact truth_suite::truth_page

# On arm64 from any machine: emulated, so minutes each.
guest: setup dist-aarch64 ## the agent on an emulated arm64 machine, alone and beside one here, as root
	cargo test --locked --release --test live $(RUNNER) -- --test-threads=1 --nocapture $(or $(ARGS),guest::)

binaries: setup ## tests on the binaries of real servers, as root (ARGS=name picks some)
	cargo test --locked --release --test binaries $(RUNNER) -- $(ARGS)

# One after the other, cheapest first. All in one profile, so that nothing is built twice. What the guest runs is built
# beside the first parts. Nothing is built beside the live tests, not even at idle priority: five of them then failed, by
# what the agent took to attach and to detach.
test: setup ## all of it that this machine allows: formatting, lint, unit, binaries, live, guest
	@tests/lab/suite fmt-check lint unit binaries live guest

SLOW := scenario::every_load_runs_on_every_server truth::mysql_8_0_33_waits_agree_with_performance_schema \
	budget::mariadb_stays_within_the_budget chaos::attaching_again_and_again_takes_no_more_on_mariadb \
	chaos::kills_of_the_agent_leave_nothing_on_mariadb \
	churn::figures_stay_right_while_tables_and_connections_of_mariadb_come_and_go \
	cost::tracing_mariadb_costs_little cpu::mariadb_cpu_classes_agree_with_perf \
	cpu::sampled_time_is_the_cpu_time_of_mariadb handoffs::mariadb_handoffs_are_where_threads_run \
	export::statements_are_counted_whenever_the_server_answers \
	hindsight::mariadb_has_a_past hindsight::the_past_costs_little \
	hindsight::a_long_statement_of_mariadb_leaves_a_dump cpu::checksum_calls_roughly_agree_with_bpftrace \
	advice::a_small_table_cache_is_told_and_a_larger_one_helps \
	advice::a_small_buffer_pool_is_told_and_a_larger_one_helps \
	advice::flushes_at_every_commit_are_told_and_fewer_help \
	files::waits_for_files_of_mariadb_agree_with_performance_schema \
	files::waits_for_files_of_mysql_5_7_agree_with_performance_schema threads::an_agent_that_gets_few_threads_never_panics \
	life::twenty_attachments_lose_no_query \
	truth::mysql_8_0_12_waits_agree_with_performance_schema holders::a_limit_of_cpu_time_is_seen_on_mariadb \
	library::mariadb_10_2_table_cache_waits_agree_with_perf_schema \
	call_stacks::call_stacks_are_right_with_the_default_budget \
	locks::locks_of_older_servers_have_objects locks::mysql_8_0_33_locks_have_objects \
	no_probes::recordings_without_probes_are_true_on_mysql \
	no_probes::recordings_without_probes_are_true_on_mariadb no_probes::stacks_show_what_mariadb_waits_for \
	programs::programs_on_mariadb_are_quick \
	statements::statements_agree_with_performance_schema_with_a_larger_budget \
	statements::cpu_time_of_statements_of_older_servers_is_plausible \
	statements::cpu_time_of_statements_of_mariadb_is_plausible \
	statements::users_of_mariadb_share_the_cpu_time statements::users_of_mysql_5_7_share_the_cpu_time \
	statements::cpu_time_of_statements_of_mysql_8_0_33_agrees_with_performance_schema \
	statements::statements_of_mysql_agree_with_performance_schema statements::mariadb_says_which_statements_wait \
	statements::mariadb_without_performance_schema_says_which_statements_wait \
	library::mariadb_table_cache_waits_agree_with_perf_schema \
	library::mariadb_idle_waits_agree_with_perf_schema \
	call_stacks::call_stacks_of_mariadb_pass_through_their_call_sites \
	truth::mysql_redo_waits_agree_with_performance_schema \
	truth::mysql_8_0_31_waits_agree_with_performance_schema \
	discover::ten_servers_take_little_memory \
	pages::pages_of_a_copy_that_takes_a_tables_place_get_its_name \
	budget::mysql_stays_within_the_budget \
	cpu::mariadb_spins_for_its_most_contended_latch \
	library::mariadb_locks_need_no_perf_schema \
	events::mariadb_10_5_without_symbols_shows_its_sleeps \
	locks::a_storm_of_waits_for_one_row_keeps_to_the_budget \
	lab::servers_serve_under_load \
	cpu::cpus_that_come_online_are_sampled \
	discover::statements_of_all_servers_are_counted \
	watch::a_hot_latch_of_mariadb_is_watched

test-all: ## all of it on every server, those too that take long to fetch, and every load on each
	$(MAKE) test ARMTRACE_ALL_SERVERS=1
	$(MAKE) live ARMTRACE_ALL_SERVERS=1 ARGS='--nocapture --ignored --exact $(SLOW)'
	packaging/dist --tests aarch64
	tests/vm/live arm64 6.12 --server mysql-8.0 --ignored truth::mysql_8_0_33 locks::mysql_8_0_33 \
		statements::cpu_time_of_statements_of_mysql_8_0_33

bench: setup ## what attaching costs, beside other tools, as root: hours (ARGS=quick: half an hour; ARGS=--write: docs/explanation/benchmarks.md)
	cargo bench --locked --bench overhead $(RUNNER) -- $(ARGS)

bench-counting: setup ## what it costs to count a wait where all CPUs do it at once, as root: seconds
	cargo bench --locked --bench counting $(RUNNER)

# From any recordings, of which the targets are copies.
FILES ?= tests/fixtures/mysql-8.0.31.rec
bench-fleet: setup ## what 1,000 servers take of the databases behind them: minutes (FILES=recordings, ARGS="--targets 100 --minutes 2")
	cargo bench --locked --bench fleet -- $(FILES) $(ARGS)

##@ Releases, other kernels, the other architecture

include packaging/dist.mk
include tests/vm/vm.mk
