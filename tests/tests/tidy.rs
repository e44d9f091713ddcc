//! Habits that a reviewer should not have to look for.

use std::path::{Path, PathBuf};

const CRATES: &[&str] = &["broker", "session", "ownerrpc", "storage", "gateway", "tests", "bench"];
const LINES_MAX: usize = 800;

#[test]
fn every_file_says_why_it_exists() {
    for path in sources() {
        let text = read(&path);
        assert!(text.starts_with("//!"), "{}: the first line must be `//!` and say why", path.display());
    }
}

#[test]
fn nothing_is_left_for_later() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("todo", "!("),
        concat!("dbg", "!("),
        concat!("unimplemented", "!("),
    ];
    for path in sources() {
        for (number, line) in read(&path).lines().enumerate() {
            for word in words {
                assert!(!line.contains(word), "{}:{}: {word}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn files_stay_small() {
    for path in sources() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_test = name.ends_with("_test.rs")
            || name.ends_with("_tests.rs")
            || path.components().any(|part| part.as_os_str() == "tests");
        let lines = read(&path).lines().count();
        assert!(is_test || lines <= LINES_MAX, "{} has {lines} lines, at most {LINES_MAX}", path.display());
    }
}

#[test]
fn the_domain_reads_no_clock_and_knows_no_runtime() {
    for path in under(Path::new(env!("CARGO_MANIFEST_DIR")).join("../session/src")) {
        let is_test = path.to_string_lossy().contains("test");
        for word in ["Instant::now", "SystemTime::now", "tokio", ".await", "std::fs", "std::net"] {
            assert!(is_test || !read(&path).contains(word), "{}: {word}", path.display());
        }
    }
}

fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    CRATES.iter().flat_map(|name| under(root.join(name))).collect()
}

fn under(folder: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let skipped = path.file_name().is_some_and(|name| name == "target" || name == "fuzz");
        if path.is_dir() && !skipped {
            found.extend(under(path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("readable")
}
