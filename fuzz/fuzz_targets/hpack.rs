//! Any bytes as header blocks of one connection. The decoder never panics, keeps its table within
//! its limit, and what it read says the same when it is written as literals and read again.
//!
//! Input: one byte for the limit of the table, then blocks, each behind one byte of length.
#![no_main]

use koord_relay::hpack::{Decoder, Item, write_literal, write_resize};
use libfuzzer_sys::fuzz_target;

type Field = (Vec<u8>, Vec<u8>, bool);

fn field(item: Item<'_>) -> Option<Field> {
    match item {
        Item::Resize(_) => None,
        Item::Field { name, value, never } => Some((name.to_vec(), value.to_vec(), never)),
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&limit, mut rest)) = input.split_first() else {
        return;
    };
    let limit = 64 * usize::from(limit);
    let (mut follower, mut reader) = (Decoder::new(), Decoder::new());
    follower.set_limit(limit);
    reader.set_limit(limit);
    while let Some((&length, after)) = rest.split_first() {
        let (block, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        let mut fields = Vec::new();
        let mut literals = Vec::new();
        let decoded = follower.decode(block, |item| {
            match item {
                Item::Resize(size) => write_resize(&mut literals, size),
                Item::Field { name, value, never } => {
                    write_literal(&mut literals, name, value, never);
                }
            }
            fields.extend(field(item));
        });
        if decoded.is_err() {
            return;
        }
        assert!(follower.table_size() <= limit.max(4_096));
        let mut again = Vec::new();
        reader
            .decode(&literals, |item| again.extend(field(item)))
            .expect("literals are readable");
        assert_eq!(fields, again);
    }
});
