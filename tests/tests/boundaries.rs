//! The boundary table of ARCHITECTURE.md, held against `cargo metadata`.

use std::collections::BTreeMap;
use std::process::Command;

/// Crate → which of ours it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("session", &[]),
    ("ownerrpc", &["session"]),
    ("storage", &["session"]),
    ("gateway", &["session"]),
    ("broker", &["session", "ownerrpc", "storage", "gateway"]),
    ("tests", &["session", "ownerrpc", "storage", "gateway", "broker"]),
    ("bench", &["session", "ownerrpc", "storage", "gateway", "broker"]),
];

/// Crate → what it must never depend on, directly.
const MUST_NOT: &[(&str, &[&str])] = &[
    ("session", &["tokio", "openraft", "rand", "tracing", "redb", "socket2", "futures-util"]),
    ("storage", &["socket2", "rustls", "tokio-rustls"]),
    ("gateway", &["openraft", "redb", "sled"]),
];

#[test]
fn crates_use_only_what_the_boundary_table_allows() {
    let crates = dependencies();
    let ours: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for (name, allowed) in MAY_USE {
        for used in &crates[*name] {
            let inside = ours.contains(&used.as_str());
            assert!(!inside || allowed.contains(&used.as_str()), "`{name}` imports `{used}`");
        }
    }
}

#[test]
fn crates_keep_away_from_what_they_must_not_hold() {
    let crates = dependencies();
    for (name, forbidden) in MUST_NOT {
        for used in &crates[*name] {
            assert!(!forbidden.contains(&used.as_str()), "`{name}` depends on `{used}`");
        }
    }
}

#[test]
fn the_tree_has_neither_openssl_nor_a_second_crypto_library() {
    let lock =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).expect("Cargo.lock");
    for banned in ["openssl-sys", "native-tls", "aws-lc-sys", "cmake"] {
        assert!(!lock.contains(&format!("name = \"{banned}\"\n")), "{banned} is in Cargo.lock");
    }
}

/// Normal (not development) dependencies of each workspace member.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let of = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().expect("dependencies");
        all.iter()
            .filter(|dependency| dependency["kind"].is_null())
            .map(|dependency| dependency["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    packages.iter().map(|p| (p["name"].as_str().expect("a name").to_owned(), of(p))).collect()
}
