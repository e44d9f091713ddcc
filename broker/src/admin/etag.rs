//! ETags of what is read: whoever asks again and again is told that nothing changed instead of getting it anew (RFC 9110 §8.8.3, §13.1.2).

use std::fmt::Write as _;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};

use super::Problem;

/// Strong: the same bytes have the same one, on every node.
pub(super) fn of(content: &[u8]) -> String {
    let mut tag = String::from("\"");
    for byte in &digest(&SHA256, content).as_ref()[..12] {
        // Writing to a String cannot fail.
        let _ = write!(tag, "{byte:02x}");
    }
    tag + "\""
}

/// Whether whoever asks has this already. The comparison is the weak one: a proxy on the way may have weakened ours.
pub(super) fn is_known(tag: &str, headers: &HeaderMap) -> bool {
    let lists = headers.get_all(IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// Tags the JSON that a GET reads.
pub(super) async fn tag(request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let headers = request.headers().clone();
    let response = next.run(request).await;
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if response.status() != StatusCode::OK || !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // A page, which was made in memory: it is bounded where it is made.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return Problem::new(500, "internal", "the answer could not be read").into_response();
    };
    let tag = of(&body);
    // Hexadecimal digits between quotes: always a header value.
    if let Ok(value) = HeaderValue::from_str(&tag) {
        parts.headers.insert(ETAG, value);
    }
    if is_known(&tag, &headers) {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(CONTENT_LENGTH);
        parts.headers.remove(CONTENT_TYPE);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(body))
}
