//! What the document says of bridges.

use serde_json::{Value, json};

use super::super::table::Word;
use super::{answers, list, maybe, number, object, reference, text};
use crate::bridge::BridgeState;

pub(super) fn paths() -> Value {
    json!({
        "/v1/bridges": { "get": {
            "summary": "Bridges to other MQTT brokers, as this node sees them",
            "description": "In a cluster the node that leads the group of the session `client_id` runs a bridge; on the others it is `elsewhere`. \
                            What waits for the other broker is in the inbox of that session.",
            "responses": answers("All bridges", reference("Bridges"), &[("401", "unauthorized")]),
        } },
    })
}

pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    let states: Vec<&str> = BridgeState::ALL.iter().map(|state| state.word()).collect();
    let bridge = [
        ("name", text()),
        ("state", json!({ "enum": states })),
        ("since_ms", number()),
        ("node_id", maybe("integer")),
        ("address", maybe("string")),
        ("error", maybe("string")),
        ("client_id", text()),
        ("remote_client_id", text()),
        ("messages_out", number()),
        ("messages_in", number()),
        ("dropped_out", number()),
        ("dropped_in", number()),
        ("failures", number()),
    ];
    vec![("Bridge", object(&bridge)), ("Bridges", object(&[("bridges", list("Bridge"))]))]
}
