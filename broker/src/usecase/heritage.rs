//! What a durable member of shared subscriptions leaves when its session ends goes to the other members (MQTT 5 §4.8.2), before its rows
//! are reclaimed: a crash in between repeats it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use session::id::Key;
use session::lifecycle::Stamp;
use session::message::{Message, QoS};
use session::qos::inbox_packet_id;
use session::topic::{TopicFilter, filter_matches};
use storage::{GroupId, Heirloom, Heritage, Store};

/// Keeps the stamps of what is handed on apart from those of what the lifetime published.
const SEQUENCE_BASE: u64 = 1 << 63;

/// The store does not answer: it is tried again, with the reclamation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message could not be handed on now")]
pub struct NotHandedOn;

/// The future of one message.
pub type HandOn = Pin<Box<dyn Future<Output = Result<(), NotHandedOn>> + Send>>;

/// The members of shared subscriptions.
pub trait Heirs: Send + Sync + std::fmt::Debug {
    /// Gives `message` to the next member of `filter`, if there is one; resolves when what is durable of that is committed. A repetition
    /// with the same stamp stores nothing twice.
    fn hand_on(&self, filter: Arc<str>, message: Arc<Message>, stamp: Option<Stamp>) -> HandOn;
}

/// Hands everything on that the ended `lifetime` of `key` leaves.
///
/// # Errors
/// [`NotHandedOn`]; what was handed on is again, the next time, but for QoS 2.
pub async fn hand_on_all(
    store: &Store,
    heirs: &dyn Heirs,
    group: GroupId,
    key: &Key,
    lifetime: u64,
) -> Result<(), NotHandedOn> {
    let mut from = Some(0);
    while let Some(offset) = from {
        let store = store.clone();
        // Bodies may have to be read from disk.
        let page = tokio::task::spawn_blocking(move || store.inherited(group, lifetime, offset)).await;
        let page = match page {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                tracing::error!(%error, "what a member of a share leaves cannot be read");
                return Err(NotHandedOn);
            }
            Err(_) => return Err(NotHandedOn),
        };
        from = page.next;
        let under_way: Vec<HandOn> = shares(&page)
            .map(|(filter, heirloom)| {
                heirs.hand_on(filter, Arc::clone(&heirloom.message), stamp(key, lifetime, heirloom))
            })
            .collect();
        for one in under_way {
            one.await?;
        }
    }
    Ok(())
}

/// What tells a QoS 2 message that the lifetime leaves from every other: nobody has it twice.
pub(super) fn stamp(key: &Key, lifetime: u64, heirloom: &Heirloom) -> Option<Stamp> {
    (heirloom.message.qos == QoS::ExactlyOnce).then(|| Stamp::Publisher {
        key: key.clone(),
        lifetime,
        packet_id: inbox_packet_id(heirloom.offset),
        sequence: SEQUENCE_BASE + heirloom.offset,
    })
}

/// Each message with the shared filter through which it came. Where several match, the subscription identifier tells, and the order: one
/// message that came through several of them stands there once for each.
pub(super) fn shares(page: &Heritage) -> impl Iterator<Item = (Arc<str>, &Heirloom)> {
    let (mut before, mut nth): (Option<&Arc<Message>>, usize) = (None, 0);
    page.messages.iter().filter_map(move |heirloom| {
        let again = before.is_some_and(|before| Arc::ptr_eq(before, &heirloom.message));
        nth = if again { nth + 1 } else { 0 };
        before = Some(&heirloom.message);
        let topic = heirloom.message.topic();
        let came_through = |(filter, identifier): &&(Arc<str>, u32)| {
            let identified = match identifier {
                0 => heirloom.identifiers.is_empty(),
                identifier => heirloom.identifiers.contains(identifier),
            };
            let matches = |filter: TopicFilter| filter_matches(filter.pattern(), topic);
            identified && TopicFilter::parse(filter).is_ok_and(matches)
        };
        let filters: Vec<&Arc<str>> =
            page.filters.iter().filter(came_through).map(|(filter, _)| filter).collect();
        let filter = filters.get(nth % filters.len().max(1))?;
        Some((Arc::clone(filter), heirloom))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heirloom(offset: u64, message: &Arc<Message>, identifiers: &[u32]) -> Heirloom {
        Heirloom {
            offset,
            identifiers: smallvec::SmallVec::from_slice(identifiers),
            message: Arc::clone(message),
        }
    }

    /// MQTT 5 §4.8.2: a message goes on within the share through which it came.
    #[test]
    fn a_message_stays_in_its_share() {
        let filters = [("$share/a/t", 0), ("$share/b/#", 0), ("$share/c/t", 7), ("$share/d/u", 0)];
        let filters = filters.map(|(filter, identifier)| (filter.into(), identifier)).to_vec();
        let [one, two, three] = ["t", "x", "t"].map(|topic| Arc::new(Message::new(topic, &[], b"")));
        let messages = vec![
            heirloom(0, &one, &[]),
            heirloom(1, &one, &[]),
            heirloom(2, &one, &[7]),
            heirloom(3, &two, &[]),
            heirloom(4, &three, &[]),
            heirloom(5, &three, &[9]),
        ];
        let page = Heritage { filters, messages, next: None };
        let found: Vec<(u64, String)> =
            shares(&page).map(|(filter, heirloom)| (heirloom.offset, filter.to_string())).collect();
        let expected =
            [(0, "$share/a/t"), (1, "$share/b/#"), (2, "$share/c/t"), (3, "$share/b/#"), (4, "$share/a/t")];
        assert_eq!(found, expected.map(|(offset, filter)| (offset, filter.to_owned())));
    }
}
