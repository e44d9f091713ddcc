//! The description of the API in OpenAPI 3.1, by hand: a few routes are told more exactly so than derived from types.
//! A test holds it against the routes, and the types against its schemas.

mod access;
mod bridge;
mod queue;
mod watch;

use axum::Json;
use serde_json::{Value, json};

use session::limits::{
    BOOT_ID_BYTES_MAX, CLIENT_ID_BYTES_MAX, DENY_REASON_BYTES_MAX, NAMESPACE_BYTES_MAX,
    RETIRE_TEXT_BYTES_MAX, UID_BYTES_MAX,
};

use super::sessions::LIMIT_MAX;

pub(super) async fn openapi() -> Json<Value> {
    Json(document())
}

pub(super) fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ExactMQ admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Times are milliseconds since the Unix epoch. Errors are application/problem+json with a `code`. Each call names the \
                            role that its token needs: a viewer reads, an operator also ends sessions and denies, an admin may everything. Answers \
                            have an ETag, which If-None-Match takes.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }],
        "paths": all_paths(),
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas(),
        },
    })
}

fn all_paths() -> Value {
    let mut all = paths();
    for more in [
        backup_paths(),
        cluster_paths(),
        node_paths(),
        job_paths(),
        denied_paths(),
        reload_paths(),
        bridge::paths(),
        queue::paths(),
        watch::paths(),
    ] {
        if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
            all.extend(more);
        }
    }
    access::add(&mut all);
    all
}

fn backup_paths() -> Value {
    let mut responses = answers(
        "",
        text(),
        &[
            ("401", "unauthorized"),
            ("409", "busy: a backup of this node is being made"),
            ("500", "internal"),
            ("503", "unavailable: no majority; audit: it could not be recorded, nothing was made"),
        ],
    );
    responses["200"] = json!({
        "description": "The backup, in pieces while it is made; one that breaks off is none",
        "content": { "application/vnd.exactmq.backup": { "schema": { "type": "string", "contentEncoding": "binary" } } },
    });
    json!({ "/v1/backup": { "post": {
        "summary": "A backup of everything this node holds, for `exactmq restore`; of a cluster, one node's backup has it all",
        "responses": responses,
    } } })
}

fn node_paths() -> Value {
    let mut retired = answers(
        "Retired in every group that knows the boot, now or before",
        reference("RetireAnswer"),
        &[
            ("400", "invalid"),
            ("401", "unauthorized"),
            ("404", "not_found: the node has no such boot"),
            (
                "409",
                "alive: it answers or renewed its lease, nothing was retired; own_boot; no_fence_agent; busy: under way with another proof",
            ),
            ("413", "too_large"),
            ("500", "audit: retired or not, it could not be recorded; internal"),
            (
                "503",
                "unproved: the fence agent failed; unavailable: no majority; partial: `groups` says which group is left, ask again; audit: an earlier record failed, nothing was done",
            ),
        ],
    );
    retired["202"] = json!({
        "description": "After 20 s: it waits for the end of the boot's lease and goes on by itself; ask the same again to wait for it",
        "content": { "application/json": { "schema": reference("RetireWaiting") } },
    });
    json!({
        "/v1/nodes": { "get": {
            "summary": "Nodes and their boots",
            "responses": answers("All nodes", reference("Nodes"), &CALL[1..]),
        } },
        "/v1/nodes/{id}/retire": { "post": {
            "summary": "Retire a boot whose node is gone: its sessions may be taken over, its Wills and expiries run",
            "description": "Takes effect when the lease of the boot and isolation.drift_ms are over, unless `now`: should the proof be wrong, \
                            the node has stopped by itself by then. Repeating it is safe. One of `attest` and `fence_agent` is given.",
            "parameters": [
                { "name": "id", "in": "path", "required": true, "schema": counter(1) },
            ],
            "requestBody": { "required": true, "content": { "application/json": { "schema": reference("RetireRequest") } } },
            "responses": retired,
        } },
    })
}

fn cluster_paths() -> Value {
    json!({
        "/v1/cluster": { "get": {
            "summary": "The cluster as this node sees it: nodes, and per group leader, voters and lag",
            "responses": answers("The cluster", json!({ "type": "object" }), &CALL[1..]),
        } },
        "/v1/cluster/init": { "post": {
            "summary": "Make this node the first of a cluster; repeating it changes nothing, one that joined a cluster refuses",
            "responses": answers("It is", json!({ "type": "object" }), CLUSTER_CHANGE),
        } },
        "/v1/cluster/join": { "post": {
            "summary": "Begin to join the cluster of a member; the node starts anew, GET /v1/cluster says when it is done",
            "requestBody": { "required": true, "content": { "application/json": { "schema": request(&[("seed", json!({ "type": "string", "pattern": "^[A-Za-z0-9.-]{1,253}:[1-9][0-9]{0,3}$" }))], &["seed"]) } } },
            "responses": answers("Begun", json!({ "type": "object" }), CLUSTER_CHANGE),
        } },
        "/v1/cluster/remove": { "post": {
            "summary": "Take another node out of every group; `unretired` are boots of it that keep sessions from being taken over until they are retired",
            "requestBody": { "required": true, "content": { "application/json": { "schema": request(&[("node_id", counter(1))], &["node_id"]) } } },
            "responses": answers("Done", json!({ "type": "object" }), CLUSTER_CHANGE),
        } },
    })
}

fn reload_paths() -> Value {
    json!({
        "/v1/reload": { "post": {
            "summary": "Read the configuration and the files of users and rules again, as SIGHUP does; what was changed acts at once",
            "responses": answers(
                "Reloaded",
                reference("Reload"),
                &[
                    ("401", "unauthorized"),
                    ("409", "faulty: nothing was changed; the detail says what is wrong"),
                    ("500", "audit: done, but not recorded; internal"),
                    ("503", "unavailable; audit: an earlier record failed, nothing was done"),
                ],
            ),
        } },
    })
}

fn job_paths() -> Value {
    let mut begun = answers(
        "",
        reference("Job"),
        &[
            ("400", "invalid"),
            ("401", "unauthorized"),
            ("409", "busy: too many jobs run"),
            ("413", "too_large"),
            ("500", "internal"),
            ("503", "job, audit: it could not be recorded, nothing was done"),
        ],
    );
    begun["202"] = begun["200"].take();
    begun["202"]["description"] = json!("Begun; GET /v1/end/{job} tells how far it is");
    if let Value::Object(begun) = &mut begun {
        begun.remove("200");
    }
    json!({
        "/v1/end": {
            "get": {
                "summary": "Jobs of bulk End, newest first",
                "responses": answers("The last jobs of this node", reference("Jobs"), &CALL[1..2]),
            },
            "post": {
                "summary": "End all sessions of a user, of a prefix of ClientIDs, or of a list, each by its exact owner; with `deny` nobody of them connects again",
                "requestBody": { "required": true, "content": { "application/json": { "schema": reference("JobRequest") } } },
                "responses": begun,
            },
        },
        "/v1/end/{job}": { "get": {
            "summary": "One job, with a result for each session",
            "parameters": [
                { "name": "job", "in": "path", "required": true, "schema": counter(0) },
                parameter("only", "query", json!({ "enum": ["failed"] })),
                parameter("limit", "query", json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 })),
                parameter("cursor", "query", json!({ "type": "string" })),
            ],
            "responses": answers("The job", reference("JobDetail"), &[
                CALL[0], CALL[1], ("404", "not_found"), ("500", "job, internal"),
            ]),
        } },
    })
}

fn denied_paths() -> Value {
    let named = |name: &str| parameter(name, "query", identity(CLIENT_ID_BYTES_MAX));
    let change = [
        CALL[0],
        CALL[1],
        ("409", "limit"),
        ("413", "too_large"),
        ("500", "audit, internal"),
        ("503", "unavailable, audit"),
    ];
    let removed =
        [CALL[0], CALL[1], ("404", "not_found"), ("500", "audit, internal"), ("503", "unavailable, audit")];
    json!({
        "/v1/denied": {
            "get": {
                "summary": "Users and ClientIDs that may not connect",
                "parameters": [
                    parameter("limit", "query", json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 })),
                    parameter("cursor", "query", text()),
                ],
                "responses": answers("A page", reference("DeniedList"), &CALL),
            },
            "post": {
                "summary": "Deny a user, or a ClientID: it does not connect any more. Sessions that are there stay; end them with /v1/end",
                "requestBody": { "required": true, "content": { "application/json": { "schema": reference("DenyRequest") } } },
                "responses": answers("Denied", object(&[("denied", flag())]), &change),
            },
            "delete": {
                "summary": "Let a user, or a ClientID, connect again",
                "parameters": [named("user"), named("client_id"), named("namespace")],
                "responses": answers("It may", object(&[("removed", flag())]), &removed),
            },
        },
    })
}

fn paths() -> Value {
    let html = json!({ "200": { "description": "HTML", "content": { "text/html": {} } } });
    let text =
        json!({ "200": { "description": "Prometheus text format 0.0.4", "content": { "text/plain": {} } } });
    let limit = parameter(
        "limit",
        "query",
        json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 }),
    );
    let cursor = parameter(
        "cursor",
        "query",
        json!({ "type": "string", "description": "As the page before gave it" }),
    );
    let text_filter = |name| parameter(name, "query", json!({ "type": "string" }));
    let state = parameter("state", "query", json!({ "enum": ["active", "offline", "ended"] }));
    let node = parameter("node", "query", counter(0));
    json!({
        "/": { "get": open("The dashboard", html) },
        "/assets/{name}": { "get": with_name(open("A part of the dashboard", json!({
            "200": { "description": "Script, style or picture", "content": { "text/javascript": {}, "text/css": {}, "image/svg+xml": {} } },
            "304": { "description": "As it was with this ETag" },
            "404": { "description": "no_route", "content": { "application/problem+json": { "schema": reference("Problem") } } },
        }))) },
        "/openapi.json": { "get": open("This document", answers("OpenAPI 3.1", json!({ "type": "object" }), &[])) },
        "/health/live": { "get": open("The process runs", answers("It does", json!({ "type": "object" }), &[])) },
        "/health/ready": { "get": open(
            "The node serves clients",
            answers("It does", json!({ "type": "object" }), &[("503", "not_ready; `failing` names the checks")]),
        ) },
        "/metrics": { "get": open("Prometheus; needs the token when admin.metrics_token is set", text) },
        "/v1/sessions": { "get": {
            "summary": "Page of sessions, by namespace and ClientID",
            "parameters": [
                text_filter("namespace"), state, text_filter("user"), node, text_filter("prefix"), limit, cursor,
            ],
            "responses": answers("A page, maybe short; go on while cursor is not null", reference("Sessions"), &CALL),
        } },
        "/v1/sessions/{client_id}": { "get": {
            "summary": "One session",
            "parameters": of_session(),
            "responses": answers("The session", reference("SessionDetail"), &[CALL[0], CALL[1], CALL[2], ("404", "not_found")]),
        } },
        "/v1/sessions/{client_id}/end": { "post": {
            "summary": "End a session: its socket is closed, nothing of it runs any more, its Will is ready or suppressed",
            "parameters": of_session(),
            "requestBody": { "required": true, "content": { "application/json": { "schema": reference("EndRequest") } } },
            "responses": answers("Ended", reference("EndAnswer"), &[
                ("400", "invalid"), ("401", "unauthorized"), ("404", "not_found"),
                ("409", "fenced; `current` names the owner that has the session now"), ("413", "too_large"),
                ("500", "audit: ended or not, it could not be recorded; internal"),
                ("503", "unproved, close, deadline, unavailable; audit: an earlier record failed, nothing was done"),
            ]),
        } },
        "/v1/whoami": { "get": {
            "summary": "Name and role of the token that is used",
            "responses": answers("The token", reference("Who"), &CALL[1..2]),
        } },
        "/v1/audit": { "get": {
            "summary": "Who ended or retired what, when, why, with which result; newest first",
            "parameters": [
                text_filter("action"), text_filter("client_id"), text_filter("result"),
                parameter("limit", "query", json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 })),
                parameter("cursor", "query", json!({ "type": "string" })),
            ],
            "responses": answers("A page", reference("Audit"), &[CALL[0], CALL[1], ("500", "audit")]),
        } },
    })
}

/// What every call may answer.
const CALL: [(&str, &str); 3] = [("400", "invalid"), ("401", "unauthorized"), ("503", "unavailable")];

/// What a change of the cluster may answer.
const CLUSTER_CHANGE: &[(&str, &str)] = &[
    ("400", "invalid"),
    ("401", "unauthorized"),
    ("409", "no_peer_port, refused"),
    ("500", "audit: it could not be recorded; internal"),
    ("503", "unreachable, unavailable, partial; audit: an earlier record failed, nothing was done"),
];

fn of_session() -> Value {
    json!([
        { "name": "client_id", "in": "path", "required": true, "schema": identity(CLIENT_ID_BYTES_MAX),
          "description": "Percent-encoded: `a/b` is `a%2Fb`" },
        parameter("namespace", "query", identity(NAMESPACE_BYTES_MAX)),
    ])
}

fn parameter(name: &str, place: &str, schema: Value) -> Value {
    json!({ "name": name, "in": place, "schema": schema })
}

fn with_name(mut call: Value) -> Value {
    call["parameters"] = json!([{ "name": "name", "in": "path", "required": true, "schema": text() }]);
    call
}

/// A call that needs no token.
fn open(summary: &str, responses: Value) -> Value {
    json!({ "summary": summary, "security": [], "responses": responses })
}

fn answers(success: &str, schema: Value, problems: &[(&str, &str)]) -> Value {
    let mut answers = json!({
        "200": { "description": success, "content": { "application/json": { "schema": schema } } },
    });
    for (status, codes) in problems {
        answers[*status] = json!({
            "description": codes, "content": { "application/problem+json": { "schema": reference("Problem") } },
        });
    }
    answers
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn object(properties: &[(&str, Value)]) -> Value {
    let map: serde_json::Map<_, _> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<_> = properties.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": map, "required": required })
}

fn text() -> Value {
    json!({ "type": "string" })
}

/// A name as [`session::id::check_identity`] takes it; the bound is in bytes there.
fn identity(bytes_max: usize) -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": bytes_max, "pattern": "^[^\\u0000]*[^\\s\\u0000][^\\u0000]*$",
    })
}

/// A number that a caller gives: from `least` on, as far as 64 bits go.
fn counter(least: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": u64::MAX })
}

/// An object of which everything may be left out but `required`, and to which nothing may be added.
fn request(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let mut request = object(properties);
    request["required"] = json!(required);
    request["additionalProperties"] = json!(false);
    request
}

/// The same, or `null`, which is as if it were not there.
fn or_null(mut schema: Value) -> Value {
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
        return schema;
    }
    match schema.get_mut("type") {
        Some(kind) => *kind = json!([kind.take(), "null"]),
        None => schema = json!({ "anyOf": [schema, { "type": "null" }] }),
    }
    schema
}

/// `name` is there, and none of `others` is.
fn only(name: &str, others: &[&str]) -> Value {
    let mut properties = json!({ name: { "not": { "type": "null" } } });
    for other in others {
        properties[*other] = json!({ "type": "null" });
    }
    json!({ "required": [name], "properties": properties })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn maybe(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn maybe_one(name: &str) -> Value {
    json!({ "anyOf": [reference(name), { "type": "null" }] })
}

fn list(name: &str) -> Value {
    json!({ "type": "array", "items": reference(name) })
}

fn schemas() -> Value {
    let mut schemas = session_schemas();
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    let reload = [("changed", texts.clone()), ("needs_restart", texts.clone()), ("failed", texts)];
    schemas.push(("Reload", object(&reload)));
    schemas.push(("Who", object(&[("name", text()), ("role", access::roles())])));
    let others = node_schemas()
        .into_iter()
        .chain(end_schemas())
        .chain(job_schemas())
        .chain(bridge::schemas())
        .chain(queue::schemas())
        .chain(watch::schemas());
    schemas.extend(others);
    schemas
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn session_schemas() -> Vec<(&'static str, Value)> {
    let owner = [
        ("namespace", text()),
        ("client_id", text()),
        ("session_generation", number()),
        ("owner_generation", number()),
        ("node_id", number()),
        ("boot_id", text()),
        ("connection_id", number()),
    ];
    let summary = [
        ("namespace", text()),
        ("client_id", text()),
        ("user", maybe("string")),
        ("state", json!({ "enum": ["active", "offline", "ended"] })),
        ("end_reason", maybe("string")),
        ("node_id", number()),
        ("session_generation", number()),
        ("owner_generation", number()),
        ("revision", number()),
        ("durable", flag()),
        ("expiry_sec", number()),
        ("connected_at_ms", number()),
        ("updated_at_ms", number()),
    ];
    let more = [
        ("owner", reference("Owner")),
        ("offline_expires_at_ms", maybe("integer")),
        ("inbox", maybe_one("Inbox")),
        ("will", maybe_one("Will")),
        ("subscriptions", list("Subscription")),
        ("subscriptions_total", number()),
    ];
    let detail: Vec<_> = summary.iter().cloned().chain(more).collect();
    let inbox = [("messages", number()), ("bytes", number()), ("base", number()), ("end", number())];
    let will = [("phase", text()), ("delay_sec", number()), ("due_at_ms", maybe("integer"))];
    let subscription = [
        ("filter", text()),
        ("qos", number()),
        ("no_local", flag()),
        ("retain_as_published", flag()),
        ("identifier", number()),
    ];
    let exact = [
        ("namespace", identity(NAMESPACE_BYTES_MAX)),
        ("client_id", identity(CLIENT_ID_BYTES_MAX)),
        ("session_generation", counter(1)),
        ("owner_generation", counter(1)),
        ("node_id", counter(1)),
        ("boot_id", identity(BOOT_ID_BYTES_MAX)),
        ("connection_id", counter(1)),
    ];
    let mut tuple = request(&exact, &exact.each_ref().map(|(name, _)| *name));
    tuple["description"] = json!("Of the session that the path names");
    vec![
        ("OwnerTuple", tuple),
        ("Owner", object(&owner)),
        ("SessionSummary", object(&summary)),
        ("Sessions", object(&[("sessions", list("SessionSummary")), ("cursor", maybe("string"))])),
        ("SessionDetail", object(&detail)),
        ("Inbox", object(&inbox)),
        ("Will", object(&will)),
        ("Subscription", object(&subscription)),
    ]
}

fn node_schemas() -> Vec<(&'static str, Value)> {
    let boot = [
        ("boot_id", text()),
        ("current", flag()),
        ("lease_until_ms", number()),
        ("retired_at_ms", maybe("integer")),
        ("retired_by", maybe("string")),
        ("retired_because", maybe("string")),
    ];
    let lease = [("backend", text()), ("state", text()), ("detail", maybe("string"))];
    let mut known_lease =
        json!({ "oneOf": [{ "$ref": "#/components/schemas/NodeLease" }, { "type": "null" }] });
    known_lease["description"] = json!("The lease under which it serves; null: nothing is known of it");
    let node = [
        ("node_id", number()),
        ("local", flag()),
        ("version", maybe("string")),
        ("connections", maybe("integer")),
        ("started_at_ms", maybe("integer")),
        ("lease", known_lease),
        ("boots", list("Boot")),
    ];
    let attest = json!({
        "type": ["string", "null"], "minLength": 1, "maxLength": RETIRE_TEXT_BYTES_MAX,
        "pattern": "^[^\\u0000-\\u001F\\u007F-\\u009F]*[^\\s\\u0000-\\u001F\\u007F-\\u009F][^\\u0000-\\u001F\\u007F-\\u009F]*$",
        "description": "How it is known that nothing of the node runs; one line",
    });
    let mut retire = request(
        &[
            ("boot", identity(BOOT_ID_BYTES_MAX)),
            ("attest", attest),
            ("fence_agent", json!({ "type": "boolean", "default": false })),
            ("now", json!({ "type": "boolean", "default": false })),
        ],
        &["boot"],
    );
    let by_word = json!({ "attest": { "type": "string" }, "fence_agent": { "const": false } });
    let by_agent = json!({ "attest": { "type": "null" }, "fence_agent": { "const": true } });
    retire["oneOf"] = json!([
        { "required": ["attest"], "properties": by_word },
        { "required": ["fence_agent"], "properties": by_agent },
    ]);
    let group = [("group", number()), ("outcome", text()), ("detail", maybe("string"))];
    let answer = [
        ("node_id", number()),
        ("boot_id", text()),
        ("retired_by", text()),
        ("unchanged", flag()),
        ("groups", list("RetireGroup")),
    ];
    vec![
        ("Boot", object(&boot)),
        ("NodeLease", object(&lease)),
        ("Node", object(&node)),
        ("Nodes", object(&[("nodes", list("Node"))])),
        ("RetireRequest", retire),
        ("RetireGroup", object(&group)),
        ("RetireAnswer", object(&answer)),
        ("RetireWaiting", object(&[("state", text()), ("remaining_ms", number())])),
    ]
}

fn deny_request() -> Value {
    let mut deny = request(
        &[
            ("user", or_null(identity(UID_BYTES_MAX))),
            ("client_id", or_null(identity(CLIENT_ID_BYTES_MAX))),
            ("namespace", or_null(identity(NAMESPACE_BYTES_MAX))),
            ("reason", or_null(json!({ "type": "string", "maxLength": DENY_REASON_BYTES_MAX }))),
            ("until_ms", or_null(counter(0))),
        ],
        &[],
    );
    deny["oneOf"] = json!([only("user", &["client_id", "namespace"]), only("client_id", &["user"])]);
    deny
}

fn job_schemas() -> Vec<(&'static str, Value)> {
    let reasons = json!({ "enum": ["revoked", "quota", "source_lost", "explicit"] });
    let client_id = || identity(CLIENT_ID_BYTES_MAX);
    let client_ids = json!({ "type": "array", "items": client_id(), "minItems": 1, "maxItems": 10_000 });
    let mut end_all = request(
        &[
            ("user", or_null(identity(UID_BYTES_MAX))),
            ("prefix", or_null(client_id())),
            ("client_ids", or_null(client_ids)),
            ("namespace", or_null(identity(NAMESPACE_BYTES_MAX))),
            ("reason", reasons),
            ("will", or_null(json!({ "enum": ["publish", "suppress"], "default": "publish" }))),
            ("release", json!({ "type": "boolean", "default": false })),
            ("deny", json!({ "type": "boolean", "default": false })),
        ],
        &["reason"],
    );
    let mut of_prefix = only("prefix", &["user", "client_ids"]);
    of_prefix["properties"]["deny"] = json!({ "const": false });
    end_all["oneOf"] =
        json!([only("user", &["prefix", "client_ids"]), of_prefix, only("client_ids", &["user", "prefix"])]);
    let job = [
        ("job", number()),
        ("state", json!({ "enum": ["running", "done", "failed", "interrupted"] })),
        ("detail", maybe("string")),
        ("who", text()),
        ("at_ms", number()),
        ("finished_at_ms", maybe("integer")),
        ("request", reference("JobRequest")),
        ("ended", number()),
        ("gone", number()),
        ("failed", number()),
    ];
    let result = [
        ("namespace", text()),
        ("client_id", text()),
        ("result", text()),
        ("revision", maybe("integer")),
        ("detail", maybe("string")),
    ];
    let more = [("results", list("JobResult")), ("cursor", maybe("string"))];
    let detail: Vec<_> = job.iter().cloned().chain(more).collect();
    let denied = [
        ("user", maybe("string")),
        ("namespace", maybe("string")),
        ("client_id", maybe("string")),
        ("since_ms", number()),
        ("until_ms", maybe("integer")),
        ("reason", text()),
        ("complete", flag()),
    ];
    vec![
        ("JobRequest", end_all),
        ("Job", object(&job)),
        ("JobDetail", object(&detail)),
        ("JobResult", object(&result)),
        ("Jobs", object(&[("jobs", list("Job"))])),
        ("Denied", object(&denied)),
        ("DeniedList", object(&[("denied", list("Denied")), ("cursor", maybe("string"))])),
        ("DenyRequest", deny_request()),
    ]
}

fn end_schemas() -> Vec<(&'static str, Value)> {
    let end = request(
        &[
            ("reason", json!({ "enum": ["revoked", "quota", "source_lost", "explicit"] })),
            ("owner", or_null(reference("OwnerTuple"))),
            ("will", or_null(json!({ "enum": ["publish", "suppress"], "default": "publish" }))),
            ("release", json!({ "type": "boolean", "default": false })),
            ("deny", json!({ "type": "boolean", "default": false })),
        ],
        &["reason"],
    );
    let record = [
        ("seq", number()),
        ("at_ms", number()),
        ("action", text()),
        ("who", text()),
        ("namespace", text()),
        ("client_id", text()),
        ("subject", maybe("string")),
        ("owner", maybe_one("Owner")),
        ("reason", text()),
        ("will", text()),
        ("release", flag()),
        ("result", text()),
        ("revision", maybe("integer")),
        ("node_id", maybe("integer")),
        ("boot_id", maybe("string")),
        ("waited", maybe("boolean")),
        ("detail", maybe("string")),
    ];
    let problem =
        [("type", text()), ("title", text()), ("status", number()), ("code", text()), ("detail", text())];
    vec![
        ("EndRequest", end),
        ("EndAnswer", object(&[("revision", number()), ("owner", reference("Owner"))])),
        ("AuditRecord", object(&record)),
        ("Audit", object(&[("records", list("AuditRecord")), ("cursor", maybe("string"))])),
        ("Problem", object(&problem)),
    ]
}
