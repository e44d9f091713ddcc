//! Spans in OTLP/HTTP at a collector of the test's own, decoded from their bytes (issue 5 §7).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tests::cluster::succeeds;
use tests::{Client, Node, Options, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// A span as the collector got it.
#[derive(Debug, Clone)]
struct Span {
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    began_ns: u64,
    ended_ns: u64,
    attributes: Vec<(String, String)>,
}

/// Answers every POST and keeps its spans.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = spans.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let body = answer(stream);
                kept.lock().expect("whole").extend(spans_of(&body));
            }
        });
        Self { address, spans }
    }

    fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("whole").clone()
    }

    fn named(&self, name: &str) -> Span {
        eventually(&format!("a span {name}"), PATIENCE, || {
            self.spans().into_iter().find(|span| span.name == name)
        })
    }
}

/// Body of one request, which is answered with 200.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            assert!(text.starts_with("post /v1/traces http/1.1"), "{text}");
            assert!(text.contains("content-type: application/x-protobuf"), "{text}");
            let length =
                text.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if bytes.len() >= head + 4 + length.trim().parse::<usize>().expect("a number") {
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                return bytes.split_off(head + 4);
            }
        }
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&chunk[..count]),
            _ => return Vec::new(),
        }
    }
}

/// Fields of a protobuf message: number, and bytes (of a number: little-endian).
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for at in 0.. {
            let (first, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(first & 0x7F) << (7 * at);
            if *first < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => varint(&mut bytes).to_le_bytes().to_vec(),
            1 => bytes.split_off(..8).expect("eight bytes").to_vec(),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("a length");
                bytes.split_off(..length).expect("as many bytes").to_vec()
            }
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, value));
    }
    found
}

fn all(message: &[u8], number: u64) -> Vec<Vec<u8>> {
    fields(message).into_iter().filter(|(field, _)| *field == number).map(|(_, value)| value).collect()
}

fn one(message: &[u8], number: u64) -> Vec<u8> {
    all(message, number).pop().unwrap_or_default()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

fn spans_of(request: &[u8]) -> Vec<Span> {
    let time = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let pair = |pair: &Vec<u8>| (text(one(pair, 1)), text(one(&one(pair, 2), 1)));
    let mut spans = Vec::new();
    for resource in all(request, 1) {
        let about: Vec<_> = all(&one(&resource, 1), 1).iter().map(pair).collect();
        assert!(about.contains(&("service.name".to_owned(), "exactmq".to_owned())), "{about:?}");
        for span in all(&one(&resource, 2), 2) {
            spans.push(Span {
                trace: one(&span, 1),
                id: one(&span, 2),
                parent: one(&span, 4),
                name: text(one(&span, 5)),
                began_ns: time(one(&span, 7)),
                ended_ns: time(one(&span, 8)),
                attributes: all(&span, 9).iter().map(pair).collect(),
            });
        }
    }
    spans
}

fn start(endpoint: SocketAddr, ratio: &str) -> Node {
    let endpoint = format!("log.otlp_endpoint=http://{endpoint}/v1/traces");
    Node::start_with(&[&endpoint, &format!("log.otlp_sample_ratio={ratio}")])
}

/// Issue 5 §7: a CONNECT is a trace with its parts in it; so are End and calls of the admin API; messages are in none.
#[test]
fn what_is_rare_is_traced_with_its_parts() {
    let collector = Collector::start();
    let node = start(collector.address, "1.0");
    let options = Options::v5("traced").resume().expiry(60);
    let first = Client::connect(node.mqtt, &options);
    let mut second = Client::connect(node.mqtt, &options);
    second.publish("a", "b", 1, false);
    drop(first);
    succeeds(&node.cli(&["session", "end", "traced", "--reason", "explicit"]));
    let isolate = collector.named("isolate");
    let root = eventually("the CONNECT it is a part of", PATIENCE, || {
        collector.spans().into_iter().find(|span| span.id == isolate.parent)
    });
    assert_eq!((root.name.as_str(), &root.trace), ("CONNECT", &isolate.trace));
    assert!(root.parent.is_empty() && root.trace.len() == 16 && root.id.len() == 8);
    assert!(root.attributes.contains(&("client_id".to_owned(), "traced".to_owned())), "{root:?}");
    assert!(root.began_ns <= isolate.began_ns && isolate.began_ns <= isolate.ended_ns);
    for part in ["read owner", "commit", "activate"] {
        let span = collector.spans().into_iter().find(|span| span.name == part && span.parent == root.id);
        assert!(span.is_some(), "{part} of {:?}", collector.spans());
    }
    collector.named("End");
    let call = collector.named("admin call");
    assert!(
        call.attributes.iter().any(|(key, route)| key == "http.route" && route.starts_with('/')),
        "{call:?}"
    );
    let known = ["CONNECT", "read owner", "isolate", "commit", "activate", "End", "admin call"];
    for span in collector.spans() {
        assert!(known.contains(&span.name.as_str()), "{span:?}");
    }
    eventually("the spans are counted", PATIENCE, || {
        (node.metric("exactmq_trace_spans_total") >= 5.0).then_some(())
    });
}

/// Issue 5 §7, P9: a collector that is away costs spans, which are counted, and nothing else; a ratio of 0 sends none.
#[test]
fn spans_that_nobody_takes_are_dropped_and_counted() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = nobody.local_addr().expect("bound");
    drop(nobody);
    let node = start(address, "1");
    let mut client = Client::connect(node.mqtt, &Options::v5("a"));
    eventually("the drops are counted", PATIENCE, || {
        (node.metric("exactmq_trace_spans_dropped_total") > 0.0).then_some(())
    });
    assert!(client.is_alive());
    let collector = Collector::start();
    let silent = start(collector.address, "0.0");
    let _client = Client::connect(silent.mqtt, &Options::v5("a"));
    let mut stopped = silent;
    // What waits is sent with a stop.
    stopped.stop();
    assert!(collector.spans().is_empty());
}
