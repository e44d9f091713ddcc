//! What a CONNECT presents, and who turned out to be there.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use gateway::codec::ReasonCode;
use session::time::Millis;

use super::grants::{Brought, ClientRules};
use super::jwt::KeyMark;

/// What a CONNECT presents.
#[derive(Clone)]
pub struct Credentials {
    pub user_name: Option<Arc<str>>,
    /// Any bytes (MQTT 5 §3.1.3.6).
    pub password: Option<Bytes>,
    /// Common name of the verified client certificate.
    pub certificate_cn: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub peer: SocketAddr,
    /// Wall clock, for what is good until some time.
    pub now: Millis,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("Credentials")
            .field("user_name", &self.user_name)
            .field("password", &password)
            .field("certificate_cn", &self.certificate_cn)
            .field("client_id", &self.client_id)
            .field("peer", &self.peer)
            .finish()
    }
}

/// How a connection proved who it is: what has to go on being true for it to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A password, or nothing for the anonymous user. `certified`: the client's certificate names the same user.
    Login { certified: bool },
    /// A token that was signed with this key.
    Token(KeyMark),
    /// A SCRAM exchange.
    Scram,
    /// A hook said so.
    Hook,
    /// It is a bridge of this node, and part of its process.
    Bridge,
}

/// An authenticated user, and what holds for its connection. A name that nothing verified never gets here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// `None`: the anonymous one.
    pub user: Option<Arc<str>>,
    pub proof: Proof,
    /// The proof is good until then; `None`: for as long as the configuration says so.
    pub until: Option<Millis>,
    /// Rules that came with the proof.
    pub rules: Option<Arc<ClientRules>>,
}

impl Principal {
    /// Somebody whose proof does not end by itself.
    #[must_use]
    pub fn new(user: Option<Arc<str>>, proof: Proof) -> Self {
        Self { user, proof, until: None, rules: None }
    }

    /// What it brought.
    #[must_use]
    pub fn brought(&self) -> Brought {
        Brought::Known(self.rules.clone())
    }
}

/// Why a client is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("user name or password is wrong")]
    BadCredentials,
    #[error("credentials are needed")]
    NotAuthorized,
    /// Too many password checks wait.
    #[error("too many clients are being authenticated; try again")]
    Busy,
    /// Who could say does not answer.
    #[error("nobody can say who you are now; try again")]
    Unavailable,
    #[error("the authentication method is not known here")]
    UnknownMethod,
}

impl Denied {
    /// For CONNACK; 3.1.1 return codes 4, 5 and 3.
    #[must_use]
    pub const fn reason(self) -> ReasonCode {
        match self {
            Self::BadCredentials => ReasonCode::BadUserNameOrPassword,
            Self::NotAuthorized => ReasonCode::NotAuthorized,
            Self::Busy => ReasonCode::ServerBusy,
            Self::Unavailable => ReasonCode::ServerUnavailable,
            Self::UnknownMethod => ReasonCode::BadAuthenticationMethod,
        }
    }
}
