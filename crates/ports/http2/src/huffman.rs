//! HPACK's Huffman code (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length ascend with the symbols, and longer codes follow shorter ones. So the
//! lengths determine the code, and the length of the next code is found by comparison with the last code of each length.

/// The code lengths of all bytes and EOS, in bits.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];

const SYMBOLS: usize = 257;

/// The symbol that no valid text contains.
const EOS: u16 = 256;

#[derive(Clone, Copy)]
struct Run {
    bits: u8,
    /// The first code and the end (exclusive), left-aligned in 32 bits. The end of the longest codes is 2^32.
    first: u32,
    end: u64,
    /// The index of the first symbol in [`BY_CODE`].
    place: usize,
}

const RUNS: usize = 21;

const TABLES: ([u16; SYMBOLS], [Run; RUNS]) = tables();
const BY_CODE: [u16; SYMBOLS] = TABLES.0;
const BY_LENGTH: [Run; RUNS] = TABLES.1;

#[allow(clippy::indexing_slicing, reason = "the compiler evaluates it")]
#[expect(clippy::cast_possible_truncation, reason = "a code has at most 30 bits")]
const fn tables() -> ([u16; SYMBOLS], [Run; RUNS]) {
    let mut by_code = [0; SYMBOLS];
    let mut runs = [Run { bits: 0, first: 0, end: 0, place: 0 }; RUNS];
    let mut place = 0;
    let mut run = 0;
    let mut next = 0_u64;
    let mut bits = 1_u8;
    while bits <= 30 {
        let first = next;
        let at = place;
        let mut symbol = 0_u16;
        while symbol <= EOS {
            if LENGTHS[symbol as usize] == bits {
                by_code[place] = symbol;
                place += 1;
                next += 1 << (32 - bits);
            }
            symbol += 1;
        }
        if place > at {
            runs[run] = Run { bits, first: first as u32, end: next, place: at };
            run += 1;
        }
        bits += 1;
    }
    assert!(place == SYMBOLS && run == RUNS && next == 1 << 32);
    (by_code, runs)
}

/// Appends the decoded text to `into`; false if the code is invalid.
pub(super) fn decode(text: &[u8], into: &mut Vec<u8>) -> bool {
    // Left-aligned.
    let mut waiting = 0_u64;
    let mut bits = 0_u8;
    let mut text = text.iter();
    loop {
        while bits <= 56 {
            let Some(byte) = text.next() else { break };
            waiting |= u64::from(*byte) << (56_u8.wrapping_sub(bits));
            bits = bits.wrapping_add(8);
        }
        let next = (waiting >> 32) as u32;
        let Some(run) = BY_LENGTH.iter().find(|run| u64::from(next) < run.end) else { return false };
        if run.bits > bits {
            // The rest is padding: less than a byte of ones.
            return bits < 8 && waiting == !(u64::MAX.checked_shr(bits.into()).unwrap_or(0));
        }
        let within = next.wrapping_sub(run.first).checked_shr(32_u32.wrapping_sub(run.bits.into()));
        let place = run.place.wrapping_add(within.unwrap_or(0) as usize);
        let Some(byte) = BY_CODE.get(place).and_then(|symbol| u8::try_from(*symbol).ok()) else {
            return false;
        };
        into.push(byte);
        waiting = waiting.checked_shl(run.bits.into()).unwrap_or(0);
        bits = bits.wrapping_sub(run.bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(hex: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        decode(hex, &mut text).then_some(text)
    }

    /// RFC 7541, appendix C.4 and C.6.
    #[test]
    fn decodes_the_examples_of_the_rfc() {
        for (code, text) in [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], "custom-key"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf], "custom-value"),
            (&[0x64, 0x02], "302"),
            (&[], ""),
        ] {
            assert_eq!(decoded(code).as_deref(), Some(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn rejects_eos_and_invalid_padding() {
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), None, "EOS");
        assert_eq!(decoded(&[0x64, 0x02, 0xff]), None, "eight bits of padding");
        assert_eq!(decoded(&[0b0000_0000]), None, "padding of zeros");
        assert_eq!(decoded(&[0b0000_0111]), Some(b"0".to_vec()));
    }

    #[test]
    fn every_code_is_decoded_to_its_symbol() {
        for run in BY_LENGTH {
            let mut code = u64::from(run.first);
            let mut place = run.place;
            while code < run.end {
                let symbol = BY_CODE[place];
                let padded = (code << 32) | (u64::MAX >> run.bits);
                let bytes = padded.to_be_bytes();
                let length = usize::from(run.bits).div_ceil(8);
                let expected = u8::try_from(symbol).ok().map(|byte| vec![byte]);
                assert_eq!(decoded(&bytes[..length]), expected, "{symbol}");
                code += 1 << (32 - run.bits);
                place += 1;
            }
        }
    }
}
