# The two commands of the README are `make run` and `make test`; the others are for those who change the broker.

CARGO ?= cargo
VENV  := target/venv
# Seconds that `make sim` and `make chaos` take.
T     ?= 600

.PHONY: run test lint bench deb queue-bench queue-demo fuzz soak sim mutants model chaos setup help

help:            ## This list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

run:             ## Build and start one node: MQTT on 127.0.0.1:1883, admin on 127.0.0.1:9883, data in ./exactmq-data
	$(CARGO) run --release --locked -p broker --bin exactmq -- serve

test: setup      ## Install what the tests need, build, run every suite
	tests/run.sh

setup:
	tests/setup.sh $(VENV)

lint:            ## Formatting and clippy, as CI checks them
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

deb:             ## A Debian package of the release build: target/debian/exactmq_VERSION_ARCH.deb
	$(CARGO) build --release --locked -p broker --bin exactmq
	deploy/debian/build.sh

bench:           ## The table of bench/README.md: ExactMQ beside mosquitto, in one run
	$(CARGO) build --release --locked -p broker -p bench
	$(CARGO) run --release --locked -p bench -- compare

queue-bench:     ## Channels of the queue layer by shape, for S=10 seconds each (bench/README.md, "Channels")
	$(CARGO) run --release --locked -p bench -- queues --seconds $(or $(S),10)

queue-demo:      ## 80 producers, 8 consumers, 256 B, capacity 40, for S=90 seconds; W=1 lets a consumer work 1 ms on a record
	$(CARGO) build --release --locked -p storage --example queue_demo
	dir=$$(mktemp -d) && target/release/examples/queue_demo --role both --data-dir "$$dir" --type mpmc --producers 80 --consumers 8 \
		--size 256 --capacity 40 --ttl 90 --seconds $(or $(S),90) --work-ms $(or $(W),0); status=$$?; rm -r "$$dir"; exit $$status

fuzz:            ## Five minutes of cargo-fuzz each on packets and on the peer link (needs a nightly toolchain and cargo-fuzz)
	cd tests/fuzz && $(CARGO) +nightly fuzz run decode -- -max_total_time=300
	cd tests/fuzz && $(CARGO) +nightly fuzz run peer_link -- -max_total_time=300

soak:            ## kill -9 under load, 200 rounds instead of the 20 of `make test`
	EXACTMQ_ROUNDS=200 $(CARGO) nextest run --release --locked -p tests --run-ignored all -E 'binary(crash)'

# The same packages, profile and features as in `make test`: nothing is compiled twice.
sim:             ## The seeded simulation over fresh seeds for T=600 seconds; EXACTMQ_SIM_SEED=n runs one seed
	$(CARGO) build --locked --workspace --features broker/store-sled,storage/etcd --profile ci --bin sim
	target/ci/sim --seconds $(T)

mutants:         ## Every deliberate breakage of the simulation with the seeds 1 to 64: which of them catch it (`make test` runs one seed of each)
	$(CARGO) build --locked --workspace --features broker/store-sled,storage/etcd --profile ci --bin sim
	target/ci/sim mutants 64

model:           ## The model of the ownership protocol with more faults at once than in `make test` (millions of states, a minute or two)
	EXACTMQ_MODEL=large $(CARGO) nextest run --locked --workspace --features broker/store-sled,storage/etcd --cargo-profile ci --no-capture -E 'binary(model)'

chaos: setup     ## Faults on three nodes in network namespaces under a checked load, for T=600 seconds; S=seed repeats (needs root)
	$(CARGO) build --release --locked -p broker -p tests --bins
	EXACTMQ_CHAOS_SECONDS=$(or $(T),600) $(if $(S),EXACTMQ_SEED=$(S)) target/release/chaos
