//! Topic filters, `$share` included, that cannot be invalid once they exist.

use std::sync::Arc;

use thiserror::Error;

/// A valid topic filter ([MQTT-4.7.1-1] to -3, [MQTT-4.8.2-1], -2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFilter {
    /// The filter as the client wrote it, `$share/{group}/` included.
    pub full: Arc<str>,
    /// Length of the `$share/{group}/` prefix, 0 when not shared.
    pub share_prefix_len: u16,
}

/// Why a topic filter is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FilterError {
    #[error("topic filter is empty")]
    Empty,
    #[error("topic filter contains U+0000")]
    Nul,
    #[error("'#' must be the last level and stand alone in it")]
    MultiLevel,
    #[error("'+' must stand alone in its level")]
    SingleLevel,
    #[error("topic filter has more than 256 levels")]
    TooDeep,
    #[error("share name is empty or contains '/', '+' or '#'")]
    ShareName,
    #[error("a shared subscription needs a filter behind its share name")]
    ShareFilter,
}

impl TopicFilter {
    /// Parses a filter as it stands in SUBSCRIBE or UNSUBSCRIBE.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn parse(_filter: &str) -> Result<Self, FilterError> {
        unimplemented!()
    }

    /// The part that is matched against topics.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.full[usize::from(self.share_prefix_len)..]
    }

    /// Share name, when this is a shared subscription.
    #[must_use]
    pub fn share(&self) -> Option<&str> {
        unimplemented!()
    }
}
