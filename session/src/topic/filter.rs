//! Topic filters, `$share` included, that cannot be invalid once they exist.

use std::sync::Arc;

use thiserror::Error;

use crate::limits;

/// Start of every shared subscription ([MQTT-4.8.2-1]).
const SHARE_PREFIX: &str = "$share/";

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
    #[error("topic filter has more than 65,535 bytes")]
    TooLong,
    #[error("share name is empty or contains '/', '+' or '#'")]
    ShareName,
    #[error("a shared subscription needs a filter behind its share name")]
    ShareFilter,
}

impl TopicFilter {
    /// Parses a filter as it stands in SUBSCRIBE or UNSUBSCRIBE.
    ///
    /// A filter is shared when it starts with `$share/`; plain `$share` is an ordinary filter of one level.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn parse(filter: &str) -> Result<Self, FilterError> {
        if filter.is_empty() {
            return Err(FilterError::Empty);
        }
        if filter.len() > limits::TOPIC_BYTES_MAX {
            return Err(FilterError::TooLong);
        }
        if filter.as_bytes().contains(&0) {
            return Err(FilterError::Nul);
        }
        let share_prefix_len = share_prefix_len(filter)?;
        check_pattern(&filter[share_prefix_len..])?;
        Ok(Self {
            full: Arc::from(filter),
            share_prefix_len: u16::try_from(share_prefix_len).expect("a filter has at most 65,535 bytes"),
        })
    }

    /// The part that is matched against topics.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.full[usize::from(self.share_prefix_len)..]
    }

    /// Share name, when this is a shared subscription.
    #[must_use]
    pub fn share(&self) -> Option<&str> {
        let prefix_len = usize::from(self.share_prefix_len);
        if prefix_len == 0 { None } else { Some(&self.full[SHARE_PREFIX.len()..prefix_len - 1]) }
    }
}

/// Bytes of `$share/{group}/`, 0 when the filter is not shared.
fn share_prefix_len(filter: &str) -> Result<usize, FilterError> {
    let Some(rest) = filter.strip_prefix(SHARE_PREFIX) else {
        return Ok(0);
    };
    let name = rest.split('/').next().unwrap_or_default();
    if name.is_empty() || name.contains(['+', '#']) {
        return Err(FilterError::ShareName);
    }
    if rest.len() <= name.len() + 1 {
        return Err(FilterError::ShareFilter);
    }
    Ok(SHARE_PREFIX.len() + name.len() + 1)
}

fn check_pattern(pattern: &str) -> Result<(), FilterError> {
    if pattern.bytes().filter(|&byte| byte == b'/').count() >= limits::TOPIC_LEVELS_MAX {
        return Err(FilterError::TooDeep);
    }
    let mut levels = pattern.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err(FilterError::MultiLevel);
        }
        if level.contains('+') && level != "+" {
            return Err(FilterError::SingleLevel);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(filter: &str, expected: FilterError) {
        assert_eq!(TopicFilter::parse(filter), Err(expected), "{filter:?}");
    }

    #[track_caller]
    fn accepted(filter: &str, share: Option<&str>, pattern: &str) {
        let parsed = TopicFilter::parse(filter).expect("a valid filter");
        assert_eq!((parsed.share(), parsed.pattern()), (share, pattern), "{filter:?}");
    }

    /// [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.3-1], [MQTT-4.7.3-2]
    #[test]
    fn wildcards_stand_alone_and_hash_stands_last() {
        for filter in
            ["#", "+", "/", "//", "+/+", "a/+/#", "sport/tennis/#", "$SYS/#", "a b/ü", "$share", "$shared/g"]
        {
            accepted(filter, None, filter);
        }
        refused("", FilterError::Empty);
        refused("a\0b", FilterError::Nul);
        refused("a#", FilterError::MultiLevel);
        refused("a/#/b", FilterError::MultiLevel);
        refused("##", FilterError::MultiLevel);
        refused("#/", FilterError::MultiLevel);
        refused("a+", FilterError::SingleLevel);
        refused("+a/b", FilterError::SingleLevel);
        refused("a/++", FilterError::SingleLevel);
    }

    /// [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    #[test]
    fn a_share_has_a_name_and_a_filter() {
        accepted("$share/g/a/+", Some("g"), "a/+");
        accepted("$share/g//", Some("g"), "/");
        accepted("$share/größe/#", Some("größe"), "#");
        refused("$share/", FilterError::ShareName);
        refused("$share//a", FilterError::ShareName);
        refused("$share/+/a", FilterError::ShareName);
        refused("$share/g#/a", FilterError::ShareName);
        refused("$share/g", FilterError::ShareFilter);
        refused("$share/g/", FilterError::ShareFilter);
        refused("$share/g/a#", FilterError::MultiLevel);
    }

    /// P9: filters of 65,535 `/` are refused, and nobody dies.
    #[test]
    fn a_filter_has_at_most_256_levels() {
        accepted(&"/".repeat(255), None, &"/".repeat(255));
        refused(&"/".repeat(256), FilterError::TooDeep);
        refused(&"/".repeat(65_535), FilterError::TooDeep);
        refused(&"+/".repeat(32_767), FilterError::TooDeep);
        refused(&"a".repeat(65_536), FilterError::TooLong);
    }
}
