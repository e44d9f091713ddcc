//! The dashboard at `/`: files of this program, sent with headers that let nothing else in.
//!
//! It is plain HTML, CSS and ES modules without a build step (`broker/dashboard`). The page itself needs no token: it shows nothing until
//! the operator pasted one, and every call it makes carries it.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::problem::no_route;
use super::{Problem, etag};

/// Nothing from elsewhere, nothing inline, no text as HTML (Trusted Types), nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! asset {
    ($name:literal, $kind:expr) => {
        Asset { name: $name, kind: $kind, text: include_str!(concat!("../../dashboard/", $name)) }
    };
}

/// One file of the dashboard.
#[derive(Debug)]
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const PAGE: Asset = asset!("index.html", "text/html; charset=utf-8");

/// What is served under `/assets/`.
static ASSETS: &[Asset] = &[
    asset!("style.css", STYLE),
    asset!("icon.svg", PICTURE),
    asset!("app.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("dialog.js", SCRIPT),
    asset!("feed.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("metrics.js", SCRIPT),
    asset!("spark.js", SCRIPT),
    asset!("table.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("sessions.js", SCRIPT),
    asset!("session.js", SCRIPT),
    asset!("nodes.js", SCRIPT),
    asset!("queues.js", SCRIPT),
    asset!("events.js", SCRIPT),
];

/// Strong: the same bytes have the same one, on every node.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    std::iter::once(&PAGE).chain(ASSETS).map(|asset| etag::of(asset.text.as_bytes())).collect()
});

pub(super) async fn page(headers: HeaderMap) -> Response {
    answer(&PAGE, &TAGS[0], &headers)
}

pub(super) async fn asset(
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Ok(Path(name)) = name else { return Err(no_route().await) };
    match ASSETS.iter().zip(&TAGS[1..]).find(|(asset, _)| asset.name == name) {
        Some((asset, tag)) => Ok(answer(asset, tag, &headers)),
        None => Err(no_route().await),
    }
}

fn answer(asset: &Asset, tag: &str, headers: &HeaderMap) -> Response {
    let unchanged = etag::is_known(tag, headers);
    let mut response =
        if unchanged { StatusCode::NOT_MODIFIED.into_response() } else { asset.text.into_response() };
    let fixed = [
        (CONTENT_TYPE, asset.kind),
        // Kept, but asked about: after an upgrade nobody sees parts of two versions.
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("content-security-policy"), POLICY),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
        (HeaderName::from_static("x-frame-options"), "DENY"),
        (HeaderName::from_static("referrer-policy"), "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::http::header::IF_NONE_MATCH;

    use super::*;

    /// Everything that the files name is there, and nothing that they name is elsewhere.
    #[test]
    fn the_files_need_each_other_and_nothing_else() {
        for asset in std::iter::once(&PAGE).chain(ASSETS) {
            for part in asset.text.split(['"', '\'']) {
                let name = part.strip_prefix("./").or_else(|| part.strip_prefix("/assets/"));
                if let Some(name) = name.filter(|name| !name.contains([' ', '\n'])) {
                    assert!(ASSETS.iter().any(|known| known.name == name), "{}: {name}", asset.name);
                }
            }
            let elsewhere = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{}", asset.name);
        }
    }

    /// What clients call themselves is text: no file has a way to make HTML or code of it.
    #[test]
    fn no_file_makes_html_or_code_of_text() {
        let banned = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "DOMParser",
            "localStorage.setItem(\"token",
            "srcdoc",
            "createContextualFragment",
            "setHTML",
            "javascript:",
        ];
        for asset in std::iter::once(&PAGE).chain(ASSETS) {
            for word in banned {
                assert!(!asset.text.contains(word), "{}: {word}", asset.name);
            }
        }
        assert!(!PAGE.text.contains("style=") && !PAGE.text.contains(" on"), "inline");
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let mut headers = HeaderMap::new();
        let asset = &ASSETS[0];
        let first = answer(asset, &TAGS[1], &headers);
        assert_eq!(
            (first.status(), first.headers()[CACHE_CONTROL].as_bytes()),
            (StatusCode::OK, &b"no-cache"[..])
        );
        headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(answer(asset, &TAGS[1], &headers).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer(asset, &TAGS[2], &headers).status(), StatusCode::OK);
        assert_eq!(TAGS.iter().collect::<std::collections::BTreeSet<_>>().len(), TAGS.len());
    }
}
