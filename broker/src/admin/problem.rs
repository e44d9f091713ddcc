//! Errors of the API: `application/problem+json` (RFC 9457) with a stable `code`.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::model::OwnerView;
use super::{BODY_BYTES_MAX, EndError, PortError};

pub(super) const CONTENT: &str = "application/problem+json";

/// One error.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: u16,
    body: Map<String, Value>,
}

impl Problem {
    /// `code` is what programs look at, `detail` what people read.
    #[must_use]
    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        let status_code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut body = Map::new();
        body.insert("type".to_owned(), "about:blank".into());
        body.insert("title".to_owned(), status_code.canonical_reason().unwrap_or("Error").into());
        body.insert("status".to_owned(), status_code.as_u16().into());
        body.insert("code".to_owned(), code.into());
        body.insert("detail".to_owned(), detail.into().into());
        Self { status: status_code.as_u16(), body }
    }

    /// Adds a member.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.body.insert(name.to_owned(), value);
        self
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(400, "invalid", detail)
    }

    pub(super) fn too_large() -> Self {
        Self::new(413, "too_large", format!("the body has more than {BODY_BYTES_MAX} bytes"))
    }

    pub(super) fn code(&self) -> &str {
        self.body.get("code").and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn detail(&self) -> &str {
        self.body.get("detail").and_then(Value::as_str).unwrap_or_default()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Value::Object(self.body).to_string()).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"exactmq\""));
        }
        response
    }
}

impl From<PortError> for Problem {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Unavailable(_) => Self::new(503, "unavailable", error.to_string()),
            PortError::Limit(_) => Self::new(409, "limit", error.to_string()),
        }
    }
}

impl From<EndError> for Problem {
    fn from(error: EndError) -> Self {
        let detail = error.to_string();
        match error {
            EndError::NotFound => Self::new(404, "not_found", detail),
            EndError::Fenced { current } => {
                let current = current.map(|owner| OwnerView::from(&*owner));
                // An owner is plain strings and numbers: it always has a JSON form.
                let current = serde_json::to_value(current).unwrap_or(Value::Null);
                Self::new(409, "fenced", detail).with("current", current)
            }
            EndError::Unproved(_) => Self::new(503, "unproved", detail),
            EndError::Close => Self::new(503, "close", detail),
            EndError::Deadline => Self::new(503, "deadline", detail),
            EndError::Invalid(_) => Self::new(400, "invalid", detail),
            EndError::Unavailable(_) => Self::new(503, "unavailable", detail),
        }
    }
}

pub(super) async fn no_route() -> Problem {
    Problem::new(404, "no_route", "there is no such path; /openapi.json lists all of them")
}

pub(super) async fn no_method() -> Problem {
    Problem::new(405, "no_method", "this path does not take this method; /openapi.json lists what it takes")
}

/// A body that is announced as too large is not waited for.
pub(super) async fn no_large_bodies(request: Request, next: Next) -> Response {
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
        let mut response = Problem::too_large().into_response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    next.run(request).await
}

/// Errors that the HTTP library makes itself (a body that is too large, a path that is not UTF-8) get the same form.
pub(super) async fn no_plain_errors(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_ours = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == CONTENT);
    if !(status.is_client_error() || status.is_server_error()) || is_ours {
        return response;
    }
    let headers = response.headers().clone();
    let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "too_large" } else { "invalid" };
    let detail = status.canonical_reason().unwrap_or("the request cannot be answered");
    let mut problem = Problem::new(status.as_u16(), code, detail).into_response();
    if let Some(allow) = headers.get("allow") {
        problem.headers_mut().insert("allow", allow.clone());
    }
    let (parts, body) = problem.into_parts();
    Response::from_parts(parts, Body::new(body))
}
