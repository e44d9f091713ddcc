//! What stands in for an engine after the store was closed, so that its files are free while late readers get an error.

use std::path::PathBuf;

use super::{Engine, Fill, Rows, View};
use crate::StorageError;

#[derive(Debug)]
pub(crate) struct Closed;

fn closed() -> StorageError {
    StorageError::Unavailable("the store is closed".to_owned())
}

impl Engine for Closed {
    fn get(&self, _key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Err(closed())
    }

    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        Err(closed())
    }

    fn write(&self, _rows: &Rows, _meta: &[u8]) -> Result<(), StorageError> {
        Err(closed())
    }

    fn replace(&self, _fill: &mut Fill<'_>, _meta: &[u8]) -> Result<(), StorageError> {
        Err(closed())
    }

    fn path(&self) -> PathBuf {
        "closed".into()
    }

    fn view(&self) -> Result<Box<dyn View>, StorageError> {
        Err(closed())
    }
}
