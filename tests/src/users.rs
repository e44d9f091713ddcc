//! Users of a password file, edited as operators do it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::node::{Node, binary};

/// Adds a user to a file that no node uses yet.
///
/// # Panics
/// When the command fails.
pub fn add_user(file: &Path, name: &str, password: &str) {
    add(file, &["add", name], password);
}

/// The same for a file of SCRAM verifiers.
///
/// # Panics
/// When the command fails.
pub fn add_scram_user(file: &Path, name: &str, password: &str) {
    add(file, &["add", name, "--scram"], password);
}

fn add(file: &Path, arguments: &[&str], password: &str) {
    let mut command = Command::new(binary());
    command.current_dir(file.parent().expect("a directory"));
    command.arg("user").args(arguments).arg("--file").arg(file);
    let output = with_input(&mut command, password);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a `user` command against a node, with the password on its standard input.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn user_at(node: &Node, arguments: &[&str], password: &str) -> Output {
    let mut command = Command::new(binary());
    command.arg("user").args(arguments).arg("--data-dir").arg(node.dir());
    with_input(&mut command, password)
}

fn with_input(command: &mut Command, input: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // A command that needs no password does not read it.
    let _ = writeln!(child.stdin.take().expect("piped"), "{input}");
    child.wait_with_output().expect("ended")
}

/// Reads the configuration and its files again; what changed is in force when this returns.
///
/// # Panics
/// When the node refuses.
pub fn reload(node: &Node) -> serde_json::Value {
    let (head, body) = node.admin_ask("POST", "/v1/reload", "").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    serde_json::from_str(&body).expect("JSON")
}
