//! The calls about the cluster: who is in it, init, join, remove.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{AdminState, Problem};
use crate::cluster::join::JoinError;
use crate::cluster::{ClusterView, Member};
use crate::config::HostPort;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinRequest {
    seed: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveRequest {
    node_id: u64,
}

impl From<JoinError> for Problem {
    fn from(error: JoinError) -> Self {
        let detail = error.to_string();
        match error {
            JoinError::NoPeerPort => Self::new(409, "no_peer_port", detail),
            JoinError::Refused(_) => Self::new(409, "refused", detail),
            JoinError::Unreachable { .. } => Self::new(503, "unreachable", detail),
            JoinError::Io(_) => Self::new(500, "internal", detail),
        }
    }
}

fn member(state: &AdminState) -> Result<Arc<Member>, Problem> {
    state.port.cluster().ok_or_else(|| Problem::new(503, "unavailable", "nothing is known of a cluster here"))
}

fn read<'a, T: Deserialize<'a>>(body: &'a Bytes, form: &str) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::invalid(format!("the body is not {form}: {error}")))
}

pub(super) async fn show(State(state): State<AdminState>) -> Result<Json<ClusterView>, Problem> {
    Ok(Json(member(&state)?.view()))
}

pub(super) async fn init(State(state): State<AdminState>) -> Result<Json<Value>, Problem> {
    let member = member(&state)?;
    // In a task of its own, as the others: a caller that hangs up does not stop it half way.
    let done = tokio::spawn(async move { member.init().await }).await;
    let address = done.map_err(|_| Problem::new(500, "internal", "the call failed"))??;
    Ok(Json(json!({ "state": "member", "address": address })))
}

pub(super) async fn join(State(state): State<AdminState>, body: Bytes) -> Result<Json<Value>, Problem> {
    let request: JoinRequest = read(&body, "{\"seed\": \"HOST:PORT\"}")?;
    let seed = HostPort::new(&request.seed)
        .ok_or_else(|| Problem::invalid(format!("seed {:?} is not HOST:PORT", request.seed)))?;
    let member = member(&state)?;
    let done = tokio::spawn(async move { member.join(&seed.0).await }).await;
    done.map_err(|_| Problem::new(500, "internal", "the call failed"))??;
    Ok(Json(json!({ "state": "joining" })))
}

pub(super) async fn remove(State(state): State<AdminState>, body: Bytes) -> Result<Json<Value>, Problem> {
    let request: RemoveRequest = read(&body, "{\"node_id\": N}")?;
    let member = member(&state)?;
    let done = tokio::spawn(async move { member.remove(request.node_id).await }).await;
    done.map_err(|_| Problem::new(500, "internal", "the call failed"))??;
    Ok(Json(json!({ "removed": request.node_id })))
}
