//! Digests of lifecycle commands: how an exact retry is told from a new command (owner spec §5.3).

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

/// Keeps a lifecycle digest apart from any other SHA-256 of the same bytes.
const DOMAIN: &[u8] = b"exactmq-lifecycle-v1\0";

/// SHA-256 over the stored form of `command`.
pub(super) fn digest<T: Serialize>(command: &T) -> [u8; 32] {
    let bytes = postcard::serialize_with_flavor(command, Buffer(SmallVec::new()))
        .expect("a command has a stored form: it was read from one");
    let mut hasher = Sha256::new();
    hasher.update(DOMAIN);
    hasher.update(&bytes);
    hasher.finalize().into()
}

/// Commands without a Will fit the stack.
struct Buffer(SmallVec<[u8; 512]>);

impl Flavor for Buffer {
    type Output = SmallVec<[u8; 512]>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok(self.0)
    }
}
