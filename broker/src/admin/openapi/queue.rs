//! What the document says of channels and members.

use serde_json::{Value, json};

use super::super::queues::{
    ChannelColumn, ChannelKind, ChannelState, LeaseWord, MemberColumn, RoleWord, StandingWord, StatusWord,
};
use super::super::sessions::LIMIT_MAX;
use super::super::table::{SORT_MAX, Word};
use super::{CALL, answers, counter, flag, list, maybe, number, object, parameter, reference, text};

pub(super) fn paths() -> Value {
    let text =
        |name: &str, what: &str| parameter(name, "query", json!({ "type": "string", "description": what }));
    let least = |name: &str, what: &str| {
        let mut number = counter(0);
        number["description"] = json!(what);
        parameter(name, "query", number)
    };
    let limit = || {
        parameter(
            "limit",
            "query",
            json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 }),
        )
    };
    let cursor = || text("cursor", "As the page before gave it; with the same sort");
    let name = || text("name", "The name has this in it, in whatever case");
    let busy = [CALL[0], CALL[1], ("409", "limit: too many shared subscriptions to sort"), CALL[2]];
    json!({
        "/v1/channels": { "get": {
            "summary": "Channels: of the queue layer, inboxes of durable sessions, shared subscriptions that these are members of",
            "description": "Each row is exact at the moment it was read. A row whose sorted value changes between two pages may be on both, or on none.",
            "parameters": [
                parameter("kind", "query", one_of::<ChannelKind>()),
                parameter("state", "query", one_of::<ChannelState>()),
                name(),
                least("min_messages", "At least so many messages wait"),
                sort::<ChannelColumn>(),
                limit(),
                cursor(),
            ],
            "responses": answers("A page", reference("Channels"), &busy),
        } },
        "/v1/members": { "get": {
            "summary": "Members of channels: producers, consumers, and the sessions of inboxes and shared subscriptions",
            "parameters": [
                text("channel", "Only of the channel with this id"),
                parameter("kind", "query", one_of::<ChannelKind>()),
                parameter("role", "query", one_of::<RoleWord>()),
                parameter("status", "query", one_of::<StatusWord>()),
                name(),
                least("node", "The owner of the session is, or was, on this node"),
                sort::<MemberColumn>(),
                limit(),
                cursor(),
            ],
            "responses": answers("A page", reference("Members"), &CALL),
        } },
    })
}

fn words<W: Word>() -> Vec<&'static str> {
    W::ALL.iter().map(|word| word.word()).collect()
}

fn one_of<W: Word>() -> Value {
    json!({ "enum": words::<W>() })
}

fn maybe_one_of<W: Word>() -> Value {
    json!({ "anyOf": [one_of::<W>(), { "type": "null" }] })
}

fn sort<W: Word>() -> Value {
    let columns = words::<W>();
    let each = columns.iter().flat_map(|word| ["", ":asc", ":desc"].map(|way| format!("{word}{way}")));
    let what = "Commas between them; no column twice; rows without a value come last";
    json!({
        "name": "sort", "in": "query", "style": "form", "explode": false, "description": what,
        "schema": { "type": "array", "minItems": 1, "maxItems": SORT_MAX, "uniqueItems": true, "items": { "enum": each.collect::<Vec<_>>() } },
    })
}

pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    let channel = [
        ("channel", text()),
        ("kind", one_of::<ChannelKind>()),
        ("name", maybe("string")),
        ("namespace", maybe("string")),
        ("parent", maybe("string")),
        ("group", maybe("integer")),
        ("state", one_of::<ChannelState>()),
        ("sealed_because", maybe("string")),
        ("consumer", maybe("string")),
        ("node_id", maybe("integer")),
        ("epoch", maybe("integer")),
        ("messages", maybe("integer")),
        ("bytes", maybe("integer")),
        ("base", maybe("integer")),
        ("end", maybe("integer")),
        ("claimed", maybe("integer")),
        ("discarded", maybe("integer")),
        ("messages_max", maybe("integer")),
        ("bytes_max", maybe("integer")),
        ("producers", maybe("integer")),
        ("consumers", maybe("integer")),
        ("subchannels", maybe("integer")),
        ("ttl_ms", maybe("integer")),
        ("lease", maybe_one_of::<LeaseWord>()),
        ("lease_left_ms", maybe("integer")),
        ("created_at_ms", maybe("integer")),
    ];
    let member = [
        ("member", text()),
        ("channel", text()),
        ("kind", one_of::<ChannelKind>()),
        ("role", one_of::<RoleWord>()),
        ("status", one_of::<StatusWord>()),
        ("name", text()),
        ("namespace", maybe("string")),
        ("node_id", maybe("integer")),
        ("epoch", maybe("integer")),
        ("weight", maybe("integer")),
        ("credit", maybe("integer")),
        ("claims", maybe("integer")),
        ("in_flight", maybe("integer")),
        ("appends", maybe("integer")),
        ("waiting", flag()),
        ("lease", maybe_one_of::<LeaseWord>()),
        ("lease_left_ms", maybe("integer")),
        ("standing", maybe_one_of::<StandingWord>()),
        ("keepalive_lag_ms", maybe("integer")),
        ("since_ms", number()),
    ];
    vec![
        ("Channel", object(&channel)),
        ("Channels", object(&[("channels", list("Channel")), ("cursor", maybe("string"))])),
        ("Member", object(&member)),
        ("Members", object(&[("members", list("Member")), ("cursor", maybe("string"))])),
    ]
}
