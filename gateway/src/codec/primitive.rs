//! Variable byte integers, strings and binary data (§1.5), bounded by their frame.
