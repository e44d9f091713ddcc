//! The scenarios of the comparison, one file a family.

pub(crate) mod connect;
pub(crate) mod flood;
pub(crate) mod flow;
pub(crate) mod queue;
pub(crate) mod setup;
pub(crate) mod topics;
