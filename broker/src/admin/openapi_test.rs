//! The description tells the truth: every route is in it, and what the types write is what its schemas say.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::model::*;
use super::openapi::document;
use super::*;

#[test]
fn the_document_has_exactly_the_routes() {
    let served: BTreeSet<&str> = routes().into_iter().map(|(path, _)| path).collect();
    let document = document();
    let told: BTreeSet<&str> =
        document["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
    assert_eq!(served, told);
    for path in served {
        let is_open = role::is_open(path);
        for (method, call) in document["paths"][path].as_object().expect("a path") {
            assert_eq!(call.get("security") == Some(&json!([])), is_open, "{path}");
            assert_eq!(call["responses"].get("401").is_some(), !is_open, "{path}");
            let role = (!is_open).then(|| role::needed(path, &method.to_uppercase()));
            assert_eq!(call.get("x-role"), role.map(|role| json!(role.word())).as_ref(), "{method} {path}");
            let may_be_less = role.is_some_and(|role| role > Role::Viewer);
            assert_eq!(call["responses"].get("403").is_some(), may_be_less, "{method} {path}");
        }
    }
}

/// Every `$ref` leads somewhere.
#[test]
fn the_document_has_no_dangling_reference() {
    fn walk(value: &Value, schemas: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                    let name = reference.strip_prefix("#/components/schemas/").expect("a schema");
                    assert!(schemas.get(name).is_some(), "{reference}");
                }
                map.values().for_each(|value| walk(value, schemas));
            }
            Value::Array(list) => list.iter().for_each(|value| walk(value, schemas)),
            _ => (),
        }
    }
    let document = document();
    walk(&document, &document["components"]["schemas"]);
}

fn check_fields(schema: &str, value: &impl serde::Serialize) {
    let document = document();
    let properties = document["components"]["schemas"][schema]["properties"].as_object().expect("an object");
    let told: BTreeSet<&String> = properties.keys().collect();
    let value = serde_json::to_value(value).expect("JSON");
    let written: BTreeSet<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(told, written, "{schema}");
}

fn owner() -> OwnerView {
    OwnerView {
        namespace: "main".into(),
        client_id: "c".into(),
        session_generation: 1,
        owner_generation: 2,
        node_id: 3,
        boot_id: "b".into(),
        connection_id: 4,
    }
}

fn summary() -> SessionSummary {
    SessionSummary {
        namespace: "main".into(),
        client_id: "c".into(),
        user: None,
        state: StateWord::Active,
        end_reason: None,
        node_id: 1,
        session_generation: 1,
        owner_generation: 1,
        revision: 1,
        durable: true,
        expiry_sec: 1,
        connected_at_ms: 1,
        updated_at_ms: 1,
    }
}

#[test]
fn the_schemas_of_sessions_have_exactly_the_fields_that_are_written() {
    let (owner, summary) = (owner(), summary());
    let subscription = SubscriptionView {
        filter: "a".into(),
        qos: 1,
        no_local: false,
        retain_as_published: false,
        identifier: 0,
    };
    let detail = SessionDetail {
        summary: summary.clone(),
        owner: owner.clone(),
        offline_expires_at_ms: None,
        inbox: None,
        will: None,
        subscriptions: vec![subscription.clone()],
        subscriptions_total: 1,
    };
    let request = EndRequest {
        reason: "revoked".to_owned(),
        owner: Some(owner.clone()),
        will: Some("publish".to_owned()),
        release: false,
        deny: false,
    };
    check_fields("Owner", &owner);
    check_fields("SessionSummary", &summary);
    check_fields("Sessions", &SessionsView { sessions: Vec::new(), cursor: None });
    check_fields("SessionDetail", &detail);
    check_fields("Subscription", &subscription);
    check_fields("Inbox", &InboxView::default());
    check_fields("Will", &WillView { phase: "armed".to_owned(), delay_sec: 0, due_at_ms: None });
    check_fields("EndRequest", &request);
    check_fields("EndAnswer", &EndAnswer { revision: 1, owner });
    check_fields("AuditRecord", &audit_test::record("c"));
    check_fields("Audit", &AuditPage { records: Vec::new(), cursor: None });
}

#[test]
fn the_schemas_of_nodes_have_exactly_the_fields_that_are_written() {
    let boot = BootView {
        boot_id: "b".into(),
        current: true,
        lease_until_ms: 1,
        retired_at_ms: None,
        retired_by: None,
        retired_because: None,
    };
    let retire = RetireRequest { boot: "b".to_owned(), attest: None, fence_agent: true, now: false };
    let group = RetireGroup { group: 0, outcome: "retired".to_owned(), detail: None };
    let retired = RetireAnswer {
        node_id: 1,
        boot_id: "b".into(),
        retired_by: "attested".to_owned(),
        unchanged: false,
        groups: vec![group.clone()],
    };
    let lease = NodeLeaseView { backend: "etcd".to_owned(), state: "lost".to_owned(), detail: None };
    let node = NodeView {
        node_id: 1,
        local: true,
        version: None,
        connections: None,
        started_at_ms: None,
        lease: Some(lease.clone()),
        boots: vec![boot.clone()],
    };
    check_fields("RetireRequest", &retire);
    check_fields("RetireGroup", &group);
    check_fields("RetireAnswer", &retired);
    check_fields("RetireWaiting", &RetireWaiting { state: "waiting".to_owned(), remaining_ms: 1 });
    check_fields("Boot", &boot);
    check_fields("NodeLease", &lease);
    check_fields("Node", &node);
    check_fields("Nodes", &NodesView { nodes: Vec::new() });
}

#[test]
fn the_schemas_of_jobs_and_denials_have_exactly_the_fields_that_are_written() {
    let job_request = JobRequest {
        user: Some("u".into()),
        prefix: Some("p".into()),
        client_ids: Some(vec!["c".into()]),
        namespace: Some("main".into()),
        reason: "revoked".to_owned(),
        will: Some("publish".to_owned()),
        release: false,
        deny: false,
    };
    let job = JobView {
        job: 1,
        state: JobState::Done,
        detail: None,
        who: String::new(),
        at_ms: 1,
        finished_at_ms: None,
        request: job_request.clone(),
        ended: 0,
        gone: 0,
        failed: 0,
    };
    let result = JobResult {
        namespace: "main".into(),
        client_id: "c".into(),
        result: "ended".to_owned(),
        revision: Some(1),
        detail: None,
    };
    let denied = DeniedView {
        user: None,
        namespace: None,
        client_id: None,
        since_ms: 1,
        until_ms: None,
        reason: "".into(),
        complete: true,
    };
    let deny = DenyRequest {
        user: Some("u".into()),
        client_id: Some("c".into()),
        namespace: Some("main".into()),
        reason: Some("r".into()),
        until_ms: Some(1),
    };
    check_fields("JobRequest", &job_request);
    check_fields("Job", &job);
    check_fields("JobDetail", &JobDetail { view: job, results: Vec::new(), cursor: None });
    check_fields("JobResult", &result);
    check_fields("Jobs", &JobList { jobs: Vec::new() });
    check_fields("Denied", &denied);
    check_fields("DeniedList", &DeniedList { denied: Vec::new(), cursor: None });
    check_fields("DenyRequest", &deny);
    check_fields("Reload", &ReloadDone::default());
    check_fields("Who", &WhoView { name: "ann".to_owned(), role: Role::Viewer });
}

#[test]
fn the_schemas_of_events_have_exactly_the_fields_that_are_written() {
    check_fields("Event", &crate::events::Event::new(crate::events::EventKind::Connect));
    check_fields("EventHello", &EventHello { node_id: 1, boot_id: "b".into(), missed: None });
}

/// A row of which only what is asked for is known.
fn channel() -> ChannelView {
    let row = json!({
        "channel": "queue/0/1", "kind": "mpsc", "name": null, "namespace": null, "parent": null, "group": 0,
        "state": "open", "sealed_because": null, "consumer": null, "node_id": null, "epoch": null,
        "messages": null, "bytes": null, "base": null, "end": null, "claimed": null, "discarded": null,
        "messages_max": null, "bytes_max": null, "producers": null, "consumers": null, "subchannels": null,
        "ttl_ms": null, "lease": "delegated", "lease_left_ms": null, "created_at_ms": null,
    });
    serde_json::from_value(row).expect("a channel")
}

fn member() -> MemberView {
    let row = json!({
        "member": "member/0/1", "channel": "queue/0/1", "kind": "mpsc", "role": "producer", "status": "alive",
        "name": "p", "namespace": null, "node_id": null, "epoch": null, "weight": 1, "credit": null,
        "claims": null, "in_flight": null, "appends": 1, "waiting": false, "lease": "held", "lease_left_ms": 1,
        "standing": "at_risk", "keepalive_lag_ms": 1, "since_ms": 1,
    });
    serde_json::from_value(row).expect("a member")
}

#[test]
fn the_schemas_of_queues_have_exactly_the_fields_that_are_written() {
    check_fields("Channel", &channel());
    check_fields("Channels", &ChannelsView { channels: Vec::new(), cursor: None });
    check_fields("Member", &member());
    check_fields("Members", &MembersView { members: Vec::new(), cursor: None });
}

/// What a table is sorted by is a field of its rows.
#[test]
fn every_column_is_a_field() {
    let (channel, member) = (channel(), member());
    let fields = |row: Value| row.as_object().expect("an object").clone();
    let (channel, member) = (serde_json::to_value(channel), serde_json::to_value(member));
    let (channel, member) = (fields(channel.expect("JSON")), fields(member.expect("JSON")));
    assert!(ChannelColumn::ALL.iter().all(|column| channel.contains_key(column.word())));
    assert!(MemberColumn::ALL.iter().all(|column| member.contains_key(column.word())));
}
