//! One level of a topic filter as the index keeps it: short ones need no allocation of their own.

/// Longest level that is kept in place.
const SHORT_BYTES_MAX: usize = 22;

/// The bytes of one level.
#[derive(Clone)]
pub(super) enum Level {
    Short { len: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

impl Level {
    pub(super) fn new(level: &str) -> Self {
        let level = level.as_bytes();
        match u8::try_from(level.len()) {
            Ok(len) if level.len() <= SHORT_BYTES_MAX => {
                let mut bytes = [0; SHORT_BYTES_MAX];
                bytes[..level.len()].copy_from_slice(level);
                Self::Short { len, bytes }
            }
            _ => Self::Long(Box::from(level)),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_keeps_its_bytes() {
        for len in [0, 1, 21, 22, 23, 300] {
            let text = "é".repeat(len / 2) + &"x".repeat(len % 2);
            assert_eq!(Level::new(&text).as_bytes(), text.as_bytes());
        }
        assert_eq!(size_of::<Level>(), 24);
    }
}
