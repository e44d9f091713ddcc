//! The log's promises: what was reported durable survives any power cut, damage is never skipped, a failed fsync is the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;

use proptest::prelude::*;

use super::record::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Seal, SegmentHeader, encode, record_bytes};
use super::sim_disk::SimDisk;
use super::*;

const OPTIONS: WalOptions = WalOptions { segment_bytes: 8 << 10, directory: [7; 16] };

fn open(disk: &SimDisk) -> Result<(Wal, HashMap<u16, Recovered>), StorageError> {
    Wal::open(Arc::new(disk.clone()), OPTIONS)
}

fn entry(group: u16, index: u64, fill: u8, len: usize) -> Record {
    Record { group, kind: Kind::Entry, index, term: 1, payload: vec![fill; len] }
}

/// Appends and waits; `None`: refused.
fn write(wal: &Wal, records: Vec<Record>) -> Option<Vec<Location>> {
    let (sender, receiver) = mpsc::channel();
    wal.append(
        records,
        Box::new(move |written| sender.send(written.ok().map(<[Location]>::to_vec)).unwrap()),
    );
    receiver.recv().unwrap()
}

fn payloads(wal: &Wal, found: &Recovered) -> Vec<(u64, Vec<u8>)> {
    found.entries.iter().map(|(index, entry)| (*index, wal.read(entry.location).unwrap())).collect()
}

/// FORMAT.md: bytes of a record and of a segment header never change within a version.
#[test]
fn golden_record_and_segment_header() {
    let record = Record { group: 2, kind: Kind::Entry, index: 5, term: 3, payload: b"hello".to_vec() };
    let mut bytes = Vec::new();
    encode(&record, Seal::of([7; 16], 9), 17, 16, &mut bytes);
    assert_eq!(
        crate::identity::hex(&bytes),
        format!(
            "{}{}{}{}{}{}{}{}{}{}",
            "05000000",
            &crate::identity::hex(&bytes[4..8]),
            "1100000000000000",
            "0500000000000000",
            "0300000000000000",
            "01000000",
            "0200",
            "0100",
            "68656c6c6f",
            "000000"
        )
    );
    assert_eq!(crate::identity::hex(&bytes[4..8]), GOLDEN_CRC);
    let header = SegmentHeader { segment: 9, first: 17, directory: [7; 16], len: 8 << 10 };
    assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    assert_eq!(
        crate::identity::hex(&header.encode()),
        format!(
            "584d51570002{}{}{}{}{}{}{}",
            "0000",
            "0900000000000000",
            "1100000000000000",
            "07".repeat(16),
            "0020000000000000",
            "00".repeat(12),
            GOLDEN_HEADER_CRC
        )
    );
}

const GOLDEN_CRC: &str = "c77566ca";
const GOLDEN_HEADER_CRC: &str = "6a381026";

#[test]
fn records_marks_and_payloads_come_back() {
    let disk = SimDisk::default();
    let (wal, found) = open(&disk).unwrap();
    assert!(found.is_empty());
    let vote = Record { group: 0, kind: Kind::Vote, index: 0, term: 4, payload: vec![1, 2, 3] };
    write(&wal, vec![vote, entry(0, 1, 1, 10), entry(0, 2, 2, 0)]).unwrap();
    let locations = write(&wal, vec![entry(1, 1, 3, 100)]).unwrap();
    assert_eq!(wal.read(locations[0]).unwrap(), vec![3; 100]);
    wal.hint(Record { group: 1, kind: Kind::Committed, index: 1, term: 1, payload: Vec::new() });
    wal.close();
    assert!(write(&wal, vec![entry(0, 3, 0, 1)]).is_none(), "closed");
    let (wal, found) = open(&disk).unwrap();
    assert_eq!(payloads(&wal, &found[&0]), [(1, vec![1; 10]), (2, vec![])]);
    assert_eq!(payloads(&wal, &found[&1]), [(1, vec![3; 100])]);
    assert_eq!(found[&0].marks.vote, Some(Mark { index: 0, term: 4, payload: vec![1, 2, 3] }));
    assert_eq!(found[&1].marks.committed.as_ref().map(|mark| mark.index), Some(1));
}

#[test]
fn truncated_and_purged_entries_do_not_come_back() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    for index in 1..=6 {
        write(&wal, vec![entry(0, index, 1, 10)]).unwrap();
    }
    write(&wal, vec![Record { kind: Kind::Truncate, ..entry(0, 5, 0, 0) }]).unwrap();
    write(&wal, vec![entry(0, 5, 9, 10)]).unwrap();
    write(&wal, vec![Record { kind: Kind::Purge, ..entry(0, 2, 0, 8) }]).unwrap();
    wal.close();
    let (wal, found) = open(&disk).unwrap();
    let entries = payloads(&wal, &found[&0]);
    assert_eq!(entries, [(3, vec![1; 10]), (4, vec![1; 10]), (5, vec![9; 10])]);
}

/// A segment goes when every group purged past it, and its votes survive it.
#[test]
fn purge_deletes_segments_but_keeps_votes() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    let vote = Record { group: 0, kind: Kind::Vote, index: 0, term: 4, payload: vec![1] };
    write(&wal, vec![vote.clone()]).unwrap();
    write(&wal, vec![entry(1, 1, 1, 100)]).unwrap();
    for index in 1..=20 {
        write(&wal, vec![entry(0, index, 1, 1_500)]).unwrap();
    }
    let before = disk.names().len();
    assert!(before >= 4, "{before}");
    write(&wal, vec![Record { kind: Kind::Purge, ..entry(0, 19, 0, 8) }]).unwrap();
    assert_eq!(disk.names().len(), before, "group 1 still needs the first segment");
    write(&wal, vec![Record { kind: Kind::Purge, ..entry(1, 1, 0, 8) }]).unwrap();
    wal.close();
    assert!(disk.names().len() <= 2, "{:?}", disk.names());
    let (wal, found) = open(&disk).unwrap();
    assert_eq!(found[&0].entries.keys().copied().collect::<Vec<_>>(), [20]);
    assert_eq!(found[&0].marks.vote.as_ref().map(|mark| mark.term), Some(4));
    assert_eq!(found[&0].marks.purged.as_ref().map(|mark| mark.index), Some(19));
    assert_eq!(found[&1].marks.purged.as_ref().map(|mark| mark.index), Some(1));
    drop(wal);
}

#[test]
fn a_record_larger_than_a_segment_gets_its_own() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    write(&wal, vec![entry(0, 1, 1, 10), entry(0, 2, 2, 50_000), entry(0, 3, 3, 10)]).unwrap();
    wal.close();
    let (wal, found) = open(&disk).unwrap();
    assert_eq!(payloads(&wal, &found[&0]), [(1, vec![1; 10]), (2, vec![2; 50_000]), (3, vec![3; 10])]);
}

/// DESIGN §5: a failed fsync poisons the store; it is never retried.
#[test]
fn a_failed_fsync_is_the_end() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    write(&wal, vec![entry(0, 1, 1, 10)]).unwrap();
    disk.fail_sync_after(0);
    assert!(write(&wal, vec![entry(0, 2, 2, 10)]).is_none());
    assert!(
        write(&wal, vec![entry(0, 3, 3, 10)]).is_none(),
        "the disk works again, the log does not trust it"
    );
    wal.close();
    let (wal, found) = open(&disk.after_cut(|| false)).unwrap();
    assert_eq!(payloads(&wal, &found[&0]), [(1, vec![1; 10])]);
}

/// P4, scenario 49: what recovery handed out survives a power cut, also when the process before it was killed before its fsync: a follower
/// tells its leader that it has those entries.
#[test]
fn what_recovery_found_is_durable() {
    for torn in [false, true] {
        let disk = SimDisk::default();
        let (wal, _) = open(&disk).unwrap();
        write(&wal, vec![entry(0, 1, 1, 10)]).unwrap();
        disk.fail_sync_after(0);
        assert!(write(&wal, vec![entry(0, 2, 2, 10), entry(0, 3, 3, 1_000)]).is_none());
        wal.close();
        if torn {
            disk.scribble(&disk.names()[0], SEGMENT_HEADER_BYTES + 2 * record_bytes(10) + 600);
        }
        let (wal, found) = open(&disk).unwrap();
        let before = payloads(&wal, &found[&0]);
        assert_eq!(before.len(), if torn { 2 } else { 3 });
        wal.close();
        let (wal, found) = open(&disk.after_cut(|| false)).unwrap();
        assert_eq!(payloads(&wal, &found[&0]), before);
    }
}

/// P4, P9: a client chooses the bytes of its messages. A whole record among them never passes for a later write when the record around it is
/// torn.
#[test]
fn a_payload_never_passes_for_a_record() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    write(&wal, vec![entry(0, 1, 1, 10)]).unwrap();
    let mut forged = Vec::new();
    for directory in [[0; 16], [8; 16]] {
        encode(&entry(0, 9, 9, 16), Seal::of(directory, 1), 9, 9, &mut forged);
    }
    // As records were sealed before: with the number of the segment alone.
    let at = forged.len();
    encode(&entry(0, 9, 9, 16), Seal::of([0; 16], 1), 9, 9, &mut forged);
    let mut old = crc32fast::Hasher::new();
    old.update(&1u64.to_le_bytes());
    old.update(&forged[at..at + 4]);
    old.update(&forged[at + 8..at + RECORD_HEADER_BYTES + 16]);
    forged[at + 4..at + 8].copy_from_slice(&old.finalize().to_le_bytes());
    write(&wal, vec![Record { payload: forged, ..entry(0, 2, 0, 0) }]).unwrap();
    wal.close();
    disk.damage(&disk.names()[0], |bytes| bytes[SEGMENT_HEADER_BYTES + record_bytes(10) + 9] ^= 1);
    let (wal, found) = open(&disk).unwrap();
    assert_eq!(payloads(&wal, &found[&0]), [(1, vec![1; 10])]);
}

/// A bad record with a later write behind it is damage: recovery must not cut acknowledged records.
#[test]
fn damage_in_the_middle_refuses_to_start() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    for index in 1..=3 {
        write(&wal, vec![entry(0, index, 1, 100)]).unwrap();
    }
    wal.close();
    let name = &disk.names()[0];
    let second = SEGMENT_HEADER_BYTES + record_bytes(100);
    for at in [second, second + 9, second + RECORD_HEADER_BYTES + 50] {
        let damaged = disk.after_cut(|| true);
        damaged.damage(name, |bytes| bytes[at] ^= 1);
        match open(&damaged).map(drop) {
            Err(StorageError::Damaged { path, offset, .. }) => {
                assert!(path.ends_with(name));
                assert_eq!(offset, second as u64);
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
    // The last record: nobody can tell a torn write from damage there; what is before it stays.
    let torn = disk.after_cut(|| true);
    torn.damage(name, |bytes| bytes[second + record_bytes(100) + 60] ^= 1);
    let (wal, found) = open(&torn).unwrap();
    assert_eq!(payloads(&wal, &found[&0]).len(), 2);
}

#[test]
fn damage_in_an_older_segment_or_a_missing_one_refuses_to_start() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    for index in 1..=20 {
        write(&wal, vec![entry(0, index, 1, 1_500)]).unwrap();
    }
    wal.close();
    let names = disk.names();
    let damaged = disk.after_cut(|| true);
    let last_record = damaged.bytes(&names[0]).iter().rposition(|byte| *byte != 0).unwrap();
    damaged.damage(&names[0], |bytes| bytes[last_record] ^= 1);
    assert!(matches!(open(&damaged).map(drop), Err(StorageError::Damaged { .. })));
    let missing = disk.after_cut(|| true);
    missing.remove(&names[1]).unwrap();
    assert!(matches!(open(&missing).map(drop), Err(StorageError::Damaged { .. })));
    let renamed = disk.after_cut(|| true);
    let options = WalOptions { directory: [8; 16], ..OPTIONS };
    assert!(matches!(Wal::open(Arc::new(renamed), options).map(drop), Err(StorageError::Damaged { .. })));
}

/// A record damaged on disk after the start is noticed when it is read.
#[test]
fn a_read_checks_the_record() {
    let disk = SimDisk::default();
    let (wal, _) = open(&disk).unwrap();
    let locations = write(&wal, vec![entry(0, 1, 1, 100)]).unwrap();
    disk.damage(&disk.names()[0], |bytes| bytes[SEGMENT_HEADER_BYTES + 60] ^= 1);
    assert!(matches!(wal.read(locations[0]), Err(StorageError::Damaged { .. })));
}

#[derive(Debug, Clone)]
struct Write {
    group: u16,
    lens: Vec<usize>,
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let write = (0u16..3, prop::collection::vec(0usize..2_500, 1..5));
    prop::collection::vec(write.prop_map(|(group, lens)| Write { group, lens }), 1..25)
}

/// Writes until the power is cut; gives the records reported durable and all that were handed in, by group.
fn run(wal: &Wal, writes: &[Write], next: &mut HashMap<u16, u64>) -> (Vec<Record>, Vec<Record>) {
    let (mut durable, mut handed_in) = (Vec::new(), Vec::new());
    for (number, write_) in writes.iter().enumerate() {
        let records: Vec<_> = (write_.lens.iter())
            .map(|len| {
                let index = next.entry(write_.group).or_insert(1);
                let record = entry(write_.group, *index, (number % 250) as u8 + 1, *len);
                *index += 1;
                record
            })
            .collect();
        handed_in.extend(records.clone());
        if write(wal, records.clone()).is_none() {
            break;
        }
        durable.extend(records);
    }
    (durable, handed_in)
}

fn check(
    wal: &Wal,
    found: &HashMap<u16, Recovered>,
    durable: &[Record],
    handed_in: &[Record],
) -> HashMap<u16, u64> {
    let mut next = HashMap::new();
    for group in 0..3 {
        let of = |records: &[Record]| -> Vec<(u64, Vec<u8>)> {
            let of_group = records.iter().filter(|record| record.group == group);
            of_group.map(|record| (record.index, record.payload.clone())).collect()
        };
        let recovered = found.get(&group).map(|found| payloads(wal, found)).unwrap_or_default();
        let (durable, handed_in) = (of(durable), of(handed_in));
        assert!(recovered.len() >= durable.len(), "a durable record of group {group} is lost");
        assert_eq!(recovered[..durable.len()], durable[..]);
        assert_eq!(recovered[..], handed_in[..recovered.len()], "something came back that nobody wrote");
        next.insert(group, recovered.len() as u64 + 1);
    }
    next
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// S2: whatever the power cut leaves of unsynced sectors, recovery yields a prefix that contains every record reported
    /// durable; and again after a second life and a second cut over the remnants of the first.
    #[test]
    fn any_power_cut_yields_a_prefix_with_everything_durable(
        first in writes(),
        second in writes(),
        cuts in (0usize..60, 0usize..60),
        coins in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut coin = coins.iter().copied().cycle();
        let disk = SimDisk::default();
        let (wal, _) = open(&disk).unwrap();
        disk.cut_after(cuts.0);
        let (durable, handed_in) = run(&wal, &first, &mut HashMap::new());
        wal.close();
        let disk = disk.after_cut(|| coin.next().unwrap_or_default());
        let (wal, found) = open(&disk).unwrap();
        let mut next = check(&wal, &found, &durable, &handed_in);
        let kept: Vec<_> = handed_in.into_iter().filter(|record| record.index < next[&record.group]).collect();
        disk.cut_after(cuts.1);
        let (durable, handed_in) = run(&wal, &second, &mut next);
        wal.close();
        let disk = disk.after_cut(|| coin.next().unwrap_or_default());
        let (wal, found) = open(&disk).unwrap();
        let all = |more: Vec<Record>| kept.iter().cloned().chain(more).collect::<Vec<_>>();
        check(&wal, &found, &all(durable), &all(handed_in));
    }

    /// Recovery of arbitrary bytes behind the header neither panics nor loops.
    #[test]
    fn recovery_survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..4_000), at in 0usize..200) {
        let disk = SimDisk::default();
        let (wal, _) = open(&disk).unwrap();
        write(&wal, vec![entry(0, 1, 1, 100)]).unwrap();
        wal.close();
        disk.damage(&disk.names()[0], |file| {
            let at = SEGMENT_HEADER_BYTES + at;
            file[at..at + bytes.len()].copy_from_slice(&bytes);
        });
        let _ = open(&disk);
    }
}
