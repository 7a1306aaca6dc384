//! Compares the tree with that of `serde_yaml` on random documents: lists, maps and texts must be the same.
//!
//! The two resolve plain scalars by different versions of YAML, so only texts are compared where they
//! agree that it is one.

use proptest::prelude::*;
use serde_yaml::Value;

use super::{Content, MaxValues, Node, Pair, read_without_bound as read};

/// True if both trees have the same structure and the same texts.
fn agrees(ours: &Node, theirs: &Value) -> bool {
    match (&ours.content, theirs) {
        (_, Value::Tagged(tagged)) => agrees(ours, &tagged.value),
        (Content::Scalar(scalar), Value::String(text)) => *scalar.text == **text,
        (Content::Scalar(_), Value::Null | Value::Bool(_) | Value::Number(_)) => true,
        (Content::List(items), Value::Sequence(values)) => {
            items.len() == values.len()
                && items.iter().zip(values).all(|(item, value)| agrees(&item.node, value))
        }
        (Content::Map(pairs), Value::Mapping(map)) => {
            let same = |(pair, (key, value)): (&Pair, (&Value, &Value))| {
                agrees(&pair.key.node, key) && agrees(&pair.value.node, value)
            };
            pairs.len() == map.len() && pairs.iter().zip(map).all(same)
        }
        _ => false,
    }
}

/// A document in all notations: block and flow, three kinds of quotes, blocks, comments, anchors.
fn document() -> impl Strategy<Value = String> {
    let scalar = prop::sample::select(vec![
        "a",
        "b c",
        "-x",
        "a:b",
        "x#y",
        "'it''s'",
        "\"q\\t\\u00e9\\\"\"",
        "''",
        "'# no'",
        "12",
        "0x1f",
        "~",
        "yes",
        "2026-01-02",
        "é",
        "&n v",
        "!!str 12",
        "http://x/*",
        "a!,b",
    ]);
    let leaf = scalar.prop_map(str::to_owned);
    let flow = leaf.prop_recursive(3, 12, 4, |inner| {
        let pair = ("k[0-9]{1,3}", inner.clone()).prop_map(|(key, value)| format!("{key}: {value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec(pair, 0..4).prop_map(|pairs| format!("{{{}}}", pairs.join(", "))),
        ]
    });
    let block =
        prop::sample::select(vec!["|\n  a\n  b\n", "|-\n  a\n\n", ">\n  a\n  b\n\n   c\n", ">+\n  a\n\n"]);
    let value = prop_oneof![
        4 => flow.prop_map(|flow| format!("{flow} # said\n")),
        1 => block.prop_map(str::to_owned),
    ];
    prop_oneof![
        prop::collection::vec(("[a-z]{1,4}", value.clone()), 1..6).prop_map(|pairs| pairs
            .into_iter()
            .flat_map(|(key, value)| [key, ": ".to_owned(), value])
            .collect()),
        prop::collection::vec(value, 1..6)
            .prop_map(|items| items.into_iter().flat_map(|value| ["- ".to_owned(), value]).collect()),
    ]
}

proptest! {
    #[test]
    fn the_tree_equals_that_of_serde_yaml(text in document(), crlf: bool) {
        let text = if crlf { text.replace('\n', "\r\n") } else { text };
        let ours = read(text.as_bytes());
        match serde_yaml::from_str::<Value>(&text) {
            Ok(theirs) => {
                let root = ours.map_err(|fault| fault.message).unwrap().root.unwrap();
                prop_assert!(agrees(&root.node, &theirs), "{text}\n{root:?}\n{theirs:?}");
            }
            // serde_yaml rejects duplicate keys, so such documents are not compared.
            Err(error) => prop_assert!(ours.is_err() || error.to_string().contains("duplicate \
             entry"), "{text}\n{error}"),
        }
    }
}

#[test]
fn aliases_and_merges_are_expanded_and_the_last_value_applies() {
    let text = "- &a {x: 1, y: 2}\n- {<<: *a, y: 3}\n- {y: 3, <<: *a}\n- {<<: [{x: 4}, *a]}\n- *a\n";
    let root = read(text.as_bytes()).unwrap().root.unwrap();
    let Content::List(items) = &root.node.content else { panic!("no list") };
    let written = |node: &Node| match &node.content {
        Content::Scalar(scalar) => scalar.text.to_string(),
        _ => String::new(),
    };
    let maps: Vec<String> = items
        .iter()
        .map(|item| match &item.node.content {
            Content::Map(pairs) => {
                pairs.iter().map(|pair| written(&pair.key.node) + &written(&pair.value.node)).collect()
            }
            _ => String::new(),
        })
        .collect();
    assert_eq!(maps, ["x1y2", "x1y2y3", "y3x1y2", "x1y2x4", "x1y2"]);
    assert!(items[4].alias().is_some());
}

#[test]
fn reports_invalid_yaml_with_its_place_and_help() {
    for (text, line, column, message) in [
        ("a: *b", 1, 4, "no anchor `&b` precedes this alias"),
        ("a: &b [*b]", 1, 8, "the value of the anchor `b` contains itself"),
        ("? [a]\n: b", 1, 3, "a list or a map cannot be a key"),
        ("a: 1\n<<: [x]", 2, 6, "expected a map or a list of maps after `<<`"),
        ("a: !!int x", 1, 4, "`x` cannot be read as !!int"),
        ("- x\n- [!a,b]", 1, 3, "invalid YAML after this value: the YAML reader panicked"),
        (
            "{a: b:}",
            1,
            6,
            "invalid YAML: found unexpected ':', while scanning a plain scalar that begins at line 1, column 5",
        ),
        (
            r#""it\'s""#,
            1,
            4,
            "invalid YAML: found unknown escape character, while parsing a quoted scalar that begins at line 1, \
             column 1",
        ),
        (
            "value: *",
            1,
            9,
            "invalid YAML: did not find expected alphabetic or numeric character, while \
             scanning an alias that begins at line 1, column 8",
        ),
    ] {
        let fault = read(text.as_bytes()).unwrap_err();
        let place = fault.place.unwrap();
        assert_eq!((place.line, place.column, &*fault.message), (line, column, message), "{text}");
    }
}

#[test]
fn rejects_a_file_above_the_bound_and_accepts_one_at_it() {
    // The list and its items; written out, the alias, its anchor's list and the two in it.
    for (text, values) in
        [("[a,b,{}]", 4), ("[&a [b,c],*a]", 8), ("{a: b}", 3), ("", 0), ("- {x: &m {a: b}}\n- {<<: *m}", 11)]
    {
        let at = |values| super::read(text.as_bytes(), MaxValues { values, set_by: "HERE", help: "" });
        let counted = at(usize::MAX).unwrap().values();
        assert_eq!(counted, values, "{text}");
        assert!(at(values).is_ok() && at(values + 1).is_ok(), "{text}");
        if values > 0 {
            assert!(at(values - 1).unwrap_err().message.contains("(HERE)"), "{text}");
        }
    }
}

#[test]
fn merges_copy_a_bounded_number_of_pairs() {
    let merging = |pairs: usize, times: usize| {
        let pairs: Vec<String> = (0..pairs).map(|n| format!("k{n}: v")).collect();
        format!("- &m {{{}}}\n{}", pairs.join(", "), "- {<<: *m}\n".repeat(times))
    };
    let read =
        |text: String| super::read(text.as_bytes(), MaxValues { values: 200_000, ..MaxValues::default() });
    assert!(read(merging(100, 970)).is_ok());
    let fault = read(merging(100, 1_001)).unwrap_err();
    assert_eq!((fault.place.map(|place| place.line), fault.message.contains("aliases")), (Some(1_002), true));
    let fault = read(merging(1_000, 50_000)).unwrap_err();
    assert_eq!(fault.place.map(|place| place.line), Some(102));
}
