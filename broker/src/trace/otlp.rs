//! Spans as OTLP has them (opentelemetry-proto 1.x, `trace/v1`), encoded by hand: six messages, of which a few fields are written.

use super::Attributes;

/// A span that is over.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) parent_id: Option<[u8; 8]>,
    pub(super) name: &'static str,
    pub(super) attributes: Attributes,
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) failed: bool,
}

/// `SPAN_KIND_INTERNAL` and `STATUS_CODE_ERROR`.
const KIND: u64 = 1;
const ERROR: u64 = 2;

/// `ExportTraceServiceRequest` with one resource and one scope.
pub(super) fn request(resource: &[(&str, String)], spans: &[Span]) -> Vec<u8> {
    let mut scope_spans = Vec::new();
    let mut scope = Vec::new();
    bytes(1, b"exactmq", &mut scope);
    bytes(1, &scope, &mut scope_spans);
    for span in spans {
        bytes(2, &encoded(span), &mut scope_spans);
    }
    let mut resource_fields = Vec::new();
    for (key, value) in resource {
        bytes(1, &attribute(key, value), &mut resource_fields);
    }
    let mut resource_spans = Vec::new();
    bytes(1, &resource_fields, &mut resource_spans);
    bytes(2, &scope_spans, &mut resource_spans);
    let mut request = Vec::new();
    bytes(1, &resource_spans, &mut request);
    request
}

fn encoded(span: &Span) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(1, &span.trace_id, &mut out);
    bytes(2, &span.span_id, &mut out);
    if let Some(parent_id) = &span.parent_id {
        bytes(4, parent_id, &mut out);
    }
    bytes(5, span.name.as_bytes(), &mut out);
    number(6, KIND, &mut out);
    fixed64(7, span.began_ns, &mut out);
    fixed64(8, span.ended_ns, &mut out);
    for (key, value) in &span.attributes {
        bytes(9, &attribute(key, value), &mut out);
    }
    if span.failed {
        let mut status = Vec::new();
        number(3, ERROR, &mut status);
        bytes(15, &status, &mut out);
    }
    out
}

/// `KeyValue` with a string.
fn attribute(key: &str, value: &str) -> Vec<u8> {
    let (mut any, mut out) = (Vec::new(), Vec::new());
    bytes(1, value.as_bytes(), &mut any);
    bytes(1, key.as_bytes(), &mut out);
    bytes(2, &any, &mut out);
    out
}

fn bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn number(field: u64, value: u64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(value, out);
}

fn fixed64(field: u64, value: u64, out: &mut Vec<u8>) {
    varint(field << 3 | 1, out);
    out.extend_from_slice(&value.to_le_bytes());
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7F) as u8);
}
