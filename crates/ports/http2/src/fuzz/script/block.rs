//! Header blocks: every representation of a field, over the current table.

use super::{
    Script,
    choices::{FIELDS, MAX_FRAME},
};
use crate::field::Field;

impl Script<'_> {
    /// The pseudo-fields and the content type, each in any representation.
    pub(super) fn head(&mut self, block: &mut Vec<u8>, path: &str) {
        for (name, value) in
            [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
        {
            if !self.choices.rarely() {
                self.known(block, name.as_bytes(), value.as_bytes());
            }
        }
    }

    /// A field by the index of an equal one, or as a literal.
    fn known(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let entries = (1..1000).map_while(|index| Some((index, self.table.get(index)?)));
        let equal = entries.filter(|(_, field)| field.name == name && field.value == value);
        let found = equal.map(|(index, _)| index).next();
        match found {
            Some(index) if !self.choices.once_in(8) => write_integer(block, index, 7, 0x80),
            _ => self.literal(block, name, value),
        }
    }

    fn literal(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        let kind = self.choices.pick(&[0x40, 0x40, 0x40, 0x00, 0x10]).unwrap_or(0);
        block.push(kind);
        write_text(block, name);
        write_text(block, value);
        if kind == 0x40 {
            self.table.add(Field::new(name, value));
        }
    }

    /// Further fields: size updates, literals, and references to the tables.
    pub(super) fn fields(&mut self, block: &mut Vec<u8>) {
        if self.choices.once_in(16) && block.is_empty() || self.choices.rarely() {
            let size = self.choices.pick(&[0, 100, 4096, 4096]).unwrap_or(0);
            write_integer(block, size, 5, 0x20);
            self.table.resize(size);
        }
        for _ in 0..self.choices.below(4) {
            let shape = self.choices.below(16);
            if (12..15).contains(&shape) {
                self.amplify(block);
                continue;
            }
            let repeats = self.choices.pick(&FIELDS).unwrap_or(1);
            let again = self.choices.0;
            for _ in 0..repeats {
                self.choices.0 = again;
                match shape {
                    0..4 => {
                        let index = self.index();
                        write_integer(block, index, 7, 0x80);
                    }
                    4..8 => {
                        let (name, value) = self.name_and_value();
                        self.literal(block, &name, &value);
                    }
                    8..12 => self.named(block),
                    _ => self.huffman(block),
                }
                if block.len() > 2 * MAX_FRAME - 1000 {
                    return;
                }
            }
        }
    }

    /// A field that fills the table, and as many references to it as fit: two bytes stand for 4 KB.
    fn amplify(&mut self, block: &mut Vec<u8>) {
        let long = vec![b'n'; 4000];
        let short = [b'n'];
        let (name, value) =
            if self.choices.once_in(2) { (&long[..], &short[..]) } else { (&short[..], &long[..]) };
        self.literal(block, name, value);
        if self.table.get(62).is_none() {
            return;
        }
        let shape = self.choices.below(4);
        let most = (2 * MAX_FRAME - 1000_usize).saturating_sub(block.len()) / 3;
        for _ in 0..self.choices.pick(&FIELDS).unwrap_or(1).max(10).min(most) {
            match shape {
                0 => write_integer(block, 62, 7, 0x80),
                1 => {
                    write_integer(block, 62, 4, 0);
                    write_text(block, b"");
                }
                _ => {
                    write_integer(block, 62, 6, 0x40);
                    self.table.add_with_name_of(62, b"");
                    write_text(block, b"");
                }
            }
        }
    }

    /// The index of an entry: mostly one of the dynamic table.
    fn index(&mut self) -> usize {
        let entries = (62..1000).take_while(|index| self.table.get(*index).is_some()).count();
        match self.choices.below(16) {
            0..3 => self.choices.below(61).saturating_add(1),
            3 if self.choices.rarely() => self.choices.number() as usize,
            _ if entries == 0 => 38,
            _ => 62_usize.saturating_add(self.choices.below(entries)),
        }
    }

    /// A literal in Huffman's code: symbols of five bits, or of 28, or rarely any.
    fn huffman(&mut self, block: &mut Vec<u8>) {
        let code: &[u8] = match self.choices.byte() {
            255 => &[0xfe],
            0..128 => &[0; 5],
            _ => &[0xff, 0xff, 0xfe, 0x2f, 0xff, 0xfe, 0x2f],
        };
        let text = code.repeat(self.choices.length() / 5);
        block.extend_from_slice(&[0x00, 1, b'h']);
        write_integer(block, text.len(), 7, 0x80);
        block.extend_from_slice(&text);
    }

    fn name_and_value(&mut self) -> (Vec<u8>, Vec<u8>) {
        let name = self.choices.pick(&[
            &b"x"[..],
            b"te",
            b"traceparent",
            b"tracestate",
            b"content-length",
            b"Upper",
        ]);
        let length = self.choices.length().max(1);
        // A copy costs the most of what nearly fills the table.
        let (name, length) = match self.choices.below(6) {
            0 => (vec![b'n'; 4000], 0),
            1 => (vec![b'n'; length], self.choices.length()),
            2 => (name.unwrap_or_default().to_vec(), 4000),
            _ => (name.unwrap_or_default().to_vec(), self.choices.length()),
        };
        let letter = self.choices.pick(b"vvvvv0\n").unwrap_or(b'v');
        (name, vec![letter; length])
    }

    fn named(&mut self, block: &mut Vec<u8>) {
        let index = self.index().max(1);
        let length = if self.choices.once_in(2) { 0 } else { self.choices.length() };
        let value = vec![b'w'; length];
        if self.choices.once_in(2) {
            write_integer(block, index, 4, 0);
        } else {
            write_integer(block, index, 6, 0x40);
            self.table.add_with_name_of(index, &value);
        }
        write_text(block, &value);
    }
}

fn write_integer(block: &mut Vec<u8>, value: usize, prefix: u32, kind: u8) {
    let most = (1_usize << prefix) - 1;
    let Some(mut rest) = value.checked_sub(most) else {
        return block.push(kind | u8::try_from(value).unwrap_or(0));
    };
    block.push(kind | u8::try_from(most).unwrap_or(0));
    while rest >= 128 {
        block.push(u8::try_from(rest & 127).unwrap_or(0) | 128);
        rest >>= 7;
    }
    block.push(u8::try_from(rest).unwrap_or(0));
}

fn write_text(block: &mut Vec<u8>, text: &[u8]) {
    write_integer(block, text.len(), 7, 0);
    block.extend_from_slice(text);
}
