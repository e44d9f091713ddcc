#!/usr/bin/env bash
# Runs every suite: formatting, unit, property and golden tests, then the process suites against the binary of the same build.
# One build serves all: the same packages, profile and features throughout, so that nothing is compiled twice.
set -euo pipefail
cd "$(dirname "$0")/.."
export EXACTMQ_PYTHON="$PWD/target/venv/bin/python"
export PATH="$PATH:/usr/sbin"
export CARGO_TERM_COLOR=never

build=(--locked --workspace --features broker/store-sled,storage/etcd)
cargo fmt --all --check
cargo build "${build[@]}" --profile ci --bins
cargo nextest run "${build[@]}" --cargo-profile ci
