//! Every bound of the domain, each with a name and a reason (P9).

/// Owner spec §1.1.
pub const NAMESPACE_BYTES_MAX: usize = 1_024;
/// Owner spec §1.1; a longer ClientID on the wire is refused with 0x85.
pub const CLIENT_ID_BYTES_MAX: usize = 1_024;
/// Owner spec §1.1.
pub const UID_BYTES_MAX: usize = 1_024;
/// Owner spec §1.1.
pub const BOOT_ID_BYTES_MAX: usize = 128;
/// Owner spec §1.1.
pub const WILL_TOPIC_BYTES_MAX: usize = 2_048;
/// Owner spec §1.1; original and frozen payload each.
pub const WILL_PAYLOAD_BYTES_MAX: usize = 65_535;
/// Bytes of a topic name or filter: its length on the wire has two bytes (MQTT §1.5.4).
pub const TOPIC_BYTES_MAX: usize = 65_535;
/// Levels of a topic name or filter; longer ones are refused (deep recursion and memory).
pub const TOPIC_LEVELS_MAX: usize = 256;
/// Slots that session keys and topics hash into; they map to groups (DESIGN §5).
pub const SLOTS: u16 = 256;
/// Offsets that may be in flight at once, counted from the oldest that is not settled, so that `offset mod 65,535 + 1` is a unique
/// packet id. An inbox may be longer: what lies beyond waits. Settled offsets that an inbox may keep behind its base beside its quota.
pub const INBOX_SPAN_MAX: u64 = 65_535;
/// Owners that one registry may retain (owner spec §2.1).
pub const OWNERS_MAX: usize = 1_000_000;
/// Scopes that one owner may have open, at most (owner spec §2.1).
pub const OWNER_OPERATIONS_MAX: u32 = 1_024;
/// Pending timeout, lease and close retry of an owner, at most (owner spec §2.1).
pub const OWNER_TIMEOUT_MS_MAX: u64 = 60_000;
/// Owners that one turn of the sweeper visits, at most (owner spec §3.2).
pub const OWNER_SWEEP_MAX: usize = 256;
/// Users and ClientIDs that one group denies, at most; a user counts in every group.
pub const DENIED_MAX: usize = 100_000;
/// Bytes of an operator's words for a denial.
pub const DENY_REASON_BYTES_MAX: usize = 256;
/// Bytes of what an operator or a fence agent says about a boot that is retired; it is part of the boot's row.
pub const RETIRE_TEXT_BYTES_MAX: usize = 1_024;
