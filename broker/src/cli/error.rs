//! What a command failed with, and the exit code that scripts see.

use std::fmt;

use serde_json::Value;

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CliError {
    code: u8,
    message: String,
}

impl CliError {
    const FAILED: u8 = 1;
    pub(super) const USAGE: u8 = 2;
    const FENCED: u8 = 3;
    const UNPROVED: u8 = 4;
    const UNREACHABLE: u8 = 5;

    pub(super) fn failed(what: &dyn fmt::Display) -> Self {
        Self { code: Self::FAILED, message: what.to_string() }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: Self::USAGE, message: message.into() }
    }

    pub(super) fn unreachable(message: impl Into<String>) -> Self {
        Self { code: Self::UNREACHABLE, message: message.into() }
    }

    /// From an answer that is no success.
    pub(super) fn from_answer(status: u16, body: &[u8]) -> Self {
        let problem: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |name: &str| problem.get(name).and_then(Value::as_str);
        let (Some(code), Some(detail)) = (text("code"), text("detail")) else {
            return Self {
                code: Self::FAILED,
                message: format!("the admin API answered with status {status}"),
            };
        };
        let mut message = format!("{code}: {detail}");
        if let Some(current) = problem.get("current").filter(|current| !current.is_null()) {
            message.push_str(&format!("\ncurrent owner: {}", super::session::tuple(current)));
        }
        let exit = match code {
            "fenced" => Self::FENCED,
            "unproved" | "alive" => Self::UNPROVED,
            _ => Self::FAILED,
        };
        Self { code: exit, message }
    }

    /// Some sessions are not ended; `unproved`: for want of a proof.
    pub(super) fn not_all(message: impl Into<String>, unproved: bool) -> Self {
        Self { code: if unproved { Self::UNPROVED } else { Self::FAILED }, message: message.into() }
    }

    pub(super) fn is_unreachable(&self) -> bool {
        self.code == Self::UNREACHABLE
    }

    /// The same, with what was done before it in front.
    pub(super) fn after(self, done: &str) -> Self {
        Self { message: format!("{done}{}", self.message), ..self }
    }

    pub(super) fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
