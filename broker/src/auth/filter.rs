//! Relations of topic filters that access rules need: matching a topic, covering a filter, overlapping one (MQTT §4.7).

/// Whether `filter` is well-formed: `#` only as the whole last level, `+` only as a whole level.
pub(super) fn is_valid(filter: &str) -> bool {
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let whole = level == "+" || level == "#" && levels.peek().is_none();
        if !whole && level.contains(['+', '#']) {
            return false;
        }
    }
    !filter.is_empty() && filter.len() <= 65_535 && !filter.contains('\0')
}

/// Whether the topic name `topic` matches; leading wildcards do not match `$`-topics ([MQTT-4.7.2-1]).
pub(super) fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') != filter.starts_with('$') {
        return false;
    }
    let mut names = topic.split('/');
    let mut levels = filter.split('/');
    loop {
        match (levels.next(), names.next()) {
            // `a/#` matches `a` too: the wildcard stands for its parent as well (§4.7.1.2).
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(_)) => (),
            (Some(level), Some(name)) if level == name => (),
            _ => return false,
        }
    }
}

/// Whether every topic that `inner` matches is matched by `outer`. May say no for pairs no rule needs, never a wrong yes.
pub(super) fn covers(outer: &str, inner: &str) -> bool {
    if outer.starts_with('$') != inner.starts_with('$') {
        return false;
    }
    let mut levels = outer.split('/');
    let mut inner = inner.split('/');
    loop {
        match (levels.next(), inner.next()) {
            (Some("#"), _) | (None, None) => return true,
            // `#` reaches deeper than `+`, and `a/#` also matches `a`.
            (Some("+"), Some(level)) if level != "#" => (),
            (Some(level), Some(other)) if level == other => (),
            _ => return false,
        }
    }
}

/// Whether some topic matches both.
pub(super) fn overlaps(a: &str, b: &str) -> bool {
    if a.starts_with('$') != b.starts_with('$') {
        return false;
    }
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => (),
            (Some(level), Some(other)) if level == other => (),
            _ => return false,
        }
    }
}
