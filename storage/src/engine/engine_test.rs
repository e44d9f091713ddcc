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
        engine.give_back(100_000_000, 0).unwrap();
        assert_eq!(taken(), full, "it is needed");
        let mut rows = Rows::default();
        (0..1_000).filter(|number| number % 100 != 0).for_each(|number| rows.push(&key(number), None));
        engine.write(&rows, b"drained").unwrap();
        let view = engine.view().unwrap();
        engine.give_back(1_000_000, 0).unwrap();
        assert_eq!(scan(view.as_ref()).len(), 10);
        drop(view);
        engine.give_back(1_000_000, 0).unwrap();
        assert!(taken() < full / 10, "{} of {full}", taken());
        assert_eq!(engine.get(&key(900)).unwrap().as_deref(), Some(&body[..]));
    }
    let engines = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    assert_eq!(engines[0].meta().unwrap().as_deref(), Some(&b"drained"[..]));
    assert_eq!(scan(engines[0].view().unwrap().as_ref()).len(), 10);
}

fn body(number: u64, bytes: usize) -> Arc<Message> {
    Arc::new(Message::new("t", &[], &vec![number as u8; bytes]))
}

/// Writes and deletes bodies, and sets the meta value.
fn write_bodies(engine: &dyn Engine, written: &[(u64, Arc<Message>)], gone: &[u64]) {
    let mut rows = Rows::default();
    written.iter().for_each(|(id, message)| rows.bodies.push(*id, Some(message)));
    gone.iter().for_each(|id| rows.bodies.push(*id, None));
    engine.write(&rows, b"meta").unwrap();
}

fn read_body(engine: &dyn Engine, id: u64) -> Option<Message> {
    engine.get(&Group::body_key(id)).unwrap().map(|value| Group::decode_body(&value).unwrap())
}

fn body_files(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "bodies")).collect()
}

/// Every engine: bodies are found one by one and together until they are gone, in scans in the order of their ids behind the rows, and again
/// after a reopen.
fn check_bodies(kind: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    {
        let engine = &open(kind, dir.path(), 1, 1 << 20).unwrap()[0];
        let bodies: Vec<_> = (1..=40).map(|id| (id, body(id, 10 * id as usize))).collect();
        write_bodies(engine.as_ref(), &bodies[..30], &[]);
        write_bodies(engine.as_ref(), &bodies[30..], &[3, 4, 17]);
        assert_eq!(read_body(engine.as_ref(), 2).as_ref(), Some(&*bodies[1].1));
        assert_eq!(read_body(engine.as_ref(), 3), None);
        let mut seen = Vec::new();
        let asked = [40, 3, 5, 6, 41, 1];
        engine
            .visit_bodies(&asked, &mut |at, value| {
                seen.push((asked[at], Group::decode_body(value)?.payload().len()));
                Ok(())
            })
            .unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [(1, 10), (5, 50), (6, 60), (40, 400)]);
    }
    if kind == EngineKind::Memory {
        return;
    }
    let engine = &open(kind, dir.path(), 1, 1 << 20).unwrap()[0];
    let found = scan(engine.view().unwrap().as_ref());
    let ids: Vec<u64> = found.iter().filter_map(|(key, _)| Group::body_id(key)).collect();
    let expected: Vec<u64> = (1..=40).filter(|id| ![3, 4, 17].contains(id)).collect();
    assert_eq!(ids, expected);
    write_bodies(engine.as_ref(), &[(50, body(50, 7))], &[40]);
    assert_eq!(read_body(engine.as_ref(), 50).map(|message| message.payload().len()), Some(7));
    assert_eq!(read_body(engine.as_ref(), 40), None);
}

#[test]
fn redb_keeps_bodies() {
    check_bodies(EngineKind::Redb);
}

#[test]
fn memory_keeps_bodies() {
    check_bodies(EngineKind::Memory);
}

#[cfg(feature = "store-sled")]
#[test]
fn sled_keeps_bodies() {
    check_bodies(EngineKind::Sled);
}

/// P9: a file of bodies goes with the last one in it; what is left of several is put together; a view that was taken before still reads them.
#[test]
fn files_of_bodies_go_and_are_put_together() {
    const BIG: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    let engine = opened[0].as_ref();
    for id in 1..=16 {
        write_bodies(engine, &[(id, body(id, BIG))], &[]);
    }
    assert_eq!(body_files(dir.path()).len(), 4);
    write_bodies(engine, &[], &[5, 6, 7, 8, 9]);
    assert_eq!(body_files(dir.path()).len(), 3, "all of the second file are gone");
    let before = engine.view().unwrap();
    write_bodies(engine, &[], &[1, 2, 3, 4, 10, 11, 12, 13]);
    write_bodies(engine, &[(17, body(17, 5))], &[]);
    engine.give_back(1 << 20, BIG as u64 * 3).unwrap();
    let left =
        |view: &dyn View| scan(view).iter().filter_map(|(key, _)| Group::body_id(key)).collect::<Vec<_>>();
    assert_eq!(left(before.as_ref()), [1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16]);
    drop(before);
    assert_eq!(left(engine.view().unwrap().as_ref()), [14, 15, 16, 17]);
    assert!(read_body(engine, 14).is_some() && read_body(engine, 13).is_none());
    drop(opened);
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    assert_eq!(left(opened[0].view().unwrap().as_ref()), [14, 15, 16, 17]);
    write_bodies(opened[0].as_ref(), &[], &[14, 15, 16, 17]);
    assert!(body_files(dir.path()).is_empty());
}

/// P9: what little is left of many files ends up in one.
#[test]
fn what_is_left_of_files_is_put_together() {
    const BIG: usize = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    let engine = opened[0].as_ref();
    let mut kept = Vec::new();
    for file in 0..4_u64 {
        let id = file * 3 + 1;
        kept.push(id);
        write_bodies(engine, &[(id, body(id, 9)), (id + 1, body(id, BIG)), (id + 2, body(id, BIG))], &[]);
        write_bodies(engine, &[], &[id + 1, id + 2]);
    }
    assert_eq!(body_files(dir.path()).len(), 4);
    engine.give_back(1 << 20, 36).unwrap();
    assert_eq!(body_files(dir.path()).len(), 2, "the last one is written to");
    drop(opened);
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    for id in kept {
        assert_eq!(read_body(opened[0].as_ref(), id).map(|message| message.payload().len()), Some(9));
    }
}

/// P4: what no commit speaks of is not there after a crash, neither a file nor what stands behind the last record that counts.
#[test]
fn bodies_without_a_commit_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    write_bodies(opened[0].as_ref(), &[(1, body(1, 100))], &[]);
    drop(opened);
    let file = body_files(dir.path()).remove(0);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, [&whole[..], &whole[16..]].concat()).unwrap();
    std::fs::write(dir.path().join("g000.00000000000000ff.bodies"), &whole).unwrap();
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    assert_eq!(body_files(dir.path()), std::slice::from_ref(&file));
    assert_eq!(std::fs::read(&file).unwrap(), whole);
    write_bodies(opened[0].as_ref(), &[(2, body(2, 100))], &[]);
    assert!(read_body(opened[0].as_ref(), 1).is_some() && read_body(opened[0].as_ref(), 2).is_some());
}

/// P10: a flipped bit, a cut and a missing file are told at the start, by the name of the file.
#[test]
fn a_damaged_file_of_bodies_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
    write_bodies(opened[0].as_ref(), &[(1, body(1, 100)), (2, body(2, 100))], &[]);
    drop(opened);
    let file = body_files(dir.path()).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let refused = || match open(EngineKind::Redb, dir.path(), 1, 1 << 20).map(drop) {
        Err(error) => assert!(error.to_string().contains(file.to_str().unwrap()), "{error}"),
        Ok(()) => panic!("a damaged file was taken"),
    };
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&file, bytes).unwrap();
        refused();
    }
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    refused();
    std::fs::remove_file(&file).unwrap();
    refused();
    std::fs::write(&file, &whole).unwrap();
    assert!(open(EngineKind::Redb, dir.path(), 1, 1 << 20).is_ok());
}

/// State of format 4 had bodies among the rows: they are read from there, go from there, and newer ones stand beside them.
#[test]
fn bodies_among_the_rows_are_read_until_they_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    {
        const ROWS: ::redb::TableDefinition<'_, &[u8], &[u8]> = ::redb::TableDefinition::new("rows");
        const META: ::redb::TableDefinition<'_, u8, &[u8]> = ::redb::TableDefinition::new("meta");
        let database = ::redb::Database::create(dir.path().join("g000.redb")).unwrap();
        let write = database.begin_write().unwrap();
        for id in 1..=3 {
            let mut value = Vec::new();
            Group::encode_body(&body(id, 20), &mut value);
            write.open_table(ROWS).unwrap().insert(&*Group::body_key(id), &*value).unwrap();
        }
        write.open_table(META).unwrap().insert(0, &b"old"[..]).unwrap();
        write.commit().unwrap();
    }
    for round in 0..2 {
        let opened = open(EngineKind::Redb, dir.path(), 1, 1 << 20).unwrap();
        let engine = opened[0].as_ref();
        if round == 0 {
            assert_eq!(engine.meta().unwrap().as_deref(), Some(&b"old"[..]));
            assert_eq!(read_body(engine, 2).as_ref(), Some(&*body(2, 20)));
            write_bodies(engine, &[(4, body(4, 20))], &[2]);
        }
        let mut seen = Vec::new();
        let mut see = |at, _: &[u8]| {
            seen.push(at);
            Ok(())
        };
        engine.visit_bodies(&[1, 2, 3, 4], &mut see).unwrap();
        assert_eq!(seen, [0, 2, 3]);
        let ids: Vec<_> =
            scan(engine.view().unwrap().as_ref()).iter().filter_map(|(key, _)| Group::body_id(key)).collect();
        assert_eq!(ids, [1, 3, 4]);
    }
}
