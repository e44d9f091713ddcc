//! One socket: read until `WouldBlock` or 64 KiB, decode all frames, hand the batch to the service, flush once. The driver
//! executes and never decides; it owns the only handle of the socket, so dropping it is the physical close.
