//! How one setting is read from and shown as text: the types that configuration keys may have.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use super::{AdminAddress, ClusterSecret, CommandLine, HostPort, Ratio, Urls};

/// Texts of a command line, and bytes of each.
const ARGUMENTS_MAX: usize = 64;
const ARGUMENT_BYTES_MAX: usize = 4_096;
/// Members of a cluster that may be named.
const URLS_MAX: usize = 16;
/// Bytes of an address that other nodes dial.
const HOST_PORT_BYTES_MAX: usize = 260;

/// A value as its source wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    /// An array of texts.
    Texts(Vec<String>),
    /// An array of tables.
    Tables(Vec<Vec<(String, Self)>>),
    /// From the environment or a flag, where everything is text.
    Loose(String),
    /// A TOML type that no key takes, by its name.
    Other(&'static str),
}

impl Raw {
    fn describe(&self) -> String {
        match self {
            Self::Integer(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Bool(value) => format!("{value}"),
            Self::Text(text) | Self::Loose(text) => format!("{text:?}"),
            Self::Texts(texts) => format!("{texts:?}"),
            Self::Tables(tables) => format!("an array of {} tables", tables.len()),
            Self::Other(kind) => format!("a {kind}"),
        }
    }

    /// The text of a string; an integer or boolean in its place is an error of type.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Loose(text) => Some(text),
            _ => None,
        }
    }
}

/// One type of setting.
pub(super) trait Setting: Sized {
    /// What may be written, for messages and the example file.
    fn allowed() -> String;
    /// `None` when the value does not fit.
    fn parse(raw: &Raw) -> Option<Self>;
    /// As TOML; `None`: not set.
    fn show(&self) -> Option<String>;

    fn read(raw: &Raw) -> Result<Self, String> {
        Self::parse(raw).ok_or_else(|| format!("is {}; allowed: {}", raw.describe(), Self::allowed()))
    }
}

/// Reads a number and holds it against the range of its key.
pub(super) fn read_in<T>(raw: &Raw, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: Setting + PartialOrd + Display,
{
    match T::parse(raw) {
        Some(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("is {}; allowed: {}", raw.describe(), allowed_in(range))),
    }
}

pub(super) fn allowed_in<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("{} to {}", range.start(), range.end())
}

macro_rules! number_setting {
    ($($number:ty),*) => {$(
        impl Setting for $number {
            fn allowed() -> String {
                allowed_in(&(<$number>::MIN..=<$number>::MAX))
            }
            fn parse(raw: &Raw) -> Option<Self> {
                match raw {
                    Raw::Integer(value) => Self::try_from(*value).ok(),
                    Raw::Loose(text) => text.trim().replace('_', "").parse().ok(),
                    _ => None,
                }
            }
            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
number_setting!(u16, u32, u64, usize);

impl Setting for bool {
    fn allowed() -> String {
        "true or false".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Bool(value) => Some(*value),
            Raw::Loose(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for Ratio {
    fn allowed() -> String {
        "0 to 1".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let value = match raw {
            Raw::Float(value) => *value,
            Raw::Integer(0) => 0.0,
            Raw::Integer(1) => 1.0,
            Raw::Loose(text) => text.trim().parse().ok()?,
            _ => return None,
        };
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }
    fn show(&self) -> Option<String> {
        // With a point, as a number of TOML that is not whole has one.
        Some(format!("{:?}", self.0))
    }
}

impl Setting for Arc<str> {
    fn allowed() -> String {
        "a name of 1 to 1,024 bytes that is not blank".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let text = raw.text()?;
        session::id::check_identity(text, session::limits::NAMESPACE_BYTES_MAX).ok()?;
        Some(text.into())
    }
    fn show(&self) -> Option<String> {
        Some(quote(self))
    }
}

impl Setting for PathBuf {
    fn allowed() -> String {
        "a path".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        raw.text().filter(|text| !text.is_empty() && !text.contains('\0')).map(Self::from)
    }
    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string_lossy()))
    }
}

impl Setting for SocketAddr {
    fn allowed() -> String {
        "ADDRESS:PORT, for example \"127.0.0.1:1883\" or \"[::1]:1883\"; port 0 takes a free one".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let text = raw.text()?.trim();
        if let Some(port) = text.strip_prefix("localhost:") {
            return Some((Ipv4Addr::LOCALHOST, port.parse().ok()?).into());
        }
        text.parse().ok()
    }
    fn show(&self) -> Option<String> {
        Some(quote(&self.to_string()))
    }
}

impl Setting for AdminAddress {
    fn allowed() -> String {
        format!("\"off\", or {}", SocketAddr::allowed())
    }
    fn parse(raw: &Raw) -> Option<Self> {
        if raw.text()?.trim() == "off" {
            return Some(Self(None));
        }
        SocketAddr::parse(raw).map(|address| Self(Some(address)))
    }
    fn show(&self) -> Option<String> {
        self.0.map_or_else(|| Some(quote("off")), |address| address.show())
    }
}

impl Setting for HostPort {
    fn allowed() -> String {
        "HOST:PORT of at most 260 bytes, for example \"node-1.example:7883\"".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let text = raw.text()?.trim();
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse::<u16>().ok()?;
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | '?' | '#');
        let whole = port > 0 && !host.is_empty() && text.len() <= HOST_PORT_BYTES_MAX && !host.contains(odd);
        whole.then(|| Self(text.into()))
    }
    fn show(&self) -> Option<String> {
        Some(quote(&self.0))
    }
}

impl Setting for ClusterSecret {
    fn allowed() -> String {
        "a text of 16 to 1024 bytes".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let text = raw.text()?;
        (16..=1_024).contains(&text.len()).then(|| Self(text.into()))
    }
    fn show(&self) -> Option<String> {
        // That there is one, and nothing else.
        Some(quote("(secret)"))
    }
    fn read(raw: &Raw) -> Result<Self, String> {
        // What was written may be most of a secret: it is not repeated.
        Self::parse(raw).ok_or_else(|| format!("is not allowed; allowed: {}", Self::allowed()))
    }
}

impl Setting for Urls {
    fn allowed() -> String {
        format!(
            "1 to {URLS_MAX} URLs without a path, for example [\"http://10.0.0.1:2379\", \"http://10.0.0.2:2379\"]"
        )
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let texts = texts_of(raw, true)?;
        let texts: Vec<String> =
            texts.iter().map(|text| text.trim().trim_end_matches('/').to_owned()).collect();
        let is_url = |text: &String| {
            let place = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
            place.is_some_and(|place| HostPort::new(place).is_some())
        };
        let fits = (1..=URLS_MAX).contains(&texts.len()) && texts.iter().all(is_url);
        fits.then(|| Self(texts.into()))
    }
    fn show(&self) -> Option<String> {
        let texts: Vec<String> = self.0.iter().map(|text| quote(text)).collect();
        Some(format!("[{}]", texts.join(", ")))
    }
}

/// An array of texts; from the environment or a flag as TOML, or, with `commas`, without brackets and quotes.
pub(super) fn texts_of(raw: &Raw, commas: bool) -> Option<Vec<String>> {
    let text = match raw {
        Raw::Texts(texts) => return Some(texts.clone()),
        Raw::Loose(text) => text,
        _ => return None,
    };
    if commas && !text.trim_start().starts_with('[') {
        return Some(text.split(',').map(str::to_owned).collect());
    }
    let table: toml::Table = format!("it = {text}").parse().ok()?;
    let texts = table.get("it").filter(|_| table.len() == 1)?.as_array()?;
    texts.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

impl Setting for CommandLine {
    fn allowed() -> String {
        format!(
            "a program and its arguments, 1 to {ARGUMENTS_MAX} texts, for example [\"/usr/local/sbin/fence\", \"--off\"]"
        )
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let texts = texts_of(raw, false)?;
        let fits = (1..=ARGUMENTS_MAX).contains(&texts.len())
            && !texts[0].is_empty()
            && texts.iter().all(|text| text.len() <= ARGUMENT_BYTES_MAX && !text.contains('\0'));
        fits.then(|| Self(texts.into()))
    }
    fn show(&self) -> Option<String> {
        let texts: Vec<String> = self.0.iter().map(|text| quote(text)).collect();
        Some(format!("[{}]", texts.join(", ")))
    }
}

impl<T: Setting> Setting for Option<T> {
    fn allowed() -> String {
        T::allowed()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        // An empty environment variable is how a container unsets what its image set.
        if matches!(raw, Raw::Loose(text) if text.is_empty()) {
            return Some(None);
        }
        T::parse(raw).map(Some)
    }
    fn read(raw: &Raw) -> Result<Self, String> {
        match Self::parse(raw) {
            Some(value) => Ok(value),
            None => T::read(raw).map(Some),
        }
    }
    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Setting::show)
    }
}

/// Declares a closed set of words and how it is read.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            /// The word that stands for it in the configuration.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl $crate::config::value::Setting for $name {
            fn allowed() -> String {
                [$(concat!("\"", $word, "\"")),+].join(", ")
            }
            fn parse(raw: &$crate::config::value::Raw) -> Option<Self> {
                match raw {
                    $crate::config::value::Raw::Text(text) | $crate::config::value::Raw::Loose(text) => {
                        match text.trim() { $($word => Some(Self::$variant),)+ _ => None }
                    }
                    _ => None,
                }
            }
            fn show(&self) -> Option<String> {
                Some(format!("\"{}\"", self.word()))
            }
        }
    };
}
pub(super) use choice;

/// A TOML basic string.
pub(super) fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
