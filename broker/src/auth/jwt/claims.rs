//! What a token claims (RFC 7519 §4), once its signature is found to be right.

use serde_json::{Map, Value};

use super::TokenFault;
use crate::auth::acl::Who;
use crate::auth::grants::ClientRules;

pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn parse(payload: &[u8]) -> Result<Self, TokenFault> {
        match serde_json::from_slice(payload) {
            Ok(Value::Object(claims)) => Ok(Self(claims)),
            _ => Err(TokenFault::Claims),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// Until when the token is good, in milliseconds, with the leeway for clocks that differ.
    pub(super) fn check_times(
        &self,
        now_ms: u64,
        leeway_sec: u64,
        lifetime_max_sec: Option<u64>,
    ) -> Result<u64, TokenFault> {
        let leeway_ms = leeway_sec * 1_000;
        let until_ms = self.date_ms("exp")?.ok_or(TokenFault::NoExpiry)?.saturating_add(leeway_ms);
        if now_ms >= until_ms {
            return Err(TokenFault::Expired);
        }
        let latest_ms = |max_sec: u64| now_ms.saturating_add((max_sec + leeway_sec) * 1_000);
        // The leeway stands in both: a clock that is behind makes a token seem to last longer.
        if lifetime_max_sec.is_some_and(|max_sec| until_ms - leeway_ms > latest_ms(max_sec)) {
            return Err(TokenFault::TooFar);
        }
        if self.date_ms("nbf")?.is_some_and(|from_ms| now_ms.saturating_add(leeway_ms) < from_ms) {
            return Err(TokenFault::NotYet);
        }
        Ok(until_ms)
    }

    /// A NumericDate: seconds, which may have a fraction.
    fn date_ms(&self, name: &str) -> Result<Option<u64>, TokenFault> {
        let Some(date) = self.0.get(name) else { return Ok(None) };
        if let Some(sec) = date.as_u64() {
            return Ok(Some(sec.saturating_mul(1_000)));
        }
        let sec = date.as_f64().filter(|sec| sec.is_finite() && *sec >= 0.0).ok_or(TokenFault::Claims)?;
        // The cast saturates.
        Ok(Some((sec * 1_000.0) as u64))
    }

    pub(super) fn check_issuer(&self, wanted: Option<&str>) -> Result<(), TokenFault> {
        match wanted {
            Some(wanted) if self.text("iss") != Some(wanted) => Err(TokenFault::Issuer),
            _ => Ok(()),
        }
    }

    /// §4.1.3: a token that names an audience is for nobody else, also where none was configured.
    pub(super) fn check_audience(&self, wanted: Option<&str>) -> Result<(), TokenFault> {
        let named = match (self.0.get("aud"), wanted) {
            (None, None) => return Ok(()),
            (Some(Value::String(audience)), Some(wanted)) => audience == wanted,
            (Some(Value::Array(all)), Some(wanted)) => all.iter().any(|one| one.as_str() == Some(wanted)),
            _ => false,
        };
        if named { Ok(()) } else { Err(TokenFault::Audience) }
    }

    pub(super) fn rules(&self, user: &str, client_id: &str) -> Result<Option<ClientRules>, TokenFault> {
        let Some(list) = self.0.get("acl") else { return Ok(None) };
        let who = Who { user: Some(user), client_id };
        ClientRules::read(list, who).map(Some).ok_or(TokenFault::Rules)
    }
}
