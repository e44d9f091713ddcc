//! What the document says of every call alike: which role it needs, and that what is read has an ETag. Taken from what the routes themselves ask,
//! so that the two cannot drift apart.

use serde_json::{Value, json};

use super::super::role::{Role, is_open, needed};
use super::super::table::Word as _;
use super::{parameter, reference};

/// The words of the roles.
pub(super) fn roles() -> Value {
    json!({ "enum": Role::ALL.iter().map(|role| role.word()).collect::<Vec<_>>() })
}

/// Adds it to all calls of these paths.
pub(super) fn add(paths: &mut Value) {
    let Some(paths) = paths.as_object_mut() else { return };
    for (path, calls) in paths.iter_mut().filter(|(path, _)| !is_open(path)) {
        let Some(calls) = calls.as_object_mut() else { continue };
        for (method, call) in calls {
            let role = needed(path, &method.to_uppercase());
            call["x-role"] = role.word().into();
            // OpenAPI 3.1: for a bearer token these are names of roles.
            call["security"] = json!([{ "token": [role.word()] }]);
            if role > Role::Viewer {
                call["responses"]["403"] = json!({
                    "description": "forbidden: the role of the token, in `role`, is less than what the call needs, in `needs`",
                    "content": { "application/problem+json": { "schema": reference("Problem") } },
                });
            }
            if method == "get" && call["responses"]["200"]["content"].get("application/json").is_some() {
                tag(call);
            }
        }
    }
}

fn tag(call: &mut Value) {
    let etag = json!({ "ETag": { "description": "Of this answer", "schema": { "type": "string" } } });
    call["responses"]["200"]["headers"] = etag.clone();
    call["responses"]["304"] =
        json!({ "description": "As it was with the ETag in If-None-Match", "headers": etag });
    let known = parameter("If-None-Match", "header", json!({ "type": "string" }));
    match call.get_mut("parameters").and_then(Value::as_array_mut) {
        Some(parameters) => parameters.push(known),
        None => call["parameters"] = json!([known]),
    }
}
