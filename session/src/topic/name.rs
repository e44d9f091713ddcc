//! Topic names: what a PUBLISH or a Will may carry ([MQTT-4.7.3-1], [MQTT-3.3.2-2]).

use thiserror::Error;

use crate::limits;

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
    #[error("topic name has more than 65,535 bytes")]
    TooLong,
}

/// Checks a topic name as a client may publish to: 1 to 65,535 bytes ([MQTT-4.7.3-1], [MQTT-4.7.3-3]) without
/// wildcards ([MQTT-3.3.2-2]) and U+0000 ([MQTT-4.7.3-2]), at most [`limits::TOPIC_LEVELS_MAX`] levels.
///
/// # Errors
/// The rule that it breaks.
pub fn check_topic_name(name: &str) -> Result<(), TopicError> {
    if name.is_empty() {
        return Err(TopicError::Empty);
    }
    if name.len() > limits::TOPIC_BYTES_MAX {
        return Err(TopicError::TooLong);
    }
    let mut levels = 1_usize;
    for &byte in name.as_bytes() {
        match byte {
            b'/' => levels += 1,
            b'+' | b'#' => return Err(TopicError::Wildcard),
            0 => return Err(TopicError::Nul),
            _ => {}
        }
    }
    if levels > limits::TOPIC_LEVELS_MAX { Err(TopicError::TooDeep) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: Result<(), TopicError>) {
        assert_eq!(check_topic_name(name), expected, "{name:?}");
    }

    /// [MQTT-4.7.3-1], [MQTT-4.7.3-2], [MQTT-4.7.3-3], [MQTT-3.3.2-2]
    #[test]
    fn a_topic_name_has_a_character_and_no_wildcard() {
        check("a", Ok(()));
        check("/", Ok(()));
        check("a//b ü", Ok(()));
        check("$SYS/x", Ok(()));
        check("", Err(TopicError::Empty));
        check("a/+", Err(TopicError::Wildcard));
        check("a#", Err(TopicError::Wildcard));
        check("a\0", Err(TopicError::Nul));
        check(&"a".repeat(65_535), Ok(()));
        check(&"a".repeat(65_536), Err(TopicError::TooLong));
    }

    /// P9: the depth of a name is bounded.
    #[test]
    fn a_topic_name_has_at_most_256_levels() {
        check(&"/".repeat(255), Ok(()));
        check(&"/".repeat(256), Err(TopicError::TooDeep));
        check(&"/".repeat(65_535), Err(TopicError::TooDeep));
    }
}
