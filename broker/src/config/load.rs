//! From files, environment and flags to one checked [`Config`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Origin, Problem, nearest};
use super::schema::{BRIDGE_KEYS, KEYS, Key, LISTENER_KEYS, SECTIONS, TABLES};
use super::value::Raw;
use super::{Config, Listener, check};

/// Bytes of the largest configuration file read.
const FILE_BYTES_MAX: u64 = 1 << 20;
const PREFIX: &str = "EXACTMQ_";
/// The listener that exists when no other is configured.
const DEFAULT_LISTENER: &str = "mqtt";
/// Bytes of the name of a listener or a bridge.
const NAME_BYTES_MAX: usize = 64;

/// Where values may come from, weakest first.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub file: Option<PathBuf>,
    /// All variables of the environment; only `EXACTMQ_…` are looked at.
    pub environment: Vec<(String, String)>,
    /// (flag as given, key, value), later ones win.
    pub flags: Vec<(String, String, String)>,
}

/// A configuration and where its values came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    /// Keys that are not at their default.
    pub origins: BTreeMap<String, Origin>,
    /// Odd, but not wrong.
    pub warnings: Vec<Problem>,
}

struct Assignment {
    key: String,
    raw: Raw,
    origin: Origin,
}

impl Config {
    /// Reads, merges and checks.
    ///
    /// # Errors
    /// Every fault found, each with its place; nothing is opened or bound before this succeeds.
    pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
        let mut problems = Vec::new();
        let mut warnings = Vec::new();
        let mut assignments = Vec::new();
        if let Some(path) = &sources.file {
            read_file(path, &mut assignments, &mut problems);
        }
        read_environment(&sources.environment, &mut assignments, &mut warnings);
        for (flag, key, value) in &sources.flags {
            let origin = Origin::Flag(flag.clone());
            assignments.push(Assignment { key: key.clone(), raw: Raw::Loose(value.clone()), origin });
        }

        let mut config = Self::default();
        let mut origins = BTreeMap::new();
        for Assignment { key, raw, origin } in assignments {
            match assign(&mut config, &key, &raw) {
                Ok(()) => {
                    origins.insert(key, origin);
                }
                Err(message) => problems.push(Problem { origin, message }),
            }
        }
        if config.listeners.is_empty() {
            config.listeners.insert(DEFAULT_LISTENER.into(), Listener::default());
        }
        for name in config.listeners.keys().filter(|name| &***name != DEFAULT_LISTENER) {
            if !origins.contains_key(&format!("listener.{name}.address")) {
                let message = format!("listener.{name}.address is missing: say where to listen");
                problems.push(Problem { origin: origin_of_section(&origins, name), message });
            }
        }
        check::check(&config, &origins, &mut problems, &mut warnings);
        problems.sort_by_key(|problem| match &problem.origin {
            Origin::File { line, .. } => *line,
            _ => usize::MAX,
        });
        if problems.is_empty() {
            Ok(Loaded { config, origins, warnings })
        } else {
            Err(ConfigError { problems })
        }
    }
}

fn origin_of_section(origins: &BTreeMap<String, Origin>, listener: &str) -> Origin {
    let prefix = format!("listener.{listener}.");
    let mut of_listener = origins.iter().filter(|(key, _)| key.starts_with(&prefix));
    of_listener.next().map_or(Origin::Default, |(_, origin)| origin.clone())
}

/// Sets one key; Err names it and says what is wrong.
fn assign(config: &mut Config, key: &str, raw: &Raw) -> Result<(), String> {
    let table = TABLES.iter().find_map(|table| Some((*table, key.strip_prefix(table)?.strip_prefix('.')?)));
    let Some((table, rest)) = table else {
        let known = KEYS.iter().find(|known| known.name == key).ok_or_else(|| unknown_key(key))?;
        return (known.set)(config, raw).map_err(|what| format!("{key} {what}"));
    };
    let (name, field) = rest.split_once('.').ok_or_else(|| {
        format!("{key} has no {table} name; write {table}.NAME.{rest}, for example [{table}.mqtt]")
    })?;
    if !is_name(name) {
        return Err(format!(
            "{table} name {name:?} is not allowed; use 1 to {NAME_BYTES_MAX} of a-z, 0-9, '_' and '-'"
        ));
    }
    match table {
        "bridge" => set_in(&mut config.bridges, BRIDGE_KEYS, (key, name, field), raw),
        _ => set_in(&mut config.listeners, LISTENER_KEYS, (key, name, field), raw),
    }
}

/// Sets a key of a thing with a name, which is made when the value is good: one that is only named by a bad value would be complained of
/// a second time, for what it lacks.
fn set_in<T: Clone + Default>(
    things: &mut BTreeMap<Arc<str>, T>,
    keys: &[Key<T>],
    (key, name, field): (&str, &str, &str),
    raw: &Raw,
) -> Result<(), String> {
    let known = keys.iter().find(|known| known.name == field).ok_or_else(|| unknown_key(key))?;
    let mut thing = things.get(name).cloned().unwrap_or_default();
    (known.set)(&mut thing, raw).map_err(|what| format!("{key} {what}"))?;
    things.insert(name.into(), thing);
    Ok(())
}

fn is_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

fn unknown_key(key: &str) -> String {
    let of = |table: &str| key.strip_prefix(table)?.strip_prefix('.')?.split_once('.');
    let known: Vec<String> = match (of("listener"), of("bridge")) {
        (Some((name, _)), _) => names(LISTENER_KEYS, "listener", name),
        (None, Some((name, _))) => names(BRIDGE_KEYS, "bridge", name),
        (None, None) => KEYS.iter().map(|known| known.name.to_owned()).collect(),
    };
    let near = nearest(key, known.iter().map(String::as_str));
    // The same name in another section is the likelier slip than a distant spelling.
    let moved = || {
        let last = key.rsplit('.').next().unwrap_or(key);
        KEYS.iter().map(|known| known.name).find(|name| name.rsplit('.').next() == Some(last))
    };
    match near.or_else(moved) {
        Some(near) => format!("{key} is not a known key; did you mean {near}?"),
        None => format!("{key} is not a known key; exactmq.example.toml lists all of them"),
    }
}

fn names<T>(keys: &[Key<T>], table: &str, name: &str) -> Vec<String> {
    keys.iter().map(|known| format!("{table}.{name}.{}", known.name)).collect()
}

fn read_file(path: &PathBuf, assignments: &mut Vec<Assignment>, problems: &mut Vec<Problem>) {
    let shared = Arc::new(path.clone());
    let mut problem = |line: usize, message: String| {
        problems.push(Problem { origin: Origin::File { path: Arc::clone(&shared), line }, message });
    };
    let too_large = std::fs::metadata(path).is_ok_and(|meta| meta.len() > FILE_BYTES_MAX);
    if too_large {
        return problem(1, format!("the file is larger than {FILE_BYTES_MAX} bytes; is this the right one?"));
    }
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return problem(1, format!("cannot read the configuration file: {error}")),
    };
    let line_of =
        |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count();
    let document = match DeTable::parse(&text) {
        Ok(document) => document,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(span.start));
            return problem(line, format!("not valid TOML: {}", error.message()));
        }
    };
    for (section, value) in document.get_ref() {
        let line = line_of(section.span().start);
        let section = section.get_ref().as_ref();
        if !SECTIONS.contains(&section) {
            let near = nearest(section, SECTIONS.into_iter());
            let hint = near.map_or_else(|| SECTIONS.join(", "), |near| format!("did you mean [{near}]?"));
            problem(line, format!("[{section}] is not a known section; {hint}"));
            continue;
        }
        let Some(table) = value.get_ref().as_table() else {
            problem(line, format!("{section} must be a section: write [{section}] above its keys"));
            continue;
        };
        collect(section, table, &mut |key, value: &Spanned<DeValue<'_>>, at| {
            let origin = Origin::File { path: Arc::clone(&shared), line: line_of(at) };
            assignments.push(Assignment { key, raw: raw_of(value.get_ref()), origin });
        });
    }
}

/// Every leaf of a section with its dotted name; tables are walked into only below those with names.
fn collect(prefix: &str, table: &DeTable<'_>, leaf: &mut impl FnMut(String, &Spanned<DeValue<'_>>, usize)) {
    for (name, value) in table {
        let key = format!("{prefix}.{}", name.get_ref());
        match value.get_ref().as_table() {
            Some(inner) if TABLES.contains(&prefix) => collect(&key, inner, leaf),
            _ => leaf(key, value, name.span().start),
        }
    }
}

fn raw_of(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Boolean(value) => Raw::Bool(*value),
        DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix())
            .map_or(Raw::Other("number out of range"), Raw::Integer),
        DeValue::Float(float) => {
            float.as_str().replace('_', "").parse().map_or(Raw::Other("number out of range"), Raw::Float)
        }
        DeValue::Array(items) => {
            let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                DeValue::String(text) => Some(text.to_string()),
                _ => None,
            };
            let table = |item: &Spanned<DeValue<'_>>| {
                let table = item.get_ref().as_table()?;
                Some(
                    table
                        .iter()
                        .map(|(key, value)| (key.get_ref().to_string(), raw_of(value.get_ref())))
                        .collect(),
                )
            };
            let texts: Option<Vec<String>> = items.iter().map(text).collect();
            let tables = || items.iter().map(table).collect::<Option<Vec<_>>>();
            let other = Raw::Other("array of something else than texts");
            texts.map_or_else(|| tables().map_or(other, Raw::Tables), Raw::Texts)
        }
        other => Raw::Other(other.type_str()),
    }
}

fn read_environment(
    environment: &[(String, String)],
    assignments: &mut Vec<Assignment>,
    warnings: &mut Vec<Problem>,
) {
    for (name, value) in environment {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let origin = Origin::Environment(name.clone());
        match key_of_variable(rest) {
            Some(key) => assignments.push(Assignment { key, raw: Raw::Loose(value.clone()), origin }),
            // Container platforms set EXACTMQ_PORT_… and EXACTMQ_SERVICE_… for a service of this name.
            None => warnings.push(Problem {
                origin,
                message: "names no section of the configuration; ignored".to_owned(),
            }),
        }
    }
}

/// `SESSION_RECEIVE_MAXIMUM` → `session.receive_maximum`; `None` when it begins with no known section.
fn key_of_variable(rest: &str) -> Option<String> {
    let lower = rest.to_ascii_lowercase();
    let (section, key) = lower.split_once('_')?;
    if !SECTIONS.contains(&section) {
        return None;
    }
    let fields: Vec<&str> = match section {
        "listener" => LISTENER_KEYS.iter().map(|known| known.name).collect(),
        "bridge" => BRIDGE_KEYS.iter().map(|known| known.name).collect(),
        _ => return Some(format!("{section}.{key}")),
    };
    // Both the name and the keys may contain '_': the longest known key decides.
    let field = fields
        .into_iter()
        .filter(|field| key.strip_suffix(field).is_some_and(|name| name.len() > 1 && name.ends_with('_')))
        .max_by_key(|field| field.len());
    Some(match field {
        Some(field) => format!("{section}.{}.{field}", &key[..key.len() - field.len() - 1]),
        None => format!("{section}.{}", key.replacen('_', ".", 1)),
    })
}
