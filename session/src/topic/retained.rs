//! Looking retained topics up by filter in a sorted map of names, skipping subtrees that cannot match.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether `filter` (no `$share/` prefix) matches `topic`, level by level; also the naive oracle of the tests.
#[must_use]
pub fn filter_matches(_filter: &str, _topic: &str) -> bool {
    unimplemented!()
}

/// Visits every entry of `names` that `filter` matches, in order; stops when `visit` returns false.
pub fn scan<V>(_names: &BTreeMap<Arc<str>, V>, _filter: &str, _visit: impl FnMut(&str, &V) -> bool) {
    unimplemented!()
}
