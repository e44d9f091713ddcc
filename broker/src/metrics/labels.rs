//! Every label of every series: closed sets, so that no identity, topic or error text can become one (owner spec §13).

/// Declares a closed label set.
macro_rules! labels {
    ($($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            pub const COUNT: usize = Self::ALL.len();

            /// Value of the label.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl Label for $name {
            fn words() -> impl Iterator<Item = &'static str> {
                Self::ALL.iter().map(|label| label.word())
            }
        }
    )+};
}

/// A closed set of label values, in the order of the discriminants.
pub(super) trait Label {
    fn words() -> impl Iterator<Item = &'static str>;
}

labels! {
    Direction { In = "in", Out = "out" }

    /// Types of MQTT control packets, in the order of their numbers.
    PacketLabel {
        Connect = "connect", ConnAck = "connack", Publish = "publish", PubAck = "puback", PubRec = "pubrec",
        PubRel = "pubrel", PubComp = "pubcomp", Subscribe = "subscribe", SubAck = "suback",
        Unsubscribe = "unsubscribe", UnsubAck = "unsuback", PingReq = "pingreq", PingResp = "pingresp",
        Disconnect = "disconnect", Auth = "auth",
    }

    QosLabel { Zero = "0", One = "1", Two = "2" }

    ProtocolLabel { Tcp = "tcp", Tls = "tls", Ws = "ws", Wss = "wss" }

    /// Why a connection ended.
    CloseReason {
        /// DISCONNECT 0x00: no Will is due.
        Normal = "normal",
        /// Everything else that ends a session's connection.
        Abnormal = "abnormal",
        /// Gone before its CONNACK was written.
        Unanswered = "unanswered",
    }

    /// Why a message did not reach a subscriber, or was not taken from a publisher.
    DropReason {
        OutboxFull = "outbox_full",
        /// The inbox of a durable session holds as many messages or bytes as it may.
        InboxQuota = "inbox_quota",
        /// The inboxes of a user hold together as many messages or bytes as they may.
        UserQuota = "user_quota",
        /// QoS 0 for a slow subscriber while the node is overloaded.
        Overload = "overload",
        Expired = "expired",
        /// Larger than the client's Maximum Packet Size.
        TooLarge = "too_large",
        NotAuthorized = "not_authorized",
        MailboxFull = "mailbox_full",
        /// Too much waits for another node.
        ForwardQueueFull = "forward_queue_full",
        /// Another node was lost, or took nothing, before it had the message.
        ForwardLost = "forward_lost",
        /// Larger than what the link to another node carries.
        ForwardTooLarge = "forward_too_large",
        /// No member of its shared subscription is left that could take it, or none of those that were tried.
        ShareUnserved = "share_unserved",
        /// The store lost its append to the inbox of a member of a shared subscription, several times over, or stopped.
        AppendLost = "append_lost",
        /// The node holds as many retained messages as it may, or the value is too large to be retained.
        Retained = "retained",
        /// The topic name has more than 256 levels.
        TooDeep = "too_deep",
    }

    /// How loaded the node is.
    #[derive(Default)]
    Level { #[default] Normal = "normal", Busy = "busy", Overloaded = "overloaded", Critical = "critical" }

    /// Why a connection that publishes was not read for a while.
    PauseReason {
        /// It used up the publish rate of its listener.
        ConnectionRate = "connection_rate",
        /// Its user used up `limits.user_publish_rate_max` or `_bytes_rate_max`.
        UserRate = "user_rate",
        /// The node is overloaded, and it brought much at once.
        Overload = "overload",
    }

    /// Why a socket was closed before its CONNECT.
    TurnedLabel {
        /// `listener.*.max_connections`.
        Full = "full",
        /// The process may not open more.
        Descriptors = "descriptors",
        /// `listener.*.connections_per_address_max`.
        Address = "address",
        /// It waited too long for its turn, or too many waited (`listener.*.connect_rate_max`, or the node is short of time).
        Rate = "rate",
        /// No complete CONNECT within `listener.*.connect_timeout_ms`.
        Silent = "silent",
    }

    /// How a CONNECT was answered.
    ConnectOutcome {
        New = "new", Resumed = "resumed", BadCredentials = "bad_credentials", NotAuthorized = "not_authorized",
        Binding = "binding", Denied = "denied", Invalid = "invalid", Limit = "limit", UserQuota = "user_quota", Overload = "overload", Unproved = "unproved", Unavailable = "unavailable",
        Deadline = "deadline", Stopped = "stopped", Conflict = "conflict",
    }

    /// How a CONNECT that met an active owner went.
    TakeoverOutcome { Done = "done", Conflict = "conflict", Unproved = "unproved", Deadline = "deadline", Failed = "failed" }

    /// Whether an owner was proved to have stopped.
    IsolationOutcome { Proved = "proved", Unknown = "unknown", Close = "close", Deadline = "deadline", Invalid = "invalid" }

    /// What `End` answered.
    EndOutcome {
        Ended = "ended", NotFound = "not_found", Fenced = "fenced", Unproved = "unproved", Close = "close",
        Deadline = "deadline", Invalid = "invalid", Unavailable = "unavailable",
    }

    WillEvent { Published = "published", Rejected = "rejected", Retried = "retried" }

    /// Wills that are not yet settled.
    WillState { Armed = "armed", Waiting = "waiting", Ready = "ready" }

    AuthOutcome {
        Password = "password", Cached = "cached", Certificate = "certificate", Token = "token", Scram = "scram", Hook = "hook", Anonymous = "anonymous",
        Denied = "denied", Busy = "busy",
    }

    SweepEvent { Turns = "turns", Visited = "visited", Failures = "failures" }

    OwnerState {
        Held = "held", Pending = "pending", Active = "active", Closing = "closing", Operations = "operations",
        Deadlines = "deadlines", Uncertain = "uncertain",
    }

    /// Leases of the queue layer, in the replicated tables.
    LeaseLabel { Held = "held", Armed = "armed", Delegated = "delegated" }

    /// Leases that this process holds.
    StandingLabel { Held = "held", AtRisk = "at_risk" }

    /// Where the lease of the node is.
    HomeLabel { Embedded = "embedded", Etcd = "etcd" }

    /// How it stands.
    NodeLeaseLabel { Held = "held", AtRisk = "at_risk", Lost = "lost" }

    /// Where the time of a message goes on its way through an inbox.
    StageLabel {
        /// From the proposal until it is durable in the inboxes of one group.
        Append = "append",
        /// A page of a backlog is read.
        Read = "read",
        /// From the inbox until it is written: the client's window and its outbox.
        Wait = "wait",
        /// From the write until the client's last acknowledgement.
        Client = "client",
        /// From that until it is durable.
        Settle = "settle",
    }

    /// What `log.slow_ms` is about.
    SlowLabel { Commit = "commit", Takeover = "takeover", Admin = "admin" }

    /// What a bridge does.
    BridgeLabel { Connected = "connected", Connecting = "connecting", Waiting = "waiting", Elsewhere = "elsewhere" }

    SessionLabel { Active = "active", Offline = "offline", Ended = "ended" }

    RaftState { Leader = "leader", Follower = "follower", Candidate = "candidate", Learner = "learner", Down = "down" }
}

impl Level {
    /// The next lower one.
    #[must_use]
    pub const fn below(self) -> Self {
        match self {
            Self::Normal | Self::Busy => Self::Normal,
            Self::Overloaded => Self::Busy,
            Self::Critical => Self::Overloaded,
        }
    }
}

impl From<session::message::QoS> for QosLabel {
    fn from(qos: session::message::QoS) -> Self {
        match qos {
            session::message::QoS::AtMostOnce => Self::Zero,
            session::message::QoS::AtLeastOnce => Self::One,
            session::message::QoS::ExactlyOnce => Self::Two,
        }
    }
}

impl From<crate::bridge::BridgeState> for BridgeLabel {
    fn from(state: crate::bridge::BridgeState) -> Self {
        match state {
            crate::bridge::BridgeState::Connected => Self::Connected,
            crate::bridge::BridgeState::Connecting => Self::Connecting,
            crate::bridge::BridgeState::Waiting => Self::Waiting,
            crate::bridge::BridgeState::Elsewhere => Self::Elsewhere,
        }
    }
}

impl From<crate::config::Protocol> for ProtocolLabel {
    fn from(protocol: crate::config::Protocol) -> Self {
        match protocol {
            crate::config::Protocol::Tcp => Self::Tcp,
            crate::config::Protocol::Tls => Self::Tls,
            crate::config::Protocol::Ws => Self::Ws,
            crate::config::Protocol::Wss => Self::Wss,
        }
    }
}
