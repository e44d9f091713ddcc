//! What the broker's own suites share.
#![allow(dead_code, reason = "each suite uses its part")]

pub mod bench;
pub mod rows;
