//! The calls about the cluster: who is in it, init, join, remove.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::audit::{self, AuditRecord};
use super::model::object;
use super::role::Caller;
use super::{AdminState, NodeView, Problem};
use crate::cluster::join::JoinError;
use crate::cluster::{ClusterView, Member};
use crate::config::HostPort;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InitRequest {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinRequest {
    seed: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveRequest {
    #[serde(deserialize_with = "super::model::whole")]
    node_id: u64,
}

/// Answer of a removal that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveAnswer {
    pub removed: u64,
    /// Boots of the node that nothing proves to be over, newest first: each holds its sessions until it is retired.
    pub unretired: Vec<UnretiredBoot>,
    /// What that means and what to do; `None`: nothing.
    pub note: Option<String>,
}

/// A boot of a removed node that may still run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnretiredBoot {
    pub boot_id: Arc<str>,
    /// The command that retires it, for whoever knows that nothing of it runs.
    pub retire: String,
}

impl RemoveAnswer {
    /// `nodes` as they are known after the removal.
    fn new(node_id: u64, nodes: Vec<NodeView>) -> Self {
        let boots = nodes.into_iter().filter(|node| node.node_id == node_id).flat_map(|node| node.boots);
        let boots = boots.filter(|boot| boot.retired_at_ms.is_none());
        let unretired: Vec<UnretiredBoot> = boots
            .map(|boot| UnretiredBoot {
                retire: format!(
                    "exactmq node retire {node_id} --boot {} --attest \"how you know that nothing of it runs\"",
                    boot.boot_id
                ),
                boot_id: boot.boot_id,
            })
            .collect();
        let note = unretired.first().map(|newest| {
            format!(
                "boot {} of node {node_id} is not retired: CONNECTs for its sessions are refused (0x88) on the other nodes, because \
                 it may still serve them. A node that is stopped in order (SIGTERM) before it is removed leaves nothing behind; now stop \
                 it, then retire the boot",
                newest.boot_id
            )
        });
        Self { removed: node_id, unretired, note }
    }
}

impl From<JoinError> for Problem {
    fn from(error: JoinError) -> Self {
        let detail = error.to_string();
        match error {
            JoinError::NoPeerPort => Self::new(409, "no_peer_port", detail),
            JoinError::Refused(_) => Self::new(409, "refused", detail),
            JoinError::HalfDone(_) => Self::new(503, "partial", detail),
            JoinError::Unreachable { .. } => Self::new(503, "unreachable", detail),
            JoinError::Io(_) => Self::new(500, "internal", detail),
        }
    }
}

fn member(state: &AdminState) -> Result<Arc<Member>, Problem> {
    state.port.cluster().ok_or_else(|| Problem::new(503, "unavailable", "nothing is known of a cluster here"))
}

fn read<T: DeserializeOwned>(body: &Bytes, form: &str) -> Result<T, Problem> {
    object(body).map_err(|what| Problem::invalid(format!("the body is not {form}: {what}")))
}

pub(super) async fn show(State(state): State<AdminState>) -> Result<Json<ClusterView>, Problem> {
    Ok(Json(member(&state)?.view()))
}

/// Changes the cluster, and puts it on record whatever came of it.
async fn recorded<T: Send + 'static>(
    state: AdminState,
    record: AuditRecord,
    change: impl Future<Output = Result<T, JoinError>> + Send + 'static,
) -> Result<T, Problem> {
    state.audit.check().map_err(|error| Problem::new(503, "audit", error.to_string()))?;
    // In a task of its own: a caller that hangs up does not stop it half way, nor keep it out of the audit log.
    let task = tokio::spawn(async move {
        let done = change.await;
        let detail = done.as_ref().err().map(ToString::to_string);
        let done = done.map_err(Problem::from);
        let result = done.as_ref().map_or_else(|problem| problem.code().to_owned(), |_| "done".to_owned());
        let written = audit::append(&state.audit, vec![AuditRecord { result, detail, ..record }]).await;
        written.map_err(|error| {
            let what = if done.is_ok() { "it is done, but " } else { "" };
            Problem::new(500, "audit", format!("{what}{error}"))
        })?;
        done
    });
    task.await.unwrap_or_else(|_| Err(Problem::new(500, "internal", "the call failed")))
}

pub(super) async fn init(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    if !body.is_empty() {
        let InitRequest {} = read(&body, "empty or {}")?;
    }
    let member = member(&state)?;
    let record = AuditRecord::of("cluster.init", &caller.who());
    let address = recorded(state, record, async move { member.init().await }).await?;
    Ok(Json(json!({ "state": "member", "address": address })))
}

pub(super) async fn join(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let request: JoinRequest = read(&body, "{\"seed\": \"HOST:PORT\"}")?;
    let seed = HostPort::new(&request.seed)
        .ok_or_else(|| Problem::invalid(format!("seed {:?} is not HOST:PORT", request.seed)))?;
    let member = member(&state)?;
    let subject = Some(format!("the cluster of {}", seed.0));
    let record = AuditRecord { subject, ..AuditRecord::of("cluster.join", &caller.who()) };
    recorded(state, record, async move { member.join(&seed.0).await }).await?;
    Ok(Json(json!({ "state": "joining" })))
}

pub(super) async fn remove(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<RemoveAnswer>, Problem> {
    let request: RemoveRequest = read(&body, "{\"node_id\": N}")?;
    let member = member(&state)?;
    let node_id = Some(request.node_id);
    let record = AuditRecord { node_id, ..AuditRecord::of("cluster.remove", &caller.who()) };
    recorded(state.clone(), record, async move { member.remove(request.node_id).await }).await?;
    Ok(Json(RemoveAnswer::new(request.node_id, state.port.nodes().await?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::BootView;

    /// M2 of the operator's promises: a removal names the boots that keep sessions from being taken over, and those only.
    #[test]
    fn a_removal_names_the_boots_that_are_not_retired() {
        let boot = |id: &str, retired_at_ms| BootView {
            current: false,
            boot_id: id.into(),
            lease_until_ms: 1,
            retired_at_ms,
            retired_by: None,
            retired_because: None,
        };
        let node = |node_id, boots| NodeView {
            node_id,
            local: false,
            version: None,
            connections: None,
            started_at_ms: None,
            lease: None,
            boots,
        };
        let nodes = vec![
            node(1, vec![boot("of-1", None)]),
            node(2, vec![boot("new", None), boot("old", Some(7))]),
            node(3, vec![boot("over", Some(7))]),
        ];
        let answer = RemoveAnswer::new(2, nodes.clone());
        let named: Vec<&str> = answer.unretired.iter().map(|boot| &*boot.boot_id).collect();
        assert_eq!(named, ["new"]);
        assert!(answer.unretired[0].retire.starts_with("exactmq node retire 2 --boot new --attest \""));
        let note = answer.note.expect("something is to be done");
        assert!(note.contains("boot new of node 2") && note.contains("SIGTERM"), "{note}");
        for over in [3, 4] {
            let answer = RemoveAnswer::new(over, nodes.clone());
            assert_eq!((answer.unretired, answer.note), (Vec::new(), None));
        }
    }
}
