//! Promises of the audit log: complete, in order, bounded, and a crash in the middle of a line costs that line only.

use std::io::Write as _;

use super::audit::{Audit, AuditFilter, AuditRecord, CURRENT, READ_BYTES_MAX};

pub(super) fn record(client_id: &str) -> AuditRecord {
    AuditRecord {
        seq: 0,
        at_ms: 0,
        action: "session.end".to_owned(),
        who: "admin token, from 127.0.0.1:1".to_owned(),
        namespace: "main".to_owned(),
        client_id: client_id.to_owned(),
        subject: None,
        owner: None,
        reason: "revoked".to_owned(),
        will: "publish".to_owned(),
        release: false,
        result: "ended".to_owned(),
        revision: Some(2),
        node_id: None,
        boot_id: None,
        waited: None,
        detail: None,
    }
}

fn all(audit: &Audit, limit: usize) -> Vec<u64> {
    let (mut seqs, mut cursor) = (Vec::new(), None);
    loop {
        let page = audit.page(limit, cursor, &AuditFilter::default()).expect("readable");
        assert!(page.records.len() <= limit);
        seqs.extend(page.records.iter().map(|record| record.seq));
        match page.cursor {
            Some(next) => cursor = Some(next.parse().expect("a number")),
            None => return seqs,
        }
    }
}

#[test]
fn records_come_back_newest_first_over_restarts_and_pages() {
    let directory = tempfile::tempdir().expect("a directory");
    for start in 0..3 {
        let audit = Audit::open(directory.path(), 1 << 30).expect("open");
        // Long enough that the file is read in several blocks.
        (0..40).for_each(|n| audit.append(vec![record(&"x".repeat(n * 50 + start + 1))]).expect("written"));
    }
    let audit = Audit::open(directory.path(), 1 << 30).expect("open");
    let expected: Vec<u64> = (1..=120).rev().collect();
    for limit in [1, 7, 120, 1_000] {
        assert_eq!(all(&audit, limit), expected, "limit {limit}");
    }
    let page = audit.page(1, None, &AuditFilter::default()).expect("readable");
    assert!(page.records[0].client_id.len() == 1_953 && page.records[0].at_ms > 1_600_000_000_000);
}

#[test]
fn a_torn_line_costs_only_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let audit = Audit::open(directory.path(), 1 << 20).expect("open");
    audit.append(vec![record("a")]).expect("written");
    let path = directory.path().join("audit.jsonl");
    let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("open");
    file.write_all(b"{\"seq\":2,\"at_").expect("written");
    let audit = Audit::open(directory.path(), 1 << 20).expect("open");
    audit.append(vec![record("b")]).expect("written");
    assert_eq!(all(&audit, 10), [2, 1]);
}

/// P9: at most two files of bounded size, the newest records in them.
#[test]
fn the_log_is_bounded_and_keeps_the_newest() {
    let directory = tempfile::tempdir().expect("a directory");
    let bytes_max = 3_000;
    let audit = Audit::open(directory.path(), bytes_max).expect("open");
    (0..50).for_each(|_| audit.append(vec![record("c")]).expect("written"));
    let seqs = all(&audit, 3);
    assert!(
        seqs.len() >= 10 && seqs[0] == 50 && seqs.windows(2).all(|pair| pair[0] == pair[1] + 1),
        "{seqs:?}"
    );
    let files: Vec<_> =
        std::fs::read_dir(directory.path()).expect("there").map(|entry| entry.expect("entry")).collect();
    assert_eq!(files.len(), 2);
    assert!(files.iter().all(|file| file.metadata().expect("there").len() <= bytes_max));
}

#[test]
fn after_a_failed_write_nothing_more_is_recorded() {
    let directory = tempfile::tempdir().expect("a directory");
    let audit = Audit::open(directory.path(), 1).expect("open");
    audit.append(vec![record("a")]).expect("written");
    // The next one has to turn the file over, in a directory that is gone.
    std::fs::remove_dir_all(directory.path()).expect("removed");
    assert!(audit.check().is_ok() && audit.append(vec![record("b")]).is_err());
    assert!(audit.check().is_err() && audit.append(vec![record("c")]).is_err());
}

/// Issue 5 §4: pages lead to the oldest record however large the files are, and a filter leaves nothing out.
#[test]
fn pages_and_filters_reach_the_oldest_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let audit = Audit::open(directory.path(), 1 << 30).expect("open");
    // More than one page may read.
    let long = "x".repeat(60_000);
    for n in 0..200 {
        let name = if n % 100 == 5 { "rare".to_owned() } else { format!("{n}-{long}") };
        audit.append(vec![record(&name)]).expect("written");
    }
    assert!(std::fs::metadata(directory.path().join(CURRENT)).expect("there").len() > READ_BYTES_MAX);
    assert_eq!(all(&audit, 7), (1..=200).rev().collect::<Vec<u64>>());
    let wanted = AuditFilter { client_id: Some("rare".to_owned()), ..AuditFilter::default() };
    let (mut seqs, mut cursor) = (Vec::new(), None);
    loop {
        let page = audit.page(1, cursor, &wanted).expect("readable");
        seqs.extend(page.records.iter().map(|record| record.seq));
        let Some(next) = page.cursor else { break };
        cursor = Some(next.parse().expect("a number"));
    }
    assert_eq!(seqs, [106, 6]);
}
