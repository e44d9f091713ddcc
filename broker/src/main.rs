//! The binary `exactmq`: arguments, configuration, then the node.

use std::process::ExitCode;

/// Messages are allocated by one thread and freed by another: that costs a quarter less than with glibc's, and memory of a backlog goes back
/// to the system when it was drained (ADR 0011).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    broker::cli::run(|config, source| broker::node::serve(config, &move || source.read()))
}
