//! Every engine keeps the same promises: atomic writes, ordered scans, views that do not move, everything there after a reopen.

use super::*;

fn check(kind: EngineKind, survives: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    {
        let engines = open(kind, &path, 2, 1 << 20).unwrap();
        let engine = &engines[0];
        assert_eq!(engine.meta().unwrap(), None);
        let mut rows = Rows::default();
        for key in [b"b", b"a", b"c"] {
            rows.push(key, Some(&[key[0]; 5]));
        }
        rows.push(b"empty", Some(b""));
        engine.write(&rows, b"one").unwrap();
        let view = engine.view().unwrap();
        let mut rows = Rows::default();
        rows.push(b"b", None);
        rows.push(b"a", Some(b"new"));
        rows.push(b"not there", None);
        assert_eq!(rows.len(), 3);
        if survives || kind == EngineKind::Memory {
            // sled has no snapshots: its view refuses instead.
            let seen = scan(view.as_ref());
            assert_eq!(seen.len(), 4);
        }
        engine.write(&rows, b"two").unwrap();
        if kind == EngineKind::Sled {
            assert!(matches!(view.scan(&mut |_, _| Ok(())), Err(StorageError::Unavailable(_))));
        } else {
            assert_eq!(scan(view.as_ref())[0], (b"a".to_vec(), b"aaaaa".to_vec()), "the view did not move");
            assert_eq!(view.meta().unwrap().as_deref(), Some(&b"one"[..]));
        }
        drop(view);
        assert_eq!(engine.get(b"b").unwrap(), None);
        assert_eq!(engine.get(b"empty").unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(scan(engines[1].view().unwrap().as_ref()), [], "groups are apart");
        if !survives {
            return;
        }
    }
    let engines = open(kind, &path, 2, 1 << 20).unwrap();
    let expected = [(&b"a"[..], &b"new"[..]), (b"c", b"ccccc"), (b"empty", b"")];
    let found = scan(engines[0].view().unwrap().as_ref());
    assert_eq!(found, expected.map(|(key, value)| (key.to_vec(), value.to_vec())));
    assert_eq!(engines[0].meta().unwrap().as_deref(), Some(&b"two"[..]));
    let failed = engines[0].replace(
        &mut |put| {
            put(b"x", b"y")?;
            Err(StorageError::Unavailable("cut off".to_owned()))
        },
        b"three",
    );
    assert!(failed.is_err());
    assert_eq!(engines[0].get(b"x").unwrap(), None, "a failed replacement changes nothing");
    assert_eq!(engines[0].meta().unwrap().as_deref(), Some(&b"two"[..]));
    engines[0].replace(&mut |put| put(b"x", b"y"), b"four").unwrap();
    assert_eq!(scan(engines[0].view().unwrap().as_ref()), [(b"x".to_vec(), b"y".to_vec())]);
}

fn scan(view: &dyn View) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    view.scan(&mut |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        Ok(())
    })
    .unwrap();
    rows
}

#[test]
fn redb_keeps_the_promises() {
    check(EngineKind::Redb, true);
}

#[test]
fn memory_keeps_the_promises_but_survival() {
    check(EngineKind::Memory, false);
}

#[cfg(feature = "store-sled")]
#[test]
fn sled_keeps_the_promises() {
    check(EngineKind::Sled, true);
}

#[cfg(not(feature = "store-sled"))]
#[test]
fn sled_says_how_to_get_it() {
    let refused = open(EngineKind::Sled, Path::new("unused"), 1, 0).map(drop);
    assert!(matches!(refused, Err(StorageError::EngineMissing("sled"))));
}

/// A flipped byte must never be read as a value.
#[test]
fn redb_notices_a_damaged_file() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap());
    let path = dir.path().join("g000.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..64].fill(0xAA);
    std::fs::write(&path, bytes).unwrap();
    assert!(open(EngineKind::Redb, dir.path(), 1, 1 << 20).is_err());
}

/// P4: a kill at any moment of the first start leaves a node that starts: the file is there, its tables are not.
#[test]
fn redb_goes_on_from_a_start_that_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    drop(::redb::Database::create(dir.path().join("g000.redb")).unwrap());
    std::fs::write(dir.path().join("g001.redb"), b"").unwrap();
    for _ in 0..2 {
        for engine in open(EngineKind::Redb, dir.path(), 2, 1 << 20).unwrap() {
            assert_eq!(engine.meta().unwrap(), None);
            assert_eq!(scan(engine.view().unwrap().as_ref()), []);
        }
    }
}

/// P9: after a deep backlog was drained the disk has its space back, and what is left is there, also after a reopen; not while a view is read.
#[test]
fn redb_gives_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let key = |number: u32| number.to_be_bytes();
    let taken = || dir.path().join("g000.redb").metadata().unwrap().len();
    {
        let engines = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
        let engine = &engines[0];
        let body = vec![7_u8; 100_000];
        for page in 0..10 {
            let mut rows = Rows::default();
            (page * 100..(page + 1) * 100).for_each(|number| rows.push(&key(number), Some(&body)));
            engine.write(&rows, b"full").unwrap();
        }
        let full = taken();
        assert!(full > 100_000_000);
        engine.give_back(100_000_000).unwrap();
        assert_eq!(taken(), full, "it is needed");
        let mut rows = Rows::default();
        (0..1_000).filter(|number| number % 100 != 0).for_each(|number| rows.push(&key(number), None));
        engine.write(&rows, b"drained").unwrap();
        let view = engine.view().unwrap();
        engine.give_back(1_000_000).unwrap();
        assert_eq!(scan(view.as_ref()).len(), 10);
        drop(view);
        engine.give_back(1_000_000).unwrap();
        assert!(taken() < full / 10, "{} of {full}", taken());
        assert_eq!(engine.get(&key(900)).unwrap().as_deref(), Some(&body[..]));
    }
    let engines = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    assert_eq!(engines[0].meta().unwrap().as_deref(), Some(&b"drained"[..]));
    assert_eq!(scan(engines[0].view().unwrap().as_ref()).len(), 10);
}
