//! Receipts: the published byte vectors, every step of recovery, and what must stop a start (owner spec §10).

use session::id::Key;

use super::*;

fn boot(id: &str) -> Boot {
    Boot { node_id: 3, boot_id: id.into() }
}

fn owner(boot_id: &str, node_id: u64, connection_id: u64) -> Owner {
    Owner {
        key: Key::new("n".into(), "c".into()).unwrap(),
        session_generation: 1,
        owner_generation: 2,
        node_id,
        boot_id: boot_id.into(),
        connection_id,
    }
}

/// Owner spec §10.2, vectors.
#[test]
fn golden_receipt_and_marker_bytes() {
    assert_eq!(stem(&boot("b")), "92a7232f2ecfac6df1f86f91dc883d4a6e474c3588eaf5eb295e2b4da93a9406");
    assert_eq!(
        hex(&receipt(&boot("b"), 4)),
        "4d514f520001000000000000000300000000000000040001622c08b0760236d72ddefa650845e098b9c1cdae754522062e8ef4b06683562c00"
    );
    assert_eq!(
        hex(&marker(&boot("b"))),
        "4d514f53000100000000000000030001626b129e5d821c5d6a29f4db11ea644d4ee54ed18004623d9a1e2f5f16f881a96b"
    );
    assert_eq!(
        hex(&receipt(&boot("b"), CRASHED)),
        "4d514f5200010000000000000003ffffffffffffffff0001621c0986de30144c4411a51e9775b5d981f0f8861ffb2eb833336504745f8581d2"
    );
    let decoded = decode_receipt(&receipt(&boot("b"), 4)).unwrap();
    assert_eq!(decoded, Retirement { boot: boot("b"), connection_id_max: 4 });
    assert_eq!(decode_marker(&marker(&boot("b"))).unwrap(), boot("b"));
}

#[test]
fn any_flipped_bit_is_noticed() {
    for bytes in [receipt(&boot("b"), 4), marker(&boot("b"))] {
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode_receipt(&damaged).is_err() && decode_marker(&damaged).is_err(), "byte {at}");
        }
    }
}

/// Owner spec §10.1: the receipt covers what was issued, nothing above.
#[test]
fn graceful_receipt_covers_connections_up_to_its_highest() {
    let dir = tempfile::tempdir().unwrap();
    let (boots, _) = Boots::recover(dir.path(), 3, "a").unwrap();
    boots.record_graceful(4).unwrap();
    boots.record_graceful(4).unwrap();
    assert!(boots.record_graceful(5).is_err(), "a receipt never changes");
    drop(boots);
    let (boots, recovered) = Boots::recover(dir.path(), 3, "b").unwrap();
    assert_eq!(recovered.graceful, [Retirement { boot: boot("a"), connection_id_max: 4 }]);
    assert!(recovered.crashed.is_empty());
    assert_eq!(boots.lookup(&owner("a", 3, 4)).unwrap(), Proof::Graceful);
    assert_eq!(boots.lookup(&owner("a", 3, 5)).unwrap(), Proof::Unknown);
    assert_eq!(boots.lookup(&owner("a", 4, 4)).unwrap(), Proof::Unknown, "another node");
    assert_eq!(boots.lookup(&owner("z", 3, 4)).unwrap(), Proof::Unknown, "no receipt");
    assert_eq!(boots.lookup(&owner("b", 3, 1)).unwrap(), Proof::Unknown, "the current boot");
    boots.prune(&boot("a")).unwrap();
    assert_eq!(boots.lookup(&owner("a", 3, 4)).unwrap(), Proof::Unknown);
    assert!(boots.prune(&boot("b")).is_err());
}

/// Owner spec §10.2: a marker without receipt is a crash, also a second time.
#[test]
fn a_started_marker_becomes_a_crash_receipt() {
    let dir = tempfile::tempdir().unwrap();
    drop(Boots::recover(dir.path(), 3, "a").unwrap());
    for next in ["b", "c"] {
        let (boots, recovered) = Boots::recover(dir.path(), 3, next).unwrap();
        assert!(recovered.crashed.contains(&Arc::from("a")));
        assert_eq!(boots.lookup(&owner("a", 3, u64::MAX)).unwrap(), Proof::Crashed);
        assert!(!boots.path(&boot("a"), MARKER).exists());
    }
}

#[test]
fn nothing_is_recorded_when_no_connection_was_issued() {
    let dir = tempfile::tempdir().unwrap();
    let (boots, _) = Boots::recover(dir.path(), 3, "a").unwrap();
    boots.record_graceful(0).unwrap();
    drop(boots);
    let (_, recovered) = Boots::recover(dir.path(), 3, "b").unwrap();
    assert_eq!(recovered.crashed, [Arc::from("a")]);
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Boots::recover(dir.path(), 3, "a").unwrap();
    assert!(matches!(Boots::recover(dir.path(), 3, "b"), Err(StorageError::Locked(_))));
}

#[test]
fn a_boot_id_is_never_used_twice() {
    let dir = tempfile::tempdir().unwrap();
    drop(Boots::recover(dir.path(), 3, "a").unwrap());
    assert!(matches!(Boots::recover(dir.path(), 3, "a"), Err(StorageError::Damaged { .. })));
    let (boots, _) = Boots::recover(dir.path(), 3, "b").unwrap();
    boots.record_graceful(1).unwrap();
    drop(boots);
    assert!(matches!(Boots::recover(dir.path(), 3, "b"), Err(StorageError::Damaged { .. })));
}

/// Owner spec §10.2: corrupt, foreign or renamed markers fail closed.
#[test]
fn a_bad_marker_stops_the_start() {
    let foreign = marker(&Boot { node_id: 9, boot_id: "x".into() });
    let cases: [(&str, Vec<u8>); 4] = [
        ("corrupt", vec![0; 49]),
        ("foreign", foreign),
        ("renamed", marker(&boot("x"))),
        ("huge", vec![0; 2_000]),
    ];
    for (case, bytes) in cases {
        let dir = tempfile::tempdir().unwrap();
        drop(Boots::recover(dir.path(), 3, "a").unwrap());
        std::fs::write(receipts_dir(dir.path()).join("0000.started"), bytes).unwrap();
        let refused = Boots::recover(dir.path(), 3, "b");
        assert!(matches!(refused, Err(StorageError::Damaged { .. })), "{case}");
    }
}

#[test]
fn a_symbolic_link_proves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (boots, _) = Boots::recover(dir.path(), 3, "a").unwrap();
    let real = dir.path().join("real");
    std::fs::write(&real, receipt(&boot("x"), 9)).unwrap();
    std::os::unix::fs::symlink(&real, boots.path(&boot("x"), RECEIPT)).unwrap();
    assert_eq!(boots.lookup(&owner("x", 3, 1)).unwrap(), Proof::Unknown);
}

/// DESIGN §7: a copied directory mints no receipt.
#[test]
fn a_copied_directory_mints_no_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let (original, copy) = (dir.path().join("a"), dir.path().join("b"));
    drop(Boots::recover(&original, 3, "a").unwrap());
    make_dir(&receipts_dir(&copy)).unwrap();
    std::fs::copy(original.join("identity"), copy.join("identity")).unwrap();
    let name = format!("{}.{MARKER}", stem(&boot("a")));
    std::fs::copy(receipts_dir(&original).join(&name), receipts_dir(&copy).join(&name)).unwrap();
    assert!(matches!(Boots::recover(&copy, 3, "b"), Err(StorageError::Copied { .. })));
    Identity::adopt(&copy).unwrap();
    Boots::forget_started(&copy).unwrap();
    let (boots, recovered) = Boots::recover(&copy, 3, "b").unwrap();
    assert_eq!(recovered, Recovered::default());
    assert_eq!(boots.lookup(&owner("a", 3, 1)).unwrap(), Proof::Unknown);
}
