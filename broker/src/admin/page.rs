//! The page at `/`: says what answers here and where to go on.

use axum::response::Html;

pub(super) async fn page() -> Html<&'static str> {
    Html(concat!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>ExactMQ</title></head><body>",
        "<h1>ExactMQ ",
        env!("CARGO_PKG_VERSION"),
        "</h1><p>This is the admin API of an ExactMQ node. Calls under <code>/v1</code> need the header ",
        "<code>Authorization: Bearer TOKEN</code> with the token of this node.</p><ul>",
        "<li><a href=\"/openapi.json\">/openapi.json</a>: every call, its parameters and answers</li>",
        "<li><a href=\"/health/live\">/health/live</a> and <a href=\"/health/ready\">/health/ready</a></li>",
        "<li><a href=\"/metrics\">/metrics</a>: for Prometheus</li></ul>",
        "<p>On the command line: <code>exactmq session list</code>.</p></body></html>",
    ))
}
