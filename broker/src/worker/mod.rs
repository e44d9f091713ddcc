//! One worker: its connections' `gateway::service::Service`, its mailbox, and the hot path from PUBLISH to outboxes and inboxes.
