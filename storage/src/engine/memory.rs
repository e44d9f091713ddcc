//! Rows in memory, for tests and for nodes that may forget: nothing survives.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Engine, Fill, Rows, View, Visit};
use crate::StorageError;

type Map = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Debug, Clone, Default)]
struct Content {
    rows: Arc<Map>,
    meta: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    content: Mutex<Content>,
}

impl Engine for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.content.lock().rows.get(key).map(|value| value.to_vec()))
    }

    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.content.lock().meta.clone())
    }

    fn write(&self, rows: &Rows, meta: &[u8]) -> Result<(), StorageError> {
        let mut content = self.content.lock();
        let map = Arc::make_mut(&mut content.rows);
        for (key, value) in rows.iter() {
            match value {
                Some(value) => drop(map.insert(key.into(), value.into())),
                None => drop(map.remove(key)),
            }
        }
        rows.bodies.for_each(&mut |key, value| match value {
            Some(value) => drop(map.insert(key.into(), value.into())),
            None => drop(map.remove(key)),
        });
        content.meta = Some(meta.to_vec());
        Ok(())
    }

    fn replace(&self, fill: &mut Fill<'_>, meta: &[u8]) -> Result<(), StorageError> {
        let mut map = Map::new();
        fill(&mut |key, value| {
            map.insert(key.into(), value.into());
            Ok(())
        })?;
        *self.content.lock() = Content { rows: Arc::new(map), meta: Some(meta.to_vec()) };
        Ok(())
    }

    fn path(&self) -> PathBuf {
        "memory".into()
    }

    fn view(&self) -> Result<Box<dyn View>, StorageError> {
        Ok(Box::new(self.content.lock().clone()))
    }
}

impl View for Content {
    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.meta.clone())
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        self.rows.iter().try_for_each(|(key, value)| visit(key, value))
    }
}
