//! The call that watches: server-sent events out of the node's feed.
//!
//! Each reader has a task that takes events in batches and hands them to its connection. One whose connection takes nothing for
//! [`SEND_MAX`], or that the ring of the feed went past, is told `dropped` where that is possible, and let go; so is one that stalls while
//! others wait for its place, and one whose token is not good any more.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::role::{Caller, FIRST};
use super::sessions::{Parameters, parameters};
use super::table::number;
use super::{AdminState, Problem};
use crate::events::{Behind, EVENTS_MAX, Event, From, Reader};

/// Events in one write.
const BATCH: usize = 64;
/// Writes that wait for the connection.
const WRITES_MAX: usize = 4;
/// A connection that takes nothing for so long is let go.
const SEND_MAX: Duration = Duration::from_secs(10);
/// Between two comments on a quiet feed: less than an idle connection is given.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Data of the event `hello`, the first of every answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventHello {
    /// The node whose events these are.
    pub node_id: u64,
    pub boot_id: Arc<str>,
    /// Events between the one that was named and the first that is told; `null`: that one was of another boot.
    pub missed: Option<u64>,
}

/// The answer's body.
struct Lines(mpsc::Receiver<Bytes>);

impl Stream for Lines {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(Ok))
    }
}

pub(super) async fn watch(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Problem> {
    let parameters = parameters(query, &["last"])?;
    let last = number(&parameters, "last")?.unwrap_or(0);
    let last = usize::try_from(last).ok().filter(|last| *last <= EVENTS_MAX);
    let last = last.ok_or_else(|| Problem::invalid(format!("last is more than {EVENTS_MAX}")))?;
    let (node_id, boot_id) = state.port.boot();
    let from = headers.get(LAST_EVENT_ID).map_or(From::Last(last), |id| {
        let after = id.to_str().ok().and_then(|id| id.rsplit_once('.'));
        let after = after.filter(|(boot, _)| **boot == *boot_id).and_then(|(_, seq)| seq.parse().ok());
        after.map_or(From::Elsewhere, From::After)
    });
    let owner = caller.name.clone().unwrap_or_else(|| FIRST.into());
    let Some(reader) = state.events.watch(from, &owner) else {
        return Err(Problem::new(409, "limit", "as many readers as may are watching; close one of them"));
    };
    let hello = EventHello { node_id, boot_id: boot_id.clone(), missed: reader.missed };
    let (lines, body) = mpsc::channel(WRITES_MAX);
    tokio::spawn(async move {
        let leave = reader.leave();
        tokio::select! {
            biased;
            () = state.callers.revoked(&caller) => {}
            () = leave.notified() => state.events.let_go(),
            () = tell(reader, boot_id, hello, lines) => {}
        }
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(Lines(body))).into_response())
}

/// One event of the wire. JSON has no line ends of its own: whatever a ClientID holds, it stays one line.
fn write(text: &mut String, id: Option<(&str, u64)>, kind: &str, data: &impl Serialize) {
    use std::fmt::Write as _;
    // Plain strings and numbers: they always have a JSON form. Writing to a String cannot fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    if let Some((boot_id, seq)) = id {
        let _ = writeln!(text, "id: {boot_id}.{seq}");
    }
    let _ = write!(text, "event: {kind}\ndata: {data}\n\n");
}

fn batch(boot_id: &str, events: &[Arc<Event>]) -> Bytes {
    use super::Word as _;
    let mut text = String::new();
    for event in events {
        write(&mut text, Some((boot_id, event.seq)), event.kind.word(), &**event);
    }
    text.into()
}

/// Runs until the feed or the connection ends, or the reader is too slow.
async fn tell(mut reader: Reader, boot_id: Arc<str>, hello: EventHello, lines: mpsc::Sender<Bytes>) {
    let mut first = String::new();
    write(&mut first, None, "hello", &hello);
    let mut next = Bytes::from(first);
    loop {
        reader.stalls(true);
        let sent = tokio::time::timeout(SEND_MAX, lines.send(next)).await;
        reader.stalls(false);
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(_gone)) => return,
            Err(_elapsed) => return reader.is_too_slow(),
        }
        next = loop {
            match reader.take(BATCH) {
                Ok(events) if events.is_empty() => {}
                Ok(events) => break batch(&boot_id, &events),
                Err(Behind) => {
                    let mut text = String::new();
                    write(&mut text, None, "dropped", &serde_json::json!({ "reason": "slow" }));
                    // It is let go either way.
                    let _ = lines.try_send(text.into());
                    return reader.is_too_slow();
                }
            }
            tokio::select! {
                more = reader.more() => if !more { return },
                () = lines.closed() => return,
                () = tokio::time::sleep(KEEP_ALIVE) => break Bytes::from_static(b":\n\n"),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EventKind, Feed};

    fn hello() -> EventHello {
        EventHello { node_id: 1, boot_id: "b".into(), missed: Some(0) }
    }

    /// P9: a reader whose connection takes nothing is let go and counted; the feed goes on.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_let_go() {
        let feed = Arc::new(Feed::default());
        let (lines, mut body) = mpsc::channel(1);
        let reader = feed.watch(From::Last(0), &"a".into()).expect("free");
        let task = tokio::spawn(tell(reader, "b".into(), hello(), lines));
        feed.push(Event::new(EventKind::NodeUp));
        tokio::task::yield_now().await;
        // The clock stands still but for timers that everything waits for.
        task.await.expect("it ends");
        assert_eq!((feed.readers(), feed.readers_dropped()), (0, 1));
        assert!(body.recv().await.expect("hello").starts_with(b"event: hello\n"));
        assert_eq!(body.recv().await, None);
    }

    /// P9: a reader that the ring went past while it did not read is told so instead of getting a feed with a hole.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_is_behind_is_told_so() {
        let feed = Arc::new(Feed::default());
        let (lines, mut body) = mpsc::channel(2);
        let reader = feed.watch(From::Last(0), &"a".into()).expect("free");
        // Before it reads at all: a turn of the ring, over several seconds since a flood is cut.
        for _ in 0..=EVENTS_MAX as u64 / crate::events::PER_SECOND_MAX {
            (0..crate::events::PER_SECOND_MAX).for_each(|_| feed.push(Event::new(EventKind::NodeUp)));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        tell(reader, "b".into(), hello(), lines).await;
        assert!(body.recv().await.expect("hello").starts_with(b"event: hello\n"));
        assert!(body.recv().await.expect("why").starts_with(b"event: dropped\n"));
        assert_eq!(body.recv().await, None);
        assert_eq!(feed.readers_dropped(), 1);
    }

    /// What a client called itself cannot end a line of the stream.
    #[test]
    fn an_event_is_one_line_whatever_is_in_a_name() {
        let client_id = "a\n\ndata: {}\r\nevent: hello\u{2028}".into();
        let event = Event { client_id: Some(client_id), seq: 7, ..Event::new(EventKind::Connect) };
        let text = batch("b", &[Arc::new(event)]);
        let text = std::str::from_utf8(&text).expect("text");
        let lines: Vec<&str> = text.split(['\n', '\r']).collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!((lines[0], lines[1], lines[3], lines[4]), ("id: b.7", "event: connect", "", ""));
        assert!(lines[2].starts_with("data: {\"seq\":7,"));
    }
}
