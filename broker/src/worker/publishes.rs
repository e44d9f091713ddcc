//! Publishes of one connection that are not finished, in the order of receipt: routed in order, acknowledged in order
//! ([MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-5]).
//!
//! ```text
//! push ──▶ Preparing ──received id committed, stored subscriptions known──▶ (stored, in order) ──retained value committed──▶ (routed, in order) ──▶ Appending ──inboxes committed──▶ (acknowledged, in order)
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use gateway::codec::ReasonCode;
use hashbrown::HashMap;
use session::message::{Message, QoS};

/// The publishes under way. Empty for an idle or purely transient publisher; allocates nothing then.
#[derive(Debug, Default)]
pub(super) struct Publishes {
    queue: VecDeque<Item>,
    /// Number of the first item.
    first: u64,
    /// Items from the front on that are routed.
    routed: usize,
    /// Items from the front on whose retained value, if any, is proposed: at least those that are routed.
    stored: usize,
    /// Bytes of the messages that are not routed.
    unrouted_bytes: usize,
    /// QoS 2 ids in the queue: a PUBREL looks for its own, and there may be as many of both as fit.
    exactly_once: HashMap<u16, Exchange, foldhash::fast::RandomState>,
}

/// What there is of one QoS 2 id in the queue.
#[derive(Debug, Default)]
struct Exchange {
    /// Items: its publish and answers to duplicates.
    items: usize,
    /// PUBREL came before the PUBREC of one of them went.
    released: bool,
}

/// One publish.
#[derive(Debug)]
pub(super) struct Item {
    pub packet_id: u16,
    pub qos: QoS,
    pub reason: ReasonCode,
    /// Commits that are awaited in the current step.
    pub waits: u16,
    /// What is to be routed; `None`: nothing (refused, or a duplicate that needs an answer only).
    pub work: Option<Box<Work>>,
}

/// A message that is to be routed.
#[derive(Debug)]
pub(super) struct Work {
    pub message: Arc<Message>,
    /// Sequence of the received QoS 2 id; stamps the appends.
    pub sequence: Option<u64>,
    /// A duplicate of one that was routed: only its appends are repeated, connections were served before.
    pub repeated: bool,
}

impl Item {
    /// An answer in its place.
    pub(super) fn answer(packet_id: u16, qos: QoS, reason: ReasonCode) -> Self {
        Self { packet_id, qos, reason, waits: 0, work: None }
    }

    /// A message to be routed once `waits` commits are there, and that of its retained value, if it has one.
    pub(super) fn work(packet_id: u16, message: Arc<Message>, waits: u16) -> Self {
        let qos = message.qos;
        let work = Work { message, sequence: None, repeated: false };
        Self { packet_id, qos, reason: ReasonCode::Success, waits, work: Some(Box::new(work)) }
    }
}

impl Publishes {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether an earlier publish still waits before its routing: a later one must not overtake it.
    pub(super) fn has_unrouted(&self) -> bool {
        self.routed < self.queue.len()
    }

    /// Whether more may be read from the client: QoS 0 has no window, so what waits here is bounded by its size.
    pub(super) fn has_room(&self) -> bool {
        self.unrouted_bytes + self.queue.len() * size_of::<Item>() < WAITING_BYTES_MAX
    }

    /// The number that the next item gets.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    pub(super) fn push(&mut self, item: Item) {
        self.unrouted_bytes += item.work.as_ref().map_or(0, |work| work.message.len());
        self.enter(item);
    }

    /// Adds one that is routed already: nothing waits before it.
    pub(super) fn push_routed(&mut self, packet_id: u16, qos: QoS, reason: ReasonCode, appends: u16) {
        debug_assert!(!self.has_unrouted(), "an earlier publish is routed first");
        self.enter(Item { packet_id, qos, reason, waits: appends, work: None });
        self.routed = self.queue.len();
        self.stored = self.routed;
    }

    fn enter(&mut self, item: Item) {
        if item.qos == QoS::ExactlyOnce {
            self.exactly_once.entry(item.packet_id).or_default().items += 1;
        }
        self.queue.push_back(item);
    }

    /// The next retained value to be stored, with its number and the sequence of its received id. One that waits for its sequence
    /// holds up those behind it: the last value of a topic is the one that was published last ([MQTT-4.6.0-6]).
    pub(super) fn take_retainable(&mut self) -> Option<(u64, Arc<Message>, Option<u64>)> {
        while let Some(item) = self.queue.get_mut(self.stored) {
            let number = self.first + self.stored as u64;
            match &item.work {
                Some(work) if work.message.retain => {
                    if item.waits > 0 {
                        return None;
                    }
                    let retainable = (number, Arc::clone(&work.message), work.sequence);
                    item.waits = 1;
                    self.stored += 1;
                    return Some(retainable);
                }
                _ => self.stored += 1,
            }
        }
        None
    }

    /// The next publish to be routed with its number, when its turn has come; it counts as routed from now on.
    pub(super) fn take_routable(&mut self) -> Option<(u64, Option<Box<Work>>)> {
        // `advance_publishes` stores first: what is not stored yet waits for its received id.
        let item = self.queue.get_mut(self.routed).filter(|item| item.waits == 0)?;
        let work = item.work.take();
        self.unrouted_bytes -= work.as_ref().map_or(0, |work| work.message.len());
        let number = self.first + self.routed as u64;
        self.routed += 1;
        self.stored = self.stored.max(self.routed);
        Some((number, work))
    }

    /// A routed publish waits for `appends` commits and will be answered with `reason`.
    pub(super) fn set_routed(&mut self, number: u64, appends: u16, reason: ReasonCode) {
        if let Some(item) = self.item(number) {
            item.waits = appends;
            item.reason = reason;
        }
    }

    /// The next publish to be acknowledged, when all before it are; whether a PUBREL of it waits for that.
    pub(super) fn take_finished(&mut self) -> Option<(Item, bool)> {
        if self.routed == 0 || self.queue.front()?.waits > 0 {
            return None;
        }
        self.routed -= 1;
        self.stored -= 1;
        self.first += 1;
        let item = self.queue.pop_front()?;
        let released = item.qos == QoS::ExactlyOnce && self.leave(item.packet_id);
        if self.queue.is_empty() && self.queue.capacity() > KEPT_MAX {
            self.queue = VecDeque::new();
            self.exactly_once = HashMap::default();
        }
        Some((item, released))
    }

    /// An item of a QoS 2 id leaves the queue; whether a PUBREL waits for that.
    fn leave(&mut self, packet_id: u16) -> bool {
        let Some(exchange) = self.exactly_once.get_mut(&packet_id) else { return false };
        exchange.items -= 1;
        let released = std::mem::take(&mut exchange.released);
        if exchange.items == 0 {
            self.exactly_once.remove(&packet_id);
        }
        released
    }

    /// The retained value was stored.
    pub(super) fn prepared(&mut self, number: u64) {
        if let Some(item) = self.item(number) {
            item.waits = item.waits.saturating_sub(1);
        }
    }

    /// The retained value was not stored: the message goes on as one without RETAIN.
    pub(super) fn not_retained(&mut self, number: u64) {
        if let Some(work) = self.item(number).and_then(|item| item.work.as_mut()) {
            Arc::make_mut(&mut work.message).retain = false;
        }
        self.prepared(number);
    }

    /// It is not routed, and answered with `reason` once what it waits for is there.
    pub(super) fn refused(&mut self, number: u64, reason: ReasonCode) {
        let Some(item) = self.item(number) else { return };
        item.reason = reason;
        let work = item.work.take();
        self.unrouted_bytes -= work.as_ref().map_or(0, |work| work.message.len());
    }

    /// The received id was stored under `sequence`.
    pub(super) fn received(&mut self, number: u64, routed: bool, sequence: u64) {
        if let Some(item) = self.item(number) {
            item.waits = item.waits.saturating_sub(1);
            if let Some(work) = &mut item.work {
                work.sequence = Some(sequence);
                work.repeated = routed;
            }
        }
    }

    /// The inboxes of one group have it.
    pub(super) fn appended(&mut self, number: u64) {
        self.prepared(number);
    }

    /// Another member of a share is to take it: there are more commits to wait for.
    pub(super) fn also_waits(&mut self, number: u64, waits: u16) {
        if let Some(item) = self.item(number) {
            item.waits += waits;
        }
    }

    /// PUBREL came; whether it has to wait because the PUBREC of a publish under way goes first.
    pub(super) fn release_early(&mut self, packet_id: u16) -> bool {
        let exchange = self.exactly_once.get_mut(&packet_id);
        exchange.map(|exchange| exchange.released = true).is_some()
    }

    /// QoS of a publish under way.
    pub(super) fn qos(&self, number: u64) -> Option<QoS> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.queue.get(at).map(|item| item.qos)
    }

    /// Packet id of a publish under way.
    pub(super) fn packet_id(&self, number: u64) -> Option<u16> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.queue.get(at).map(|item| item.packet_id)
    }

    fn item(&mut self, number: u64) -> Option<&mut Item> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.queue.get_mut(at)
    }
}

/// A queue that has grown past this is given back when it runs empty.
const KEPT_MAX: usize = 64;
/// Bytes that wait for one connection; beyond it nothing more is read. What one read brought may come on top.
const WAITING_BYTES_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(qos: QoS) -> Arc<Message> {
        let mut message = Message::new("a", &[], b"x");
        message.qos = qos;
        Arc::new(message)
    }

    fn finished(publishes: &mut Publishes) -> Vec<u16> {
        std::iter::from_fn(|| publishes.take_finished()).map(|(item, _)| item.packet_id).collect()
    }

    /// [MQTT-4.6.0-2]: a later commit does not overtake an earlier one.
    #[test]
    fn acknowledgements_keep_the_order_of_receipt() {
        let mut publishes = Publishes::default();
        for packet_id in 1..=3 {
            publishes.push(Item::work(packet_id, message(QoS::AtLeastOnce), 0));
            let (number, work) = publishes.take_routable().expect("nothing is before it");
            assert!(work.is_some());
            publishes.set_routed(number, 1, ReasonCode::Success);
        }
        publishes.appended(1);
        publishes.appended(2);
        assert!(finished(&mut publishes).is_empty());
        publishes.appended(0);
        assert_eq!(finished(&mut publishes), [1, 2, 3]);
        assert!(publishes.is_empty());
    }

    /// P7, [MQTT-4.6.0-6]: nothing is routed before a retained value that was published earlier is committed.
    #[test]
    fn a_publish_waits_for_the_retained_value_before_it() {
        let mut publishes = Publishes::default();
        let mut retained = Message::new("a", &[], b"x");
        retained.retain = true;
        publishes.push(Item::work(0, Arc::new(retained), 0));
        publishes.push(Item::work(7, message(QoS::AtLeastOnce), 0));
        assert!(publishes.take_retainable().is_some());
        assert!(publishes.take_retainable().is_none());
        assert!(publishes.take_routable().is_none());
        assert!(publishes.has_unrouted());
        publishes.prepared(0);
        assert!(publishes.take_routable().is_some());
        assert!(publishes.take_routable().is_some());
        assert!(publishes.take_routable().is_none());
        assert_eq!(finished(&mut publishes), [0, 7]);
    }

    /// P9: QoS 0 behind a publish that waits for a commit stops the reading, and the commit lets it go on.
    #[test]
    fn p9_what_waits_for_its_routing_is_bounded() {
        let mut publishes = Publishes::default();
        publishes.push(Item::work(1, message(QoS::AtLeastOnce), 1));
        let large = Arc::new(Message::new("a", &[], &vec![0; WAITING_BYTES_MAX / 4]));
        let pushed = (0..100).take_while(|_| {
            let room = publishes.has_room();
            if room {
                publishes.push(Item::work(0, Arc::clone(&large), 0));
            }
            room
        });
        assert_eq!(pushed.count(), 4);
        publishes.prepared(0);
        while publishes.take_routable().is_some() {}
        assert!(publishes.has_room());
        assert_eq!(finished(&mut publishes).len(), 5);
        assert_eq!(publishes.unrouted_bytes, 0);
    }

    /// P5, P9: a PUBREL waits for the PUBREC of its id only, and is found without a look at the others.
    #[test]
    fn p5_an_early_release_waits_for_its_own_publish() {
        let mut publishes = Publishes::default();
        publishes.push(Item::work(1, message(QoS::AtLeastOnce), 0));
        publishes.push(Item::work(7, message(QoS::ExactlyOnce), 0));
        publishes.push(Item::answer(7, QoS::ExactlyOnce, ReasonCode::Success));
        assert!(!publishes.release_early(1), "a PUBREL is no answer to QoS 1");
        assert!(!publishes.release_early(8));
        assert!(publishes.release_early(7) && publishes.release_early(7));
        while publishes.take_routable().is_some() {}
        let finished = |publishes: &mut Publishes| {
            publishes.take_finished().map(|(item, released)| (item.packet_id, released))
        };
        assert_eq!(finished(&mut publishes), Some((1, false)));
        assert_eq!(finished(&mut publishes), Some((7, true)));
        assert!(publishes.release_early(7), "an answer to a duplicate is still owed");
        assert_eq!(finished(&mut publishes), Some((7, true)));
        assert!(!publishes.release_early(7));
        assert!(publishes.exactly_once.is_empty());
    }

    /// P9: messages without payload and repeated answers are bounded too.
    #[test]
    fn p9_small_publishes_are_bounded_by_their_number() {
        let mut publishes = Publishes::default();
        publishes.push(Item::work(1, message(QoS::AtLeastOnce), 1));
        let mut count = 0;
        while publishes.has_room() {
            publishes.push(Item::answer(2, QoS::ExactlyOnce, ReasonCode::Success));
            count += 1;
        }
        assert!(count <= WAITING_BYTES_MAX / size_of::<Item>());
    }

    /// [MQTT-4.6.0-6]: a retained value that waits for the sequence of its id is not overtaken by a later one.
    #[test]
    fn retained_values_are_stored_in_the_order_of_receipt() {
        let mut publishes = Publishes::default();
        for (packet_id, qos, waits) in
            [(0, QoS::AtMostOnce, 0), (9, QoS::ExactlyOnce, 1), (7, QoS::AtLeastOnce, 0)]
        {
            let mut retained = Message::new("a", &[], b"x");
            (retained.retain, retained.qos) = (true, qos);
            publishes.push(Item::work(packet_id, Arc::new(retained), waits));
        }
        let stored = |publishes: &mut Publishes| {
            publishes.take_retainable().map(|(number, _, sequence)| (number, sequence))
        };
        assert_eq!(stored(&mut publishes), Some((0, None)));
        assert_eq!(stored(&mut publishes), None);
        publishes.prepared(0);
        assert!(publishes.take_routable().is_some());
        publishes.set_routed(0, 0, ReasonCode::Success);
        assert_eq!(finished(&mut publishes), [0]);
        publishes.received(1, false, 42);
        assert_eq!(stored(&mut publishes), Some((1, Some(42))));
        assert_eq!(stored(&mut publishes), Some((2, None)));
        assert!(publishes.take_routable().is_none());
        publishes.prepared(2);
        publishes.prepared(1);
        assert!(publishes.take_routable().is_some());
        assert!(publishes.take_routable().is_some());
    }

    /// DESIGN §2 step 5: the stamp of the appends comes with the received id.
    #[test]
    fn a_received_id_brings_its_sequence() {
        let mut publishes = Publishes::default();
        publishes.push(Item::work(9, message(QoS::ExactlyOnce), 1));
        publishes.received(0, true, 42);
        let (_, work) = publishes.take_routable().expect("it was received");
        let work = work.expect("a message to route");
        assert_eq!((work.sequence, work.repeated), (Some(42), true));
    }
}
