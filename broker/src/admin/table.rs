//! Tables that the caller sorts: up to four columns, pages by cursor, never more rows in memory than a page.
//!
//! A page begins behind a position: what the sorted columns of its predecessor's last row held, and which row that was. Rows that are
//! equal in all sorted columns are in the order of their ids, so that no two positions are the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Problem;

/// Columns that one table is sorted by, at most.
pub(super) const SORT_MAX: usize = 4;

/// Declares the words of a parameter or a field.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        $vis enum $name { $($(#[$variant_meta])* #[serde(rename = $word)] $variant),+ }

        impl $crate::admin::table::Word for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}
pub(crate) use words;

/// A closed set of words.
pub trait Word: Copy + PartialEq + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;

    /// The one that is written so.
    #[must_use]
    fn of(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|word| word.word() == text)
    }
}

/// What a row has in one column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Value {
    Number(u64),
    Text(Arc<str>),
}

/// A value in the direction in which its column is sorted; rows without one come last in both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Cell {
    Up(Value),
    Down(Reverse<Value>),
    Nothing,
}

/// Where a row stands in a sorted table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position<I> {
    cells: Vec<Cell>,
    pub id: I,
}

/// By which columns a table is sorted, each up or down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order<C>(Vec<(C, bool)>);

impl<C> Default for Order<C> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<C: Word> Order<C> {
    /// Of `name`, `name:asc` or `name:desc`, with commas between them.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let mut columns: Vec<(C, bool)> = Vec::new();
        for part in text.split(',') {
            let (name, direction) = part.split_once(':').unwrap_or((part, "asc"));
            let column = C::of(name).ok_or_else(|| {
                let known: Vec<&str> = C::ALL.iter().map(|column| column.word()).collect();
                Problem::invalid(format!("sort={name} is not one of {}", known.join(", ")))
            })?;
            let down = match direction {
                "asc" => false,
                "desc" => true,
                _ => return Err(Problem::invalid(format!("sort={part} is neither :asc nor :desc"))),
            };
            if columns.iter().any(|(known, _)| *known == column) {
                return Err(Problem::invalid(format!("sort={name} is there twice")));
            }
            columns.push((column, down));
        }
        if columns.len() > SORT_MAX {
            return Err(Problem::invalid(format!("sort has more than {SORT_MAX} columns")));
        }
        Ok(Self(columns))
    }

    fn text(&self) -> String {
        let part =
            |(column, down): &(C, bool)| format!("{}:{}", column.word(), if *down { "desc" } else { "asc" });
        self.0.iter().map(part).collect::<Vec<_>>().join(",")
    }

    /// Whether rows are in the order of their ids.
    #[must_use]
    pub fn is_by_id(&self) -> bool {
        self.0.is_empty()
    }

    /// The place of a row with these values.
    #[must_use]
    pub fn position<I>(&self, id: I, value: impl Fn(C) -> Option<Value>) -> Position<I> {
        let cell = |(column, down): &(C, bool)| match (value(*column), down) {
            (None, _) => Cell::Nothing,
            (Some(value), false) => Cell::Up(value),
            (Some(value), true) => Cell::Down(Reverse(value)),
        };
        Position { cells: self.0.iter().map(cell).collect(), id }
    }
}

/// The first rows behind a position, out of all that are offered.
#[derive(Debug)]
pub struct Best<I, V> {
    rows: BTreeMap<Position<I>, V>,
    after: Option<Position<I>>,
    limit: usize,
}

impl<I: Ord + Clone, V> Best<I, V> {
    #[must_use]
    pub fn new(limit: usize, after: Option<Position<I>>) -> Self {
        Self { rows: BTreeMap::new(), after, limit }
    }

    pub fn offer(&mut self, position: Position<I>, row: V) {
        if self.after.as_ref().is_some_and(|after| position <= *after) {
            return;
        }
        self.rows.insert(position, row);
        // One more than fits: then it is known that there are more.
        if self.rows.len() > self.limit + 1 {
            self.rows.pop_last();
        }
    }

    /// Whether only rows that stand before others of the page would change it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows.len() > self.limit
    }

    /// The page, and the position to go on behind when there are more.
    #[must_use]
    pub fn finish(mut self) -> (Vec<V>, Option<Position<I>>) {
        let more = self.is_full();
        if more {
            self.rows.pop_last();
        }
        let next = self.rows.last_key_value().filter(|_| more).map(|(position, _)| position.clone());
        (self.rows.into_values().collect(), next)
    }
}

#[derive(Serialize, Deserialize)]
struct Cursor<I> {
    sort: String,
    at: Position<I>,
}

/// Opaque to callers.
pub(super) fn write_cursor<C: Word, I: Serialize>(order: &Order<C>, at: Position<I>) -> String {
    // Plain strings and numbers: they always have a JSON form.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&Cursor { sort: order.text(), at }).unwrap_or_default())
}

/// Where the page begins; a cursor of another order would skip rows.
pub(super) fn read_cursor<C: Word, I: DeserializeOwned>(
    order: &Order<C>,
    parameters: &HashMap<String, String>,
) -> Result<Option<Position<I>>, Problem> {
    let Some(cursor) = parameters.get("cursor") else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let cursor: Cursor<I> = bytes
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(|| Problem::invalid("cursor is not one that this API gave out for this table"))?;
    if cursor.sort != order.text() || cursor.at.cells.len() != order.0.len() {
        return Err(Problem::invalid("cursor is of a page that was sorted otherwise; begin anew"));
    }
    Ok(Some(cursor.at))
}

/// One word of a closed set; `None`: the parameter is not there.
pub(super) fn word<W: Word>(parameters: &HashMap<String, String>, name: &str) -> Result<Option<W>, Problem> {
    let Some(text) = parameters.get(name) else { return Ok(None) };
    W::of(text).map(Some).ok_or_else(|| {
        let known: Vec<&str> = W::ALL.iter().map(|word| word.word()).collect();
        Problem::invalid(format!("{name}={text} is not one of {}", known.join(", ")))
    })
}

pub(super) fn number(parameters: &HashMap<String, String>, name: &str) -> Result<Option<u64>, Problem> {
    let Some(text) = parameters.get(name) else { return Ok(None) };
    let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .map(Some)
        .ok_or_else(|| Problem::invalid(format!("{name}={text} is not a number from 0 to {}", u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    words! { Column { Size = "size", Name = "name" } }

    type Stone = (u64, Option<u64>, &'static str);
    const STONES: [Stone; 5] =
        [(1, Some(7), "b"), (2, None, "a"), (3, Some(7), "a"), (4, Some(9), "c"), (5, Some(1), "c")];

    fn value(stone: &Stone, column: Column) -> Option<Value> {
        match column {
            Column::Size => stone.1.map(Value::Number),
            Column::Name => Some(Value::Text(stone.2.into())),
        }
    }

    /// All ids in order, in pages of `limit`, each behind the cursor of the one before.
    fn paged(sort: &str, limit: usize) -> Vec<u64> {
        let order =
            if sort.is_empty() { Order::default() } else { Order::<Column>::parse(sort).expect(sort) };
        let (mut found, mut parameters) = (Vec::new(), HashMap::new());
        loop {
            let after = read_cursor::<_, u64>(&order, &parameters).expect("our own");
            let mut best = Best::new(limit, after);
            for stone in STONES.iter().rev() {
                best.offer(order.position(stone.0, |column| value(stone, column)), stone.0);
            }
            let (rows, next) = best.finish();
            found.extend(rows);
            let Some(next) = next else { return found };
            parameters.insert("cursor".to_owned(), write_cursor(&order, next));
        }
    }

    /// DESIGN §9: sorted by up to four fields; pages together are the whole table, whatever their size.
    #[test]
    fn pages_together_are_the_sorted_table() {
        for (sort, expected) in [
            ("", [1, 2, 3, 4, 5]),
            ("size", [5, 1, 3, 4, 2]),
            ("size:desc", [4, 1, 3, 5, 2]),
            ("size:desc,name", [4, 3, 1, 5, 2]),
            ("name:desc,size:asc", [5, 4, 1, 3, 2]),
        ] {
            for limit in 1..=6 {
                assert_eq!(paged(sort, limit), expected, "{sort} in pages of {limit}");
            }
        }
    }

    #[test]
    fn an_order_that_is_not_understood_is_refused() {
        for sort in ["", "x", "size:up", "size,size:desc", "size,", "name,size,name"] {
            let problem = Order::<Column>::parse(sort).expect_err(sort);
            assert_eq!(problem.code(), "invalid", "{sort}");
        }
        let by_size = Order::<Column>::parse("size").expect("known");
        let cursor = write_cursor(&by_size, by_size.position(1_u64, |_| None));
        let parameters = HashMap::from([("cursor".to_owned(), cursor)]);
        assert!(read_cursor::<_, u64>(&by_size, &parameters).is_ok());
        assert!(read_cursor::<_, u64>(&Order::<Column>::default(), &parameters).is_err());
        assert!(read_cursor::<_, Arc<str>>(&by_size, &parameters).is_err(), "of another table");
    }
}
