//! The examples of RFC 7541, appendix C, and random blocks compared with another decoder.

use super::*;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Option<Vec<(String, String)>> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    decoder.decode(block, |field| fields.push((text(field.name), text(field.value)))).ok()?;
    Some(fields)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn decodes_the_integers_of_the_rfc() {
    for (bytes, prefix, value) in [
        (&[0b1110_1010][..], 5, 10),
        (&[0b0001_1111, 0b1001_1010, 0b0000_1010], 5, 1337),
        (&[42], 8, 42),
        (&[0x7f, 0], 7, 127),
        (&[0x7f, 0x80, 0x80, 0x80, 0x00], 7, 127),
    ] {
        let mut rest = bytes;
        assert_eq!(integer(&mut rest, prefix), Ok(value));
        assert!(rest.is_empty());
    }
    for bytes in [&[][..], &[0x7f], &[0x7f, 0x80], &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x00]] {
        assert_eq!(integer(&mut &bytes[..], 7), Err(BROKEN), "{bytes:?}");
    }
}

/// C.3 and C.4: three requests on one connection, plain and with Huffman's code.
#[test]
fn decodes_the_requests_of_the_rfc() {
    let first = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
    let second = [&first[..], &[("cache-control", "no-cache")]].concat();
    let third = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ];
    for blocks in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut decoder = Decoder::default();
        for (block, expected) in blocks.into_iter().zip([&first[..], &second, &third]) {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(decode(&mut decoder, &bytes(block)), Some(expected), "{block}");
        }
    }
}

/// C.5 and C.6: responses with a table of 256 bytes, which evicts fields.
#[test]
fn decodes_the_responses_of_the_rfc() {
    let date = "Mon, 21 Oct 2013 20:13:21 GMT";
    let first = [
        (":status", "302"),
        ("cache-control", "private"),
        ("date", date),
        ("location", "https://www.example.com"),
    ];
    let second = [(":status", "307"), first[1], first[2], first[3]];
    let third = [
        (":status", "200"),
        first[1],
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        first[3],
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ];
    for blocks in [
        [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 \
             666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 \
             3630 303b 2076 6572 7369 6f6e 3d31",
        ],
        [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 \
             63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 \
             b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ],
    ] {
        let mut decoder = Decoder::default();
        assert!(decoder.table.resize(256));
        for (block, expected) in blocks.into_iter().zip([&first[..], &second, &third]) {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(decode(&mut decoder, &bytes(block)), Some(expected), "{block}");
        }
    }
}

#[test]
fn rejects_invalid_blocks() {
    for (block, why) in [
        (&[0x80][..], "index 0"),
        (&[0xbe], "an index beyond the table"),
        (&[0x40, 0x01, b'a', 0x05, b'b'], "a text that is cut off"),
        (&[0x00, 0x81, 0x00, 0x00], "a text whose code ends in zeros"),
        (&[0x3f, 0xe2, 0x1f], "a table of 4097 bytes"),
        (&[0x82, 0x20], "a size behind a field"),
        (&[0x7f], "an integer that is cut off"),
        (&[0x00], "no name"),
    ] {
        assert_eq!(decode(&mut Decoder::default(), block), None, "{why}");
    }
    assert_eq!(decode(&mut Decoder::default(), &[0x3f, 0xe1, 0x1f]), Some(vec![]), "a table of 4096 bytes");
}

/// A literal with a plain name and value.
fn literal(kind: u8, name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![kind];
    write_text(&mut block, name.as_bytes());
    write_text(&mut block, value.as_bytes());
    block
}

/// The number of fields that are passed and their size, and whether that is the whole list.
fn passed(decoder: &mut Decoder, block: &[u8]) -> (usize, usize, bool) {
    let (mut fields, mut size) = (0, 0);
    let is_whole = decoder.decode(block, |field| {
        fields += 1;
        size += field.size();
    });
    (fields, size, is_whole.unwrap())
}

#[test]
fn a_list_at_the_limit_is_passed_and_one_byte_more_is_not() {
    for (more, expected) in [(0, (2, MAX_LIST, true)), (1, (1, 34, false))] {
        let long = "v".repeat(MAX_LIST - 34 - 33 + more);
        let block = [literal(0, "a", "b"), literal(0, "c", &long)].concat();
        assert_eq!(passed(&mut Decoder::default(), &block), expected);
    }
    // Nothing is passed after the first field that does not fit.
    let block = [literal(0, "a", &"v".repeat(MAX_LIST)), literal(0, "a", "b")].concat();
    assert_eq!(passed(&mut Decoder::default(), &block), (0, 0, false));
}

/// CVE-2016-6581: references of a byte to a field of 4 KB.
#[test]
fn references_pass_no_more_than_the_limit() {
    let mut decoder = Decoder::default();
    assert_eq!(passed(&mut decoder, &literal(0x40, "n", &"v".repeat(4063))), (1, 4096, true));
    assert_eq!(passed(&mut decoder, &[0xbe; 4]), (4, MAX_LIST, true));
    assert_eq!(passed(&mut decoder, &[0xbe; 5]), (4, MAX_LIST, false));
    assert_eq!(passed(&mut decoder, &[0xbe; 16_384]), (4, MAX_LIST, false));
    assert!(decoder.value.capacity() <= KEPT_CAPACITY, "the buffer is released");
}

/// Two bytes add an entry with the name of 4 KB of another.
#[test]
fn names_are_shared_by_the_entries_that_refer_to_them() {
    let mut decoder = Decoder::default();
    let name = "n".repeat(2000);
    decode(&mut decoder, &literal(0x40, &name, "")).unwrap();
    for pairs in [1, 2, 8192] {
        decode(&mut decoder, &[0x7e, 0].repeat(pairs)).unwrap();
        let (one, other) = (decoder.table.get(62).unwrap(), decoder.table.get(63).unwrap());
        assert_eq!((one.name.len(), one.name.as_ptr()), (2000, other.name.as_ptr()));
        assert!(decoder.table.get(64).is_none());
    }
}

#[test]
fn validity_is_that_of_the_field_itself() {
    let mut decoder = Decoder::default();
    let pieces = ["a", ":a", "A", "", "a b", "\u{e9}", "a\0", "b\r", "\n", "te"];
    let mut validity = |block: &[u8]| {
        let mut found = None;
        decoder.decode(block, |field| found = Some((field.is_regular, field.has_valid_value))).unwrap();
        found.unwrap()
    };
    for name in pieces {
        for value in pieces {
            let is_regular = matches!(name, "a" | "te");
            let expected = (is_regular, !value.contains(['\0', '\r', '\n']));
            for kind in [0, 0x10, 0x40] {
                assert_eq!(validity(&literal(kind, name, value)), expected, "{name:?}: {value:?}");
            }
            // The entry, a new value for its name, and that as an entry.
            assert_eq!(validity(&[0xbe]), expected);
            assert_eq!(validity(&[0x0f, 0x2f, 1, b'x']), (is_regular, true));
            assert_eq!(validity(&[0x7e, 1, b'\n']), (is_regular, false));
            assert_eq!(validity(&[0xbe]), (is_regular, false));
        }
    }
    assert_eq!((validity(&[0x81]), validity(&[0x8f])), ((false, true), (true, true)), "the static table");
}

#[test]
fn equal_blocks_have_the_same_meaning_until_the_version_changes() {
    let mut decoder = Decoder::default();
    let version = decoder.table.version;
    decode(&mut decoder, &[0x82, 0x00, 0x01, b'a', 0x01, b'b', 0x10, 0x01, b'a', 0x01, b'b']).unwrap();
    assert_eq!(decoder.table.version, version, "nothing was indexed");
    decode(&mut decoder, &[0x40, 0x01, b'a', 0x01, b'b']).unwrap();
    assert_ne!(decoder.table.version, version);
    let version = decoder.table.version;
    decode(&mut decoder, &[0xbe]).unwrap();
    assert_eq!(decoder.table.version, version);
    decode(&mut decoder, &[0x20]).unwrap();
    assert_ne!(decoder.table.version, version, "the table was emptied");
}

mod against_another_decoder {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        let plain = |text: &[u8]| {
            let mut out = Vec::new();
            write_text(&mut out, text);
            out
        };
        prop_oneof![
            "[a-z0-9]{0,12}".prop_map(move |text| plain(text.as_bytes())),
            // Complete codes of five bits, and padding.
            prop::collection::vec(0..10_u8, 0..9).prop_map(|symbols| {
                let mut bits =
                    symbols.iter().map(|symbol| format!("{symbol:05b}")).collect::<Vec<_>>().concat();
                bits.push_str(&"1".repeat((8 - bits.len() % 8) % 8));
                let mut out = vec![0x80 | u8::try_from(bits.len() / 8).unwrap()];
                out.extend(
                    bits.as_bytes()
                        .chunks(8)
                        .map(|bits| u8::from_str_radix(str::from_utf8(bits).unwrap(), 2).unwrap()),
                );
                out
            }),
            // A long value, so that fields are evicted.
            (100..900_usize).prop_map(move |length| plain(&vec![b'x'; length])),
        ]
    }

    /// A field, possibly with an invalid index.
    fn field() -> impl Strategy<Value = Vec<u8>> {
        let kind = || prop::sample::select(vec![0x40_u8, 0x00, 0x10]);
        let literal = (kind(), "[a-z]{1,9}", text()).prop_map(|(kind, name, value)| {
            let mut out = vec![kind];
            write_text(&mut out, name.as_bytes());
            out.extend(value);
            out
        });
        let named =
            (kind(), 1..15_u8, text()).prop_map(|(kind, index, value)| [vec![kind | index], value].concat());
        prop_oneof![4 => (1..66_u8).prop_map(|index| vec![0x80 | index]), 4 => literal, 3 => named]
    }

    /// A block, possibly with a table size update.
    fn block() -> impl Strategy<Value = Vec<u8>> {
        let size = prop_oneof![
            3 => Just(vec![]),
            1 => (0..31_u8).prop_map(|size| vec![0x20 | size]),
            1 => Just(vec![0x3f, 0xe1, 0x03]),
        ];
        (size, prop::collection::vec(field(), 1..8))
            .prop_map(|(size, fields)| [size, fields.concat()].concat())
    }

    /// A block of long fields and many references to them, most of them beyond the limit.
    fn long_block() -> impl Strategy<Value = Vec<u8>> {
        let kind = || prop::sample::select(vec![0x40_u8, 0x40, 0x00]);
        let added = (kind(), 1..4000_usize, 0..4000_usize)
            .prop_map(|(kind, name, value)| super::literal(kind, &"n".repeat(name), &"v".repeat(value)));
        let named = (kind(), 0..3_u8, 0..4_u8, 1..30_usize).prop_map(|(kind, back, value, times)| {
            let index = if kind == 0 { vec![0x0f, 0x2f + back] } else { vec![0x7e] };
            [index, vec![value], vec![b'w'; value.into()]].concat().repeat(times)
        });
        let references = (0..4_u8, 1..60_usize).prop_map(|(back, times)| vec![0xbe + back; times]);
        let size = prop_oneof![5 => Just(vec![]), 1 => Just(vec![0x20]), 1 => Just(vec![0x3f, 0xe1, 0x1f])];
        let field = prop_oneof![2 => added, 2 => named, 2 => references, 1 => field()];
        (size, prop::collection::vec(field, 1..8)).prop_map(|(size, fields)| [size, fields.concat()].concat())
    }

    type Fields = Vec<(String, String)>;

    fn theirs(decoder: &mut fluke_hpack::Decoder<'_>, block: &[u8]) -> Option<Fields> {
        let text = |bytes: Vec<u8>| bytes.into_iter().map(char::from).collect::<String>();
        let fields = decoder.decode(block).ok()?;
        Some(fields.into_iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    proptest! {
        #[test]
        fn valid_blocks_decode_the_same(blocks in prop::collection::vec(block(), 1..12)) {
            let (mut decoder, mut other) = (Decoder::default(), fluke_hpack::Decoder::default());
            for block in blocks {
                let found = decode(&mut decoder, &block);
                prop_assert_eq!(&found, &theirs(&mut other, &block), "{:02x?}", block);
                if found.is_none() {
                    break;
                }
            }
        }

        /// The table stays in step with the peer's, also by a block of which only the first fields are passed.
        #[test]
        fn lists_beyond_the_limit_keep_the_table_in_step(blocks in prop::collection::vec(long_block(), 1..12)) {
            let (mut decoder, mut other) = (Decoder::default(), fluke_hpack::Decoder::default());
            for block in blocks {
                let mut found = Vec::new();
                let is_whole = decoder.decode(&block, |field| found.push((field.name.to_vec(), field.value.to_vec())));
                let Ok(is_whole) = is_whole else { break };
                let expected = other.decode(&block).unwrap();
                let size = |fields: &[(Vec<u8>, Vec<u8>)]| -> usize {
                    fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
                };
                prop_assert_eq!(is_whole, size(&expected) <= MAX_LIST);
                prop_assert_eq!(&found[..], &expected[..found.len()]);
                prop_assert!(is_whole == (found.len() == expected.len()));
                prop_assert!(is_whole || size(&expected[..=found.len()]) > MAX_LIST);
            }
        }

        /// The decoders reject different blocks: the other one accepts size updates after fields, ours accepts blocks of size
        /// updates alone. The other one panics at an index of 0.
        #[test]
        fn damaged_blocks_that_both_accept_decode_the_same(
            mut blocks in prop::collection::vec(block(), 1..6), damage in any::<(prop::sample::Index, prop::sample::Index, u8)>(),
        ) {
            let (which, at, byte) = damage;
            let block = which.get_mut(&mut blocks);
            if !block.is_empty() {
                let at = at.index(block.len());
                block[at] = byte;
            }
            let (mut decoder, mut other) = (Decoder::default(), fluke_hpack::Decoder::default());
            for block in blocks {
                let Some(found) = decode(&mut decoder, &block) else { break };
                let Some(expected) = theirs(&mut other, &block) else { break };
                prop_assert_eq!(found, expected, "{:02x?}", block);
            }
        }
    }
}
