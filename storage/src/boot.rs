//! Files that prove how a boot ended: the data-directory lock, started markers, graceful and crash receipts (owner spec §10).
