//! Who calls, and what that one may do: every call needs a role, and says so in the OpenAPI document.
//!
//! ```text
//! viewer ⊂ operator ⊂ admin
//! ```
//! A viewer reads. An operator also ends sessions and denies. An admin also does what changes the cluster or hands out everything: it
//! retires boots, changes who is in the cluster, reloads, and takes backups.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, Extension, Request, State};
use axum::http::Method;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::Problem;
use super::callers::Callers;
use super::listener::Peer;
use super::table::{Word as _, words};

words! {
    /// What a token is good for; each may what those before it may.
    pub Role { Viewer = "viewer", Operator = "operator", Admin = "admin" }
}

/// Paths that are open to everybody; `/metrics` unless `admin.metrics_token` is set.
const OPEN: [&str; 6] = ["/", "/assets/{name}", "/openapi.json", "/health/live", "/health/ready", "/metrics"];

/// Whether nobody has to say who it is.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

/// What a call needs. Whatever is not named here needs most.
pub(super) fn needed(path: &str, method: &str) -> Role {
    match (method, path) {
        ("GET" | "HEAD", _) => Role::Viewer,
        ("POST", "/v1/sessions/{client_id}/end" | "/v1/end" | "/v1/denied") | ("DELETE", "/v1/denied") => {
            Role::Operator
        }
        _ => Role::Admin,
    }
}

/// Whoever makes a call, as its token says.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// `None`: it has the token of the first start.
    pub(super) name: Option<Arc<str>>,
    pub(super) role: Role,
    /// SHA-256 of its token.
    pub(super) mark: [u8; 32],
    /// What the call that it makes needs: with less the token is not good for it any more.
    pub(super) needs: Role,
    pub(super) from: SocketAddr,
}

impl Caller {
    /// As the audit log names it.
    pub(super) fn who(&self) -> String {
        match &self.name {
            Some(name) => format!("token {name}, from {}", self.from),
            None => format!("admin token, from {}", self.from),
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(FIRST)
    }
}

/// Name of the token of the first start.
pub(super) const FIRST: &str = "admin";

/// What stands in front of a path.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) callers: Arc<Callers>,
    pub(super) path: &'static str,
}

pub(super) async fn require(
    State(gate): State<Gate>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(AUTHORIZATION);
    let Some(mut caller) = header.and_then(|header| gate.callers.find(header.as_bytes(), peer.0)) else {
        return unknown(header.is_some()).into_response();
    };
    caller.needs = match *request.method() {
        Method::GET | Method::HEAD => needed(gate.path, "GET"),
        ref other => needed(gate.path, other.as_str()),
    };
    if caller.role < caller.needs {
        return forbidden(&caller).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn unknown(has_token: bool) -> Problem {
    let detail = if has_token {
        "this is no token of this node; the first one is in admin.token in the data directory, further ones come from `exactmq token add`"
    } else {
        "send the header `Authorization: Bearer TOKEN`; the first token is in admin.token in the data directory"
    };
    Problem::new(401, "unauthorized", detail)
}

fn forbidden(caller: &Caller) -> Problem {
    let (name, has, needs) = (caller.name(), caller.role.word(), caller.needs.word());
    Problem::new(
        403,
        "forbidden",
        format!("the token {name} has the role {has}, and this call needs {needs}"),
    )
    .with("role", has.into())
    .with("needs", needs.into())
}

/// Answer of `GET /v1/whoami`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoView {
    /// Of the token; `admin` is the one of the first start.
    pub name: String,
    pub role: Role,
}

pub(super) async fn whoami(Extension(caller): Extension<Caller>) -> Json<WhoView> {
    Json(WhoView { name: caller.name().to_owned(), role: caller.role })
}
