//! Where checkpointed state lives: sorted rows and one small meta value per group, changed atomically and durably.

mod bodies;
mod closed;
mod memory;
mod redb;
#[cfg(feature = "store-sled")]
mod sled;

#[cfg(test)]
mod engine_test;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use closed::Closed;

use session::lifecycle::Group;
use session::message::Message;

use crate::StorageError;
use crate::store::EngineKind;

/// The rows of one group. Safe to use from every thread; there is one writer at a time.
pub(crate) trait Engine: Send + Sync + Debug {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// The meta value that went with the last write.
    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError>;

    /// Applies all of `rows` and sets the meta value, or nothing of it. Durable when it returns.
    fn write(&self, rows: &Rows, meta: &[u8]) -> Result<(), StorageError>;

    /// Replaces everything by what `fill` puts; atomic and durable like [`Engine::write`].
    fn replace(&self, fill: &mut Fill<'_>, meta: &[u8]) -> Result<(), StorageError>;

    /// Gives space of the disk back that rows do not need any more, when it is much more than they take now: about `row_bytes`, and
    /// `body_bytes` those with bodies of messages. May leave it for later while a view is open.
    fn give_back(&self, _row_bytes: u64, _body_bytes: u64) -> Result<(), StorageError> {
        Ok(())
    }

    /// Visits the row values of those of these message bodies that are there, with their positions in `ids`.
    fn visit_bodies(&self, ids: &[u64], visit: &mut VisitBody<'_>) -> Result<(), StorageError> {
        for (at, id) in ids.iter().enumerate() {
            if let Some(value) = self.get(&Group::body_key(*id))? {
                visit(at, &value)?;
            }
        }
        Ok(())
    }

    /// File or directory, for messages.
    fn path(&self) -> PathBuf;

    /// The rows as they are now; later writes do not show.
    fn view(&self) -> Result<Box<dyn View>, StorageError>;
}

/// Called with a function that puts one row, in key order.
pub(crate) type Fill<'a> =
    dyn FnMut(&mut dyn FnMut(&[u8], &[u8]) -> Result<(), StorageError>) -> Result<(), StorageError> + 'a;

/// Sees rows in key order.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StorageError> + 'a;

/// Sees the position of a message body among those asked for, and its row value.
pub(crate) type VisitBody<'a> = dyn FnMut(usize, &[u8]) -> Result<(), StorageError> + 'a;

/// Sees a row that changes; `None`: it goes.
pub(crate) type VisitChange<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// One consistent reading of an engine.
pub(crate) trait View: Send {
    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError>;
    /// Visits every row in key order.
    fn scan(&self, visit: &mut Visit<'_>) -> Result<(), StorageError>;
}

/// Rows to be changed: in one buffer, but for those of message bodies, which are not copied.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    /// Ends of key and value in `bytes`; `None`: the row goes.
    ends: Vec<(usize, Option<usize>)>,
    pub(crate) bodies: BodyRows,
}

/// Message bodies to be written, ids ascending, and those that are gone.
#[derive(Debug, Default)]
pub(crate) struct BodyRows {
    written: Vec<(u64, Arc<Message>)>,
    gone: Vec<u64>,
}

impl BodyRows {
    /// `None`: the body is gone.
    pub(crate) fn push(&mut self, id: u64, body: Option<&Arc<Message>>) {
        match body {
            Some(body) => self.written.push((id, Arc::clone(body))),
            None => self.gone.push(id),
        }
    }

    /// Visits them as rows; `None`: it goes.
    pub(crate) fn for_each(&self, visit: &mut VisitChange<'_>) {
        let mut value = Vec::new();
        for (id, message) in &self.written {
            value.clear();
            Group::encode_body(message, &mut value);
            visit(&Group::body_key(*id), Some(&value));
        }
        self.gone.iter().for_each(|id| visit(&Group::body_key(*id), None));
    }
}

impl Rows {
    pub(crate) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        let value_end = value.map(|value| {
            self.bytes.extend_from_slice(value);
            self.bytes.len()
        });
        self.ends.push((key_end, value_end));
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len() + self.bodies.written.len() + self.bodies.gone.len()
    }

    /// All but `bodies`.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut start = 0;
        self.ends.iter().map(move |(key_end, value_end)| {
            let key = &self.bytes[start..*key_end];
            let value = value_end.map(|value_end| &self.bytes[*key_end..value_end]);
            start = value_end.unwrap_or(*key_end);
            (key, value)
        })
    }
}

/// Opens the engines of all groups below `dir`.
///
/// # Errors
/// Damage, I/O, an engine that is not compiled in.
pub(crate) fn open(
    kind: EngineKind,
    dir: &Path,
    groups: u16,
    cache_bytes: usize,
) -> Result<Vec<Arc<dyn Engine>>, StorageError> {
    match kind {
        EngineKind::Redb => {
            crate::identity::make_dir(dir)?;
            let cache = cache_bytes / usize::from(groups.max(1));
            // Side by side: each file is read as a whole and checked.
            std::thread::scope(|scope| {
                let open = |group| (group, scope.spawn(move || redb::Redb::open(dir, group, cache)));
                let opening: Vec<_> = (0..groups).map(open).collect();
                let opened = opening.into_iter().map(|(group, thread)| {
                    // A build with debug assertions looks at pages before they are checked.
                    let panicked =
                        |_| StorageError::damaged(&redb::path(dir, group), 0, "its pages make no sense");
                    Ok(Arc::new(thread.join().map_err(panicked)??) as _)
                });
                opened.collect()
            })
        }
        EngineKind::Memory => Ok((0..groups).map(|_| Arc::new(memory::Memory::default()) as _).collect()),
        #[cfg(feature = "store-sled")]
        EngineKind::Sled => sled::open(dir, groups),
        #[cfg(not(feature = "store-sled"))]
        EngineKind::Sled => Err(StorageError::EngineMissing("sled")),
    }
}
