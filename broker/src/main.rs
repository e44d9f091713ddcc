//! The binary `exactmq`: arguments, configuration, then the node.

use std::process::ExitCode;

fn main() -> ExitCode {
    broker::cli::run(|config, source| broker::node::serve(config, &move || source.read()))
}
