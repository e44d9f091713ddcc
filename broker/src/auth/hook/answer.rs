//! What a hook may answer: `{"result": "allow", "user": "ann", "acl": [...], "expire_at": 1767225600}`.

use serde::Deserialize;

/// What it says of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::auth) enum Verdict {
    Allow,
    Deny,
    /// It does not know: somebody else may.
    Ignore,
}

/// A member that is not known here is a fault: rules under a misspelled name would be no rules.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::auth) struct Answer {
    pub(in crate::auth) result: Verdict,
    /// Who it is; unset: the user that the client says.
    #[serde(default)]
    pub(in crate::auth) user: Option<String>,
    /// Rules, as in a token.
    #[serde(default)]
    pub(in crate::auth) acl: Option<serde_json::Value>,
    /// Until when that holds, in seconds since 1970.
    #[serde(default)]
    expire_at: Option<u64>,
}

impl Answer {
    /// `None`: it is no answer.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// Until when it holds, in milliseconds.
    pub(in crate::auth) fn until_ms(&self) -> Option<u64> {
        self.expire_at.map(|sec| sec.saturating_mul(1_000))
    }

    pub(in crate::auth) fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms().is_some_and(|until_ms| until_ms <= now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_none() {
        let read = |text: &str| Answer::read(text.as_bytes());
        let whole = read(r#"{"result":"allow","user":"ann","acl":[],"expire_at":7}"#).expect("an answer");
        assert!(whole.result == Verdict::Allow && whole.is_over(7_000) && !whole.is_over(6_999));
        assert!(read(r#"{"result":"ignore"}"#).is_some_and(|it| !it.is_over(u64::MAX)));
        for text in [
            "",
            "{}",
            "allow",
            r#"{"result":"Allow"}"#,
            r#"{"result":true}"#,
            r#"{"result":"allow","acls":[]}"#,
            r#"{"result":"allow","expire_at":"never"}"#,
            r#"{"result":"allow","expire_at":-1}"#,
            r#"{"result":"deny","result":"allow"}"#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
