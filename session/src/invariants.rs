//! The one list of what must always hold; asserted in release builds where O(1), re-checked on load and in tests.
