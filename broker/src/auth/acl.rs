//! Access rules in the format of mosquitto's `acl_file`, with its order of decision:
//! rules of the user (deny first), then patterns (deny first), else denied.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{AuthFileError, read_text};
use super::filter::{covers, is_valid, matches, overlaps};
use crate::config::SubscribeRule;

/// What a rule says about its topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Deny,
    DenyRead,
    DenyWrite,
    Read,
    Write,
    ReadWrite,
}

impl Access {
    fn has(self, wanted: Self) -> bool {
        self == Self::ReadWrite || self == wanted
    }

    fn denies(self, wanted: Self) -> bool {
        match self {
            Self::Deny => true,
            Self::DenyRead => wanted == Self::Read,
            Self::DenyWrite => wanted == Self::Write,
            Self::Read | Self::Write | Self::ReadWrite => false,
        }
    }

    fn is_denial(self) -> bool {
        matches!(self, Self::Deny | Self::DenyRead | Self::DenyWrite)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) access: Access,
    pub(super) filter: Box<str>,
}

/// Rules that a client brought with it, from a token or a hook: they stand in the section of its user.
pub(super) type Brought<'a> = &'a [Rule];

/// How a SUBSCRIBE is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscribing {
    /// 0x87, and nothing is subscribed.
    Denied,
    /// Granted, but not every topic it matches may be read: ask [`super::Grants::may_read`] at delivery.
    Filtered,
    /// Granted; under these rules every delivery is allowed.
    Granted,
}

/// All rules of a file.
#[derive(Debug)]
pub struct Acl {
    anonymous: Arc<Rules>,
    users: HashMap<Box<str>, Arc<Rules>>,
    /// For users without a section.
    others: Arc<Rules>,
}

/// The rules that apply to one user.
#[derive(Debug, Default)]
pub(super) struct Rules {
    own: Box<[Rule]>,
    patterns: Arc<[Rule]>,
}

impl Acl {
    /// Reads the whole file.
    ///
    /// # Errors
    /// When it cannot be read, or the first line that is no rule.
    pub fn read(path: &Path) -> Result<Self, AuthFileError> {
        Self::parse(&read_text(path)?).map_err(|(line, what)| AuthFileError::Line {
            path: path.to_owned(),
            line,
            what,
        })
    }

    /// Err: (line, what is wrong).
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut of_user: HashMap<Option<Box<str>>, Vec<Rule>> = HashMap::new();
        let mut patterns = Vec::new();
        let mut user: Option<Box<str>> = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (keyword, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            let rest = rest.trim_start();
            let rule = || Rule::parse(rest, keyword == "pattern").map_err(|what| (index + 1, what));
            match keyword {
                "user" if rest.is_empty() => return Err((index + 1, "names no user".to_owned())),
                "user" => {
                    user = Some(rest.into());
                    // A section without rules denies everything, as a user without a section is denied.
                    of_user.entry(user.clone()).or_default();
                }
                "topic" => of_user.entry(user.clone()).or_default().push(rule()?),
                "pattern" => patterns.push(rule()?),
                _ => {
                    let what =
                        format!("begins with {keyword:?}; allowed: user, topic, pattern, or # for a comment");
                    return Err((index + 1, what));
                }
            }
        }
        patterns.sort_by_key(|rule| !rule.access.is_denial());
        let patterns: Arc<[Rule]> = patterns.into();
        let rules = |mut own: Vec<Rule>| {
            own.sort_by_key(|rule| !rule.access.is_denial());
            Arc::new(Rules { own: own.into(), patterns: Arc::clone(&patterns) })
        };
        let anonymous = rules(of_user.remove(&None).unwrap_or_default());
        let users = of_user.into_iter().filter_map(|(user, own)| Some((user?, rules(own)))).collect();
        Ok(Self { anonymous, users, others: rules(Vec::new()) })
    }

    pub(super) fn rules(&self, user: Option<&str>) -> Arc<Rules> {
        let rules = match user {
            None => &self.anonymous,
            Some(user) => self.users.get(user).unwrap_or(&self.others),
        };
        Arc::clone(rules)
    }
}

impl Rule {
    /// `[read|write|readwrite|deny] FILTER`; a filter with spaces needs the access word in front.
    fn parse(text: &str, pattern: bool) -> Result<Self, String> {
        let (access, filter) = match text.split_once([' ', '\t']) {
            None => (Access::ReadWrite, text),
            Some((word, filter)) => {
                let access = match word {
                    "read" => Access::Read,
                    "write" => Access::Write,
                    "readwrite" => Access::ReadWrite,
                    "deny" => Access::Deny,
                    _ => return Err(format!("access {word:?} is not read, write, readwrite or deny")),
                };
                (access, filter.trim_start())
            }
        };
        if filter.is_empty() {
            return Err("has no topic".to_owned());
        }
        let example =
            if pattern { substitute(filter, "x", "x") } else { SmallVec::from_slice(filter.as_bytes()) };
        if !std::str::from_utf8(&example).is_ok_and(is_valid) {
            return Err(format!(
                "topic filter {filter:?} is malformed: + and # must stand for a whole level, # for the last"
            ));
        }
        Ok(Self { access, filter: filter.into() })
    }
}

impl Rules {
    /// `None`: no rule speaks of it.
    pub(super) fn decide(
        &self,
        wanted: Access,
        brought: Brought<'_>,
        who: Who<'_>,
        topic: &str,
    ) -> Option<bool> {
        let section = || self.own.iter().chain(brought).filter(|rule| matches(&rule.filter, topic));
        if section().any(|rule| rule.access.denies(wanted)) {
            return Some(false);
        }
        if section().any(|rule| rule.access.has(wanted)) {
            return Some(true);
        }
        let decisive = |rule: &&Rule| rule.access.denies(wanted) || rule.access.has(wanted);
        for rule in self.patterns.iter().filter(decisive) {
            match with_pattern(rule, who, |filter| matches(filter, topic)) {
                Pattern::Unsafe => return Some(false),
                Pattern::Applied(true) => return Some(!rule.access.is_denial()),
                Pattern::Applied(false) | Pattern::NotApplicable => (),
            }
        }
        None
    }

    pub(super) fn subscribing(
        &self,
        brought: Brought<'_>,
        who: Who<'_>,
        filter: &str,
        subscribe: SubscribeRule,
    ) -> Subscribing {
        let filter = without_share(filter);
        let section = self.own.iter().chain(brought);
        let mut relations: SmallVec<[(Access, Relation); 16]> =
            section.map(|rule| (rule.access, Relation::of(&rule.filter, filter))).collect();
        let own = relations.len();
        for rule in self.patterns.iter() {
            match with_pattern(rule, who, |pattern| Relation::of(pattern, filter)) {
                Pattern::Applied(relation) => relations.push((rule.access, relation)),
                Pattern::NotApplicable => (),
                Pattern::Unsafe => break,
            }
        }
        let readable = |(access, relation): &&(Access, Relation)| {
            access.has(Access::Read) && *relation != Relation::Disjoint
        };
        // Denials of the user stand before all grants; those of patterns only before grants of patterns.
        let all_denied = |rules: &[(Access, Relation)]| {
            rules
                .iter()
                .any(|(access, relation)| access.denies(Access::Read) && *relation == Relation::Covers)
        };
        let own_granted = relations[..own].iter().any(|rule| readable(&rule));
        if all_denied(&relations[..own]) || !own_granted && all_denied(&relations[own..]) {
            return Subscribing::Denied;
        }
        let some_denied = relations
            .iter()
            .any(|(access, relation)| access.denies(Access::Read) && *relation != Relation::Disjoint);
        let covered = relations.iter().filter(readable).any(|(_, relation)| *relation == Relation::Covers);
        let overlapped = relations.iter().any(|rule| readable(&rule));
        match (covered, overlapped, subscribe) {
            (true, _, _) if !some_denied => Subscribing::Granted,
            (true, _, _) | (false, true, SubscribeRule::Overlap) => Subscribing::Filtered,
            _ => Subscribing::Denied,
        }
    }
}

/// How the topics of a rule relate to those of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Covers,
    Overlaps,
    Disjoint,
}

impl Relation {
    fn of(rule: &str, filter: &str) -> Self {
        if covers(rule, filter) {
            Self::Covers
        } else if overlaps(rule, filter) {
            Self::Overlaps
        } else {
            Self::Disjoint
        }
    }
}

enum Pattern<T> {
    Applied(T),
    /// `%u` for a client without a user.
    NotApplicable,
    /// The name would act as a wildcard (CVE-2017-7650): no pattern applies to this client.
    Unsafe,
}

/// Whom a rule is asked about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) client_id: &'a str,
}

impl Who<'_> {
    /// A name of it would act as a wildcard in a pattern (CVE-2017-7650).
    pub(super) fn is_wildcard(&self) -> bool {
        let is_wild = |name: &str| name.contains(['+', '#']);
        is_wild(self.client_id) || self.user.is_some_and(is_wild)
    }
}

fn with_pattern<T>(rule: &Rule, who: Who<'_>, use_it: impl FnOnce(&str) -> T) -> Pattern<T> {
    if who.is_wildcard() {
        return Pattern::Unsafe;
    }
    if who.user.is_none() && rule.filter.contains("%u") {
        return Pattern::NotApplicable;
    }
    let filter = substitute(&rule.filter, who.client_id, who.user.unwrap_or(""));
    // Whole strings were put in the place of ASCII: it is UTF-8; and if it were not, no rule would apply.
    std::str::from_utf8(&filter).map_or(Pattern::NotApplicable, |filter| Pattern::Applied(use_it(filter)))
}

/// `%c` and `%u` replaced wherever they stand; without allocation for topics of usual length.
pub(super) fn substitute(pattern: &str, client_id: &str, user: &str) -> SmallVec<[u8; 256]> {
    let mut filter = SmallVec::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        filter.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        let (name, len) = match rest.as_bytes().get(1) {
            Some(b'c') => (client_id, 2),
            Some(b'u') => (user, 2),
            _ => ("%", 1),
        };
        filter.extend_from_slice(name.as_bytes());
        rest = &rest[len..];
    }
    filter.extend_from_slice(rest.as_bytes());
    filter
}

/// A shared subscription reads what its filter matches (MQTT 5 §4.8.2).
fn without_share(filter: &str) -> &str {
    filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')).map_or(filter, |(_, filter)| filter)
}
