//! What commands print: tables for people, JSON for programs.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::config::{ConfigError, Loaded, Problem};

/// To stdout; a reader that went away (`| head`) ends the output, not the program.
pub(super) fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

pub(super) fn print_json(value: &Value) {
    print(&format!("{value:#}\n"));
}

/// Left-aligned columns under their heads. Control characters, which a ClientID may contain, are escaped.
pub(super) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut heads.iter().copied());
    for row in &rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// `text` with control characters escaped, so that a name cannot steer the terminal.
pub(super) fn visible(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A field as text: `-` for null and missing ones.
pub(super) fn cell(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Milliseconds since the Unix epoch as UTC, `-` for null.
pub(super) fn time(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), utc)
}

fn utc(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1_000 % 86_400);
    let Some((year, month, day)) = civil(days) else { return ms.to_string() };
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60,
        ms % 1_000
    )
}

/// Year, month and day of a day since the Unix epoch; `None` beyond the year 9999.
fn civil(mut days: u64) -> Option<(u64, u64, u64)> {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
        if year > 9_999 {
            return None;
        }
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, length) in (1..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if days < length {
            return Some((year, month, days + 1));
        }
        days -= length;
    }
    None
}

/// `check-config --json`.
pub(super) fn config(loaded: &Result<Loaded, ConfigError>) -> Value {
    let place =
        |problem: &Problem| json!({ "origin": problem.origin.to_string(), "message": problem.message });
    match loaded {
        Ok(loaded) => {
            let keys: serde_json::Map<String, Value> = loaded
                .config
                .values()
                .into_iter()
                .map(|(key, value)| {
                    let origin =
                        loaded.origins.get(&key).map_or_else(|| "default".to_owned(), ToString::to_string);
                    (key, json!({ "value": value, "origin": origin }))
                })
                .collect();
            let warnings: Vec<Value> = loaded.warnings.iter().map(place).collect();
            json!({ "valid": true, "keys": keys, "warnings": warnings })
        }
        Err(error) => {
            json!({ "valid": false, "problems": error.problems.iter().map(place).collect::<Vec<_>>() })
        }
    }
}
