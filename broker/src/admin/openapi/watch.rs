//! What the document says of the feed of events.

use serde_json::{Value, json};

use super::super::table::Word;
use super::{CALL, answers, maybe, number, object, parameter, text};
use crate::events::{EVENTS_MAX, EventKind, PER_SECOND_MAX, READERS_MAX};

pub(super) fn paths() -> Value {
    let mut watched =
        answers("", json!({}), &[CALL[0], CALL[1], ("409", "limit: as many readers as may are watching")]);
    watched["200"] = json!({
        "description": "A stream of server-sent events. First `hello` with an EventHello, then one event for each Event, named after its kind, \
                        with an `id` that Last-Event-ID takes. `dropped` is the last: the reader was too slow.",
        "content": { "text/event-stream": { "schema": { "type": "string" } } },
    });
    let last = json!({ "type": "integer", "minimum": 0, "maximum": EVENTS_MAX, "default": 0 });
    json!({
        "/v1/events": { "get": {
            "summary": "Watch what happens on this node",
            "description": format!(
                "The last {EVENTS_MAX} events are kept, {READERS_MAX} readers may watch at a time, and at most {PER_SECOND_MAX} events of \
                 one kind are told in a second; the others are counted in a `skipped`. A reader that comes back names the last event that it \
                 has; `missed` then says how many it did not get."
            ),
            "parameters": [
                parameter("last", "query", last),
                parameter("Last-Event-ID", "header", json!({ "type": "string" })),
            ],
            "responses": watched,
        } },
    })
}

pub(super) fn schemas() -> Vec<(&'static str, Value)> {
    let kinds: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.word()).collect();
    let event = [
        ("seq", number()),
        ("at_ms", number()),
        ("kind", json!({ "enum": kinds })),
        ("namespace", maybe("string")),
        ("client_id", maybe("string")),
        ("user", maybe("string")),
        ("node_id", maybe("integer")),
        ("detail", maybe("string")),
        ("count", maybe("integer")),
        ("took_ms", maybe("integer")),
    ];
    let hello = [("node_id", number()), ("boot_id", text()), ("missed", maybe("integer"))];
    vec![("Event", object(&event)), ("EventHello", object(&hello))]
}
