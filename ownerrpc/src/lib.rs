//! Owner quiescence between nodes (Service 107) and the peer link that carries it.
//!
//! One node proves quiescence to itself through its own registry, so this crate is empty until there is a second node; it
//! stands here because the boundary table of ARCHITECTURE.md is already enforced.
