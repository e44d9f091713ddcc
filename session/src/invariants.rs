//! The one list of what must always hold; asserted in release builds where O(1), re-checked on load and in tests.
//!
//! | id | statement | source | asserted in |
//! | --- | --- | --- | --- |
//! | L1 | lifecycle `apply` is a function of (state, index, batch): equal logs give byte-equal rows | DESIGN §2 | tests (`group/test`), simulator |
//! | L2 | a row has the shape of its state: Offline needs an expiry, Ended refers to no Will, numbers are not 0 | owner spec §5.1 | [`row_shape`]: every write, load |
//! | L3 | a row moves only along the drawn diagram: revision +1, owner generation +0/+1, same user, an ended generation never comes back | owner spec §5.2, §5.4 | [`row_follows`]: every write |
//! | L4 | the boot of the last owner of a row is known: its retirement can prove that the owner stopped | DESIGN §7 | [`boot_is_known`]: load, tests |
//! | L5 | every current lifetime is found by its number, and names its row | DESIGN §9 | [`lifetime_is_indexed`]: load, tests |
//! | L6 | whatever becomes due stands in the index of its kind | owner spec §7.6 | [`deadline_is_indexed`]: load, tests |
//! | W1 | a Will has the times and the executor of its stage | owner spec §6.1 | [`will_shape`]: every write, load |
//! | W2 | a session refers only to an Armed (Active) or Waiting (Offline) Will | owner spec §6.1 | [`will_reference`]: load, tests |
//! | W3 | an Armed or Waiting Will is referred to, a Ready or Executing one is detached and in the due index: none is lost | owner spec §6.2 | [`will_is_reachable`]: load, tests |
//! | I1 | the counters of an inbox are those of its unsettled entries | DESIGN §9 | [`inbox_shape`]: load, tests |
//! | I2 | at most 65,535 offsets from the oldest unsettled one on were ever sent, so that a packet id names one of them | MQTT 5 §2.2.1 | [`inbox_span`]: load, check |
//! | Q2 | a message has as many references as entries and retained topics refer to it, and is stored while it has one | DESIGN §9 | `Messages::release`, load, tests |
//! | Q3 | channels, members, claims and leases of the queue layer agree: members keep the leases of their channel, claims have a member and a record, counters are right | DESIGN §9 | `queue::Space::check`: load, tests |
//! | T1 | totals are the sums of what they count | – | [`totals`]: load, tests |

use thiserror::Error;

use crate::lifecycle::{EndReason, GroupStat, InboxStat, SessionRow, SessionState, WillRow, WillStage};
use crate::limits::INBOX_SPAN_MAX;

/// A broken invariant: a bug or damage, never an answer to a client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("invariant L2: session {client_id}: {what}")]
    RowShape { client_id: String, what: &'static str },
    #[error("invariant L3: session {client_id}: {what}")]
    RowStep { client_id: String, what: &'static str },
    #[error("invariant L4: the boot of the last owner of session {client_id} is unknown")]
    UnknownBoot { client_id: String },
    #[error("invariant L5: the lifetime {lifetime} of session {client_id} is not indexed")]
    LostLifetime { client_id: String, lifetime: u64 },
    #[error("invariant L6: a deadline of session {client_id} is not indexed")]
    LostDeadline { client_id: String },
    #[error("invariant W1: Will {will_generation} of {client_id}: {what}")]
    WillShape { client_id: String, will_generation: u64, what: &'static str },
    #[error(
        "invariant W2: session {client_id} refers to Will {will_generation}, which is missing or past waiting"
    )]
    WillReference { client_id: String, will_generation: u64 },
    #[error("invariant W3: Will {will_generation} of {client_id} cannot be reached")]
    LostWill { client_id: String, will_generation: u64 },
    #[error("invariant I1: an inbox counts {counted} {what}, it holds {held}")]
    InboxCounters { what: &'static str, counted: u64, held: u64 },
    #[error("invariant I2: an inbox that begins at {base} was sent up to {sent_through}")]
    InboxSpan { base: u64, sent_through: u64 },
    #[error("invariants Q2, T1: {what}: {left} and {right} differ")]
    Totals { what: &'static str, left: u64, right: u64 },
    #[error("invariant L5: {what} {id} does not fit its session")]
    Orphan { what: &'static str, id: u64 },
    #[error("invariant Q3: {what}")]
    Queue { what: String },
}

/// L2.
///
/// # Errors
/// What is wrong with the row.
pub fn row_shape(row: &SessionRow) -> Result<(), Violation> {
    let fail = |what| Err(Violation::RowShape { client_id: row.owner.key.client_id.to_string(), what });
    let numbers = [
        row.owner.session_generation,
        row.owner.owner_generation,
        row.owner.node_id,
        row.owner.connection_id,
        row.revision,
        row.lifetime,
    ];
    if numbers.contains(&0) {
        return fail("a number is zero");
    }
    if row.will_generation > row.revision || row.reclaimed_through > row.owner.session_generation {
        return fail("a reference is ahead of the row");
    }
    match row.state {
        SessionState::Active => Ok(()),
        SessionState::Offline { offline_expires_at } => {
            if row.expiry_sec == 0 || offline_expires_at < row.updated_at {
                return fail("an offline row must expire after its connection");
            }
            Ok(())
        }
        SessionState::Ended { .. } if row.will_generation != 0 => fail("an ended row refers to a Will"),
        SessionState::Ended { .. } => Ok(()),
    }
}

/// L3.
///
/// # Errors
/// Which rule the step breaks.
pub fn row_follows(old: &SessionRow, next: &SessionRow) -> Result<(), Violation> {
    let fail = |what| Err(Violation::RowStep { client_id: old.owner.key.client_id.to_string(), what });
    if old.owner.key != next.owner.key || old.uid != next.uid {
        return fail("the key or the user changed");
    }
    if old.revision.checked_add(1) != Some(next.revision) || next.updated_at < old.updated_at {
        return fail("the revision is not the next one, or time runs backwards");
    }
    let owner_step = next.owner.owner_generation.wrapping_sub(old.owner.owner_generation);
    let generation_step = next.owner.session_generation.wrapping_sub(old.owner.session_generation);
    if owner_step > 1 || generation_step > 1 || generation_step > owner_step {
        return fail("a generation jumped");
    }
    if owner_step == 0 && old.owner != next.owner {
        return fail("the owner changed without a new owner generation");
    }
    if owner_step == 1 && next.state != SessionState::Active {
        return fail("a new owner must be active");
    }
    if (generation_step == 0) != (old.lifetime == next.lifetime) {
        return fail("the lifetime and its generation change together");
    }
    if generation_step == 1 {
        return Ok(());
    }
    match (old.state, next.state) {
        (SessionState::Ended { .. }, _) => fail("an ended generation changed"),
        (SessionState::Offline { .. }, SessionState::Active) if owner_step == 0 => {
            fail("an offline session came back without a new owner")
        }
        (SessionState::Active, SessionState::Active) if owner_step == 0 => {
            fail("an active row changed outside of the lifecycle")
        }
        (_, SessionState::Ended { reason: EndReason::CleanStart }) => {
            fail("Clean Start replaces, it does not end")
        }
        _ => Ok(()),
    }
}

/// L4.
///
/// # Errors
/// The boot is unknown.
pub fn boot_is_known(row: &SessionRow, known: bool) -> Result<(), Violation> {
    known
        .then_some(())
        .ok_or_else(|| Violation::UnknownBoot { client_id: row.owner.key.client_id.to_string() })
}

/// L5.
///
/// # Errors
/// The lifetime is not found, or names another row.
pub fn lifetime_is_indexed(row: &SessionRow, indexed: bool) -> Result<(), Violation> {
    indexed.then_some(()).ok_or_else(|| Violation::LostLifetime {
        client_id: row.owner.key.client_id.to_string(),
        lifetime: row.lifetime,
    })
}

/// L6.
///
/// # Errors
/// A deadline is missing.
pub fn deadline_is_indexed(row: &SessionRow, indexed: bool) -> Result<(), Violation> {
    indexed
        .then_some(())
        .ok_or_else(|| Violation::LostDeadline { client_id: row.owner.key.client_id.to_string() })
}

/// W1.
///
/// # Errors
/// What does not fit the stage.
pub fn will_shape(will: &WillRow) -> Result<(), Violation> {
    let fail = |what| {
        Err(Violation::WillShape {
            client_id: will.key.client_id.to_string(),
            will_generation: will.will_generation,
            what,
        })
    };
    if will.session_generation == 0 || will.will_generation == 0 {
        return fail("a number is zero");
    }
    let times = will.disconnected_at.zip(will.due_at);
    match will.stage {
        WillStage::Armed if will.disconnected_at.is_some() || will.due_at.is_some() => {
            fail("an armed Will has times")
        }
        WillStage::Armed => Ok(()),
        WillStage::Published | WillStage::Cancelled | WillStage::Rejected => {
            fail("a terminal Will is stored")
        }
        WillStage::Waiting if will.delay_sec == 0 => fail("a Will without delay waits"),
        WillStage::Waiting | WillStage::Ready | WillStage::Executing => {
            let Some((disconnected_at, due_at)) = times else { return fail("its times are missing") };
            if due_at < disconnected_at {
                return fail("it is due before its connection ended");
            }
            match (will.stage, &will.executor) {
                (WillStage::Executing, Some(_)) => Ok(()),
                (WillStage::Executing, None) => fail("nobody executes it"),
                (_, Some(_)) => fail("somebody executes it already"),
                (_, None) => Ok(()),
            }
        }
    }
}

/// W2.
///
/// # Errors
/// The reference does not fit.
pub fn will_reference(row: &SessionRow, fits: bool) -> Result<(), Violation> {
    fits.then_some(()).ok_or_else(|| Violation::WillReference {
        client_id: row.owner.key.client_id.to_string(),
        will_generation: row.will_generation,
    })
}

/// W3.
///
/// # Errors
/// The Will would never be looked at.
pub fn will_is_reachable(will: &WillRow, reachable: bool) -> Result<(), Violation> {
    reachable.then_some(()).ok_or_else(|| Violation::LostWill {
        client_id: will.key.client_id.to_string(),
        will_generation: will.will_generation,
    })
}

/// I1.
///
/// # Errors
/// A counter is wrong.
pub fn inbox_shape(stat: &InboxStat, messages: u64, bytes: u64) -> Result<(), Violation> {
    if stat.messages != messages {
        return Err(Violation::InboxCounters { what: "messages", counted: stat.messages, held: messages });
    }
    if stat.bytes != bytes {
        return Err(Violation::InboxCounters { what: "bytes", counted: stat.bytes, held: bytes });
    }
    Ok(())
}

/// I2.
///
/// # Errors
/// Two offsets in flight would share a packet id.
pub fn inbox_span(base: u64, sent_through: u64) -> Result<(), Violation> {
    if sent_through.saturating_sub(base) <= INBOX_SPAN_MAX {
        Ok(())
    } else {
        Err(Violation::InboxSpan { base, sent_through })
    }
}

/// Q2, T1: two ways of counting the same thing.
///
/// # Errors
/// They differ.
pub fn equal(what: &'static str, left: u64, right: u64) -> Result<(), Violation> {
    if left == right { Ok(()) } else { Err(Violation::Totals { what, left, right }) }
}

/// T1.
///
/// # Errors
/// The first total that is wrong.
pub fn totals(counted: &GroupStat, kept: &GroupStat) -> Result<(), Violation> {
    equal("active sessions", counted.sessions_active, kept.sessions_active)?;
    equal("offline sessions", counted.sessions_offline, kept.sessions_offline)?;
    equal("ended sessions", counted.sessions_ended, kept.sessions_ended)?;
    equal("subscriptions", counted.subscriptions, kept.subscriptions)?;
    equal("inboxes", counted.inboxes, kept.inboxes)?;
    equal("queued messages", counted.inbox_messages, kept.inbox_messages)?;
    equal("queued bytes", counted.inbox_bytes, kept.inbox_bytes)?;
    equal("stored messages", counted.messages_stored, kept.messages_stored)?;
    equal("retained messages", counted.retained, kept.retained)?;
    equal("armed Wills", counted.wills_armed, kept.wills_armed)?;
    equal("waiting Wills", counted.wills_waiting, kept.wills_waiting)?;
    equal("ready Wills", counted.wills_ready, kept.wills_ready)
}
