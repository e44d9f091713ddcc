#!/usr/bin/env bash
# Runs every suite: lints, unit, property and golden tests, then the process suites against the binary of the same build.
set -euo pipefail
cd "$(dirname "$0")/.."
export EXACTMQ_PYTHON="$PWD/target/venv/bin/python"
export PATH="$PATH:/usr/sbin"
export CARGO_TERM_COLOR=never

cargo fmt --all --check
cargo build --locked --profile ci -p broker
cargo nextest run --locked --workspace --cargo-profile ci
cargo nextest run --locked --cargo-profile ci -p storage --features store-sled -E 'test(engine)'
