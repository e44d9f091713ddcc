//! PINGREQ and PINGRESP (§3.12, §3.13): two bytes each.
