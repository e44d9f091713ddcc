//! Deliberate breakages of the harness around the real parts: each breaks one promise, and a checker must say so. Nothing of them is in
//! the crates of the product.

/// One broken wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The isolation takes a lease that ran out for a proof.
    SkipProofAfterLease,
    /// The isolation takes an answer that never came for a proof.
    SkipProofOnError,
    /// Service 107 stops whoever owns the session now, not the owner that was named.
    FollowSuccessor,
    /// Service 107 answers as soon as the fence is closed: the socket and the admitted work go on.
    TakeoverWithoutDrain,
    /// PUBACK and PUBREC go out before the append is committed.
    AckBeforeCommit,
    /// A follower says that its log is synced before it is.
    AckBeforeSync,
    /// An unanswered node is taken for dead at once, and its armed Wills are published.
    WillFromStaleOwner,
    /// A node counts the delay of the Will of a connection that it lost by itself, and publishes whoever owns the session by then.
    WillByOwnTimer,
    /// The executor of a Will publishes it without its stamp, and once more to be sure.
    WillTwice,
    /// A delivery gets the next free packet id, not the one of its offset.
    PacketIdOfConnection,
    /// A resend does not say that it is one.
    ResendWithoutDup,
    /// An append of a QoS 2 publish goes without its stamp.
    AppendWithoutStamp,
    /// A delivery begins again at the settled end after a takeover: what is unsettled is passed over.
    SkipUnsettled,
    /// End suppresses the Will that the operator wanted.
    EndLosesWill,
    /// End answers as soon as the row is Ended, without the proof.
    EndWithoutProof,
    /// Each node stamps a batch with its own clock when it applies it.
    ApplyReadsClock,
    /// A copy of a data directory mints a receipt for a boot that lives.
    CopiedDirectory,
    /// An attested retirement takes effect at once, though nobody said `--now`.
    AttestWithoutWait,
    /// An attested retirement waits for the lease end on the wall clock alone.
    AttestByWallClock,
    /// The local deadline of the boot lease is counted from its commit, not from before the proposal.
    LeaseFromCommit,
    /// What was proposed behind a batch that was lost is committed all the same.
    PassLostBatch,
    /// CONNECT takes whatever user the row has for the client's.
    AnyUser,
}

impl Mutant {
    pub const ALL: [Self; 22] = [
        Self::SkipProofAfterLease,
        Self::SkipProofOnError,
        Self::FollowSuccessor,
        Self::TakeoverWithoutDrain,
        Self::AckBeforeCommit,
        Self::AckBeforeSync,
        Self::WillFromStaleOwner,
        Self::WillByOwnTimer,
        Self::WillTwice,
        Self::PacketIdOfConnection,
        Self::ResendWithoutDup,
        Self::AppendWithoutStamp,
        Self::SkipUnsettled,
        Self::EndLosesWill,
        Self::EndWithoutProof,
        Self::ApplyReadsClock,
        Self::CopiedDirectory,
        Self::AttestWithoutWait,
        Self::AttestByWallClock,
        Self::LeaseFromCommit,
        Self::PassLostBatch,
        Self::AnyUser,
    ];
}
