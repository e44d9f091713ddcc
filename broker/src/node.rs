//! One running node: the order in which its parts start and stop (owner spec §12).
