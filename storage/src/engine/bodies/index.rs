//! Where each record of one segment begins: four bytes a message of a kilobyte, so that ten million fit in memory.

/// Records of one block: looking one up decodes at most so many.
const BLOCK: usize = 16;

/// What finds the records of a block: the first one, its place in the file, and where the others stand in `packed`.
#[derive(Debug, Clone, Copy)]
struct Block {
    first: u64,
    offset: u32,
    at: u32,
}

/// Ids ascend. A record is packed as its distance from the id before and its bytes, both as numbers of seven bits a byte.
#[derive(Debug, Default)]
pub(super) struct Index {
    blocks: Vec<Block>,
    packed: Vec<u8>,
    count: usize,
    last: u64,
}

/// A record of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// How many records are before it.
    pub(super) number: usize,
    pub(super) offset: u64,
    /// With its head.
    pub(super) bytes: usize,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Takes the record behind the others; false when its id does not ascend.
    pub(super) fn push(&mut self, id: u64, offset: u32, bytes: u32) -> bool {
        if id <= self.last {
            return false;
        }
        if self.count.is_multiple_of(BLOCK) {
            let at =
                u32::try_from(self.packed.len()).expect("a segment is below 4 GiB, and its index below that");
            self.blocks.push(Block { first: id, offset, at });
        } else {
            pack(id - self.last, &mut self.packed);
        }
        pack(u64::from(bytes), &mut self.packed);
        self.last = id;
        self.count += 1;
        true
    }

    pub(super) fn find(&self, id: u64) -> Option<Place> {
        let block = self.blocks.partition_point(|block| block.first <= id).checked_sub(1)?;
        let Block { first, offset, at } = self.blocks[block];
        let mut packed = &self.packed[at as usize..];
        let (mut found, mut offset) = (first, u64::from(offset));
        for number in block * BLOCK..self.count.min((block + 1) * BLOCK) {
            if number % BLOCK != 0 {
                found += unpack(&mut packed);
            }
            let bytes = unpack(&mut packed) as usize;
            if found >= id {
                return (found == id).then_some(Place { number, offset, bytes });
            }
            offset += bytes as u64;
        }
        None
    }

    /// Nothing comes any more: room to grow is given back.
    pub(super) fn seal(&mut self) {
        self.blocks.shrink_to_fit();
        self.packed.shrink_to_fit();
    }
}

fn pack(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn unpack(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// P10: every record is found where it is, and nothing else is found.
        #[test]
        fn an_index_is_a_map(records in prop::collection::vec((1_u64..40, 16_u32..70_000), 0..200)) {
            let (mut index, mut map, mut id, mut offset) = (Index::default(), BTreeMap::new(), 0, 16);
            for (number, (step, bytes)) in records.into_iter().enumerate() {
                id += step;
                prop_assert!(index.push(id, offset, bytes));
                prop_assert!(!index.push(id, offset, bytes), "ids ascend");
                map.insert(id, Place { number, offset: u64::from(offset), bytes: bytes as usize });
                offset += bytes;
            }
            index.seal();
            prop_assert_eq!(index.len(), map.len());
            for id in 0..id + 3 {
                prop_assert_eq!(index.find(id), map.get(&id).copied());
            }
        }
    }

    /// P9: ten million messages of a kilobyte are found with less than 50 MB.
    #[test]
    fn a_record_takes_four_bytes() {
        let mut index = Index::default();
        for number in 0..100_000_u32 {
            assert!(index.push(u64::from(number) + 1, number * 1_060, 1_060));
        }
        index.seal();
        let bytes = index.blocks.capacity() * size_of::<Block>() + index.packed.capacity();
        assert!(bytes <= 420_000, "{bytes}");
    }
}
