//! Topic names: what a PUBLISH or a Will may carry ([MQTT-4.7.3-1], [MQTT-3.3.2-2]).

use thiserror::Error;

/// Why a topic name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TopicError {
    #[error("topic name is empty")]
    Empty,
    #[error("topic name contains a wildcard")]
    Wildcard,
    #[error("topic name contains U+0000")]
    Nul,
    #[error("topic name has more than 256 levels")]
    TooDeep,
}

/// Checks a topic name as a client may publish to.
///
/// # Errors
/// The rule that it breaks.
pub fn check_topic_name(_name: &str) -> Result<(), TopicError> {
    unimplemented!()
}
