//! The async shell around `session::owner::Registry`: waiting for quiescence, the sweeper, the boot lease.

/// All owners of this boot.
#[derive(Debug)]
pub struct Owners {
    _private: (),
}
