//! The file of further tokens: `NAME:ROLE:SHA256` a line. The token itself stands nowhere; it is printed once, when it is made.

use std::path::Path;
use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};

use super::callers::mark_of;
use super::role::{FIRST, Role};
use super::table::Word as _;
use super::token::{TOKEN_BYTES, TokenError, hex};
use crate::auth::{AuthFileError, Editing, read_text};

/// Characters of the longest name.
const NAME_CHARS_MAX: usize = 64;
/// Tokens of one file: each call looks at all of them.
const TOKENS_MAX: usize = 256;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedToken {
    pub name: Arc<str>,
    pub role: Role,
    /// SHA-256 of the token.
    pub mark: [u8; 32],
}

/// All lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokensFile {
    pub tokens: Vec<NamedToken>,
}

impl TokensFile {
    /// # Errors
    /// A file that cannot be read, or a line that is not understood.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Self::parse(path, &read_text(path)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TokenError> {
        let mut tokens: Vec<NamedToken> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let refuse = |what: String| AuthFileError::Line { path: path.to_owned(), line: index + 1, what };
            let Some(token) = parse_line(line).map_err(refuse)? else { continue };
            if tokens.iter().any(|known| known.name == token.name) {
                return Err(refuse(format!("token {:?} stands here a second time", token.name)).into());
            }
            if tokens.len() == TOKENS_MAX {
                return Err(refuse(format!("there are more than {TOKENS_MAX} tokens")).into());
            }
            tokens.push(token);
        }
        Ok(Self { tokens })
    }
}

/// `None`: blank, or a comment.
fn parse_line(line: &str) -> Result<Option<NamedToken>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let parts: Vec<&str> = line.split(':').collect();
    let [name, role, mark] = parts.as_slice() else {
        return Err("is not NAME:ROLE:SHA256, as `exactmq token add` writes it".to_owned());
    };
    check_name(name)?;
    let role = Role::of(role).ok_or_else(|| format!("role {role:?} is not viewer, operator or admin"))?;
    let mark = unhex(mark).ok_or("has no SHA-256 of a token (64 hexadecimal digits) behind the role")?;
    Ok(Some(NamedToken { name: (*name).into(), role, mark }))
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(allowed) {
        return Err(format!(
            "name {name:?} is not 1 to {NAME_CHARS_MAX} of letters, digits, '.', '_', '@' and '-'"
        ));
    }
    if name == FIRST {
        return Err(format!("name {FIRST:?} is that of the token of the first start"));
    }
    Ok(())
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

/// Adds a token and returns it: it cannot be read anywhere afterwards. The file is made (0600) when it is missing.
///
/// # Errors
/// A name that cannot stand in the file, or stands there; a damaged file; I/O. The file is then unchanged.
pub fn add_token(path: &Path, name: &str, role: Role) -> Result<String, TokenError> {
    check_name(name).map_err(TokenError::Name)?;
    let editing = Editing::begin(path)?;
    let path = editing.path();
    let text = if path.exists() { read_text(path)? } else { String::new() };
    let known = TokensFile::parse(path, &text)?.tokens;
    if known.iter().any(|token| &*token.name == name) {
        return Err(TokenError::Exists { path: path.to_owned(), name: name.to_owned() });
    }
    if known.len() == TOKENS_MAX {
        return Err(TokenError::Name(format!("name {name:?} has no room: there are {TOKENS_MAX} tokens")));
    }
    let mut random = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut random).map_err(|_| TokenError::Random)?;
    let secret = hex(&random);
    let entry = format!("{name}:{}:{}", role.word(), hex(&mark_of(secret.as_bytes())));
    editing.replace(&text.lines().chain([&*entry]).collect::<Vec<_>>())?;
    Ok(secret)
}

/// Removes a token.
///
/// # Errors
/// When there is none of this name, a damaged file, I/O. The file is then unchanged.
pub fn remove_token(path: &Path, name: &str) -> Result<(), TokenError> {
    let editing = Editing::begin(path)?;
    let path = editing.path();
    let text = if path.exists() { read_text(path)? } else { String::new() };
    if !TokensFile::parse(path, &text)?.tokens.iter().any(|token| &*token.name == name) {
        return Err(TokenError::NoToken { path: path.to_owned(), name: name.to_owned() });
    }
    let is_it = |line: &&str| matches!(parse_line(line), Ok(Some(token)) if &*token.name == name);
    editing.replace(&text.lines().filter(|line| !is_it(line)).collect::<Vec<_>>())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token is found by its SHA-256 alone; who reads the file has no token.
    #[test]
    fn the_file_holds_names_roles_and_digests() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        let ann = add_token(&path, "ann", Role::Viewer).expect("added");
        let ops = add_token(&path, "ops@2", Role::Operator).expect("added");
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(ann != ops && !text.contains(&ann) && !text.contains(&ops), "{text}");
        let file = TokensFile::read(&path).expect("valid");
        let told: Vec<_> = file.tokens.iter().map(|one| (&*one.name, one.role, one.mark)).collect();
        assert_eq!(
            told,
            [
                ("ann", Role::Viewer, mark_of(ann.as_bytes())),
                ("ops@2", Role::Operator, mark_of(ops.as_bytes()))
            ]
        );
        assert!(matches!(add_token(&path, "ann", Role::Admin), Err(TokenError::Exists { .. })));
        remove_token(&path, "ann").expect("removed");
        assert!(matches!(remove_token(&path, "ann"), Err(TokenError::NoToken { .. })));
        assert_eq!(TokensFile::read(&path).expect("valid").tokens.len(), 1);
        for name in ["", "a:b", "a b", "#a", "admin", "ä"] {
            assert!(matches!(add_token(&path, name, Role::Viewer), Err(TokenError::Name(_))), "{name:?}");
        }
    }

    /// P10: a line that is not understood is no token, and says so with its number.
    #[test]
    fn a_faulty_line_is_named() {
        let mark = "0".repeat(64);
        for line in [
            "ann",
            "ann:viewer",
            &format!("ann:root:{mark}"),
            &format!("ann:viewer:{}", &mark[1..]),
            &format!("ann:viewer:{}x", &mark[1..]),
            &format!("admin:viewer:{mark}"),
            &format!("ok:viewer:{mark}"),
        ] {
            let text = format!("# tokens\n\nok:viewer:{mark}\n{line}\n");
            let error = TokensFile::parse(Path::new("tokens"), &text).expect_err(line);
            assert!(error.to_string().starts_with("tokens:4: "), "{error}");
        }
    }
}
