//! What holds for every annotation, tried with each of one table that has to be complete.

use super::*;
use crate::annotation::json::step;
use crate::keys::annotation::{
    BE_CPU_SHARED_POOLS, BLKIO_QOS, CONFIG_HASH, CONFIG_MIRROR, CPU_BURST, CPU_NORMALIZATION_RATIO,
    CPU_QOS, CPU_SHARED_POOLS, DEVICE_ALLOCATED, EXTENDED_RESOURCE_SPEC,
    KUBELET_CPU_MANAGER_POLICY, MEMORY_QOS, NETWORK_QOS, OOM_SCORE_ADJ, OOM_SCORE_ADJ_SPEC,
    ORIGINALS, RESCTRL, RESOURCE_STATUS, SYSTEM_QOS_RESOURCE,
};
use koord_model::{CacheShares, PodUid};
use proptest::{collection, prelude::*, sample::Index};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, io};

/// How one annotation is read.
struct Parser {
    key: &'static str,
    /// A text that says all that can be said.
    full: &'static str,
    /// What a text means, as it is printed.
    parse: fn(&str) -> Result<String, AnnotationError>,
    /// What it is to say nothing; `None` if the text is no JSON.
    nothing: Option<fn() -> String>,
}

const PARSERS: &[Parser] = &[
    Parser {
        key: RESOURCE_STATUS,
        full: r#"{"cpuset":"0-3","numaNodeResources":[
            {"node":1,"resources":{"cpu":"4","kubernetes.io/batch-cpu":500}}]}"#,
        parse: |text| ResourceStatus::parse(text).map(meaning),
        nothing: Some(|| meaning(ResourceStatus::default())),
    },
    Parser {
        key: DEVICE_ALLOCATED,
        full: r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50",
            "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":50}}],
            "rdma":[{"id":"0000:65:00.0","extension":{"vfs":[{"busID":"0000:65:00.2"}]}}]}"#,
        parse: |text| {
            let devices = DeviceAllocated::parse(text)?;
            let functions = devices.rdma_functions()?;
            Ok(meaning((devices, functions)))
        },
        nothing: Some(|| meaning((DeviceAllocated::default(), [(); 0]))),
    },
    Parser {
        key: EXTENDED_RESOURCE_SPEC,
        full: r#"{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"500"},
            "limits":{"kubernetes.io/batch-memory":"1Gi"}}}}"#,
        parse: |text| ExtendedResourceSpec::parse(text).map(meaning),
        nothing: Some(|| meaning(ExtendedResourceSpec::default())),
    },
    Parser {
        key: CPU_QOS,
        full: r#"{"enable":true,"groupIdentity":-1}"#,
        parse: |text| CpuQos::parse(text).map(meaning),
        nothing: Some(|| meaning(CpuQos::default())),
    },
    Parser {
        key: CPU_BURST,
        full: r#"{"policy":"auto","cpuBurstPercent":150}"#,
        parse: |text| CpuBurst::parse(text).map(meaning),
        nothing: Some(|| meaning(CpuBurst::default())),
    },
    Parser {
        key: MEMORY_QOS,
        full: r#"{"policy":"auto","minLimitPercent":10,"lowLimitPercent":20,"throttlingPercent":80,
            "wmarkRatio":95,"wmarkScalePermill":20,"wmarkMinAdj":-25,"priorityEnable":1,"priority":5,
            "oomKillGroup":1,"pageCacheEnable":true,"pageCacheLimitPercent":50,
            "pageCacheLimitSize":1048576,"pageCacheReclaimSync":true}"#,
        parse: |text| PodMemoryQos::parse(text).map(meaning),
        nothing: Some(|| meaning(PodMemoryQos::default())),
    },
    Parser {
        key: BLKIO_QOS,
        full: r#"{"blocks":[{"name":"/dev/vdb","type":"device","ioCfg":{"readBPS":1,"writeBPS":2,
            "readIOPS":3,"writeIOPS":4,"ioWeightPercent":60}},{"name":"data","type":"volumegroup"},
            {"name":"pvc-1","type":"podvolume"}]}"#,
        parse: |text| block_limits(text, &PodUid::new("uid-1").unwrap()).map(meaning),
        nothing: Some(|| meaning([(); 0])),
    },
    Parser {
        key: NETWORK_QOS,
        full: r#"{"ingressLimit":"100M","egressLimit":8000}"#,
        parse: |text| NetworkLimits::parse(text).map(meaning),
        nothing: Some(|| meaning(NetworkLimits::default())),
    },
    Parser {
        key: RESCTRL,
        full: r#"{"llc":{"schemata":{"range":[0,30]},"schemataPerCache":[{"cacheID":1,"range":[20,50]}]},
            "mb":{"schemata":{"percent":55},"schemataPerCache":[{"cacheID":0,"percent":20}]}}"#,
        parse: |text| cache_shares(text).map(meaning),
        nothing: Some(|| meaning(CacheShares::default())),
    },
    Parser {
        key: OOM_SCORE_ADJ,
        full: "-900",
        parse: |text| oom_score_adj(text).map(meaning),
        nothing: None,
    },
    Parser {
        key: OOM_SCORE_ADJ_SPEC,
        full: r#"{"main":-900}"#,
        parse: |text| {
            let scores = OomScoreAdjSpec::parse(text)?;
            let of_main = scores.of("main")?;
            Ok(meaning((scores, of_main)))
        },
        nothing: Some(|| meaning((OomScoreAdjSpec::default(), None::<()>))),
    },
    Parser {
        key: CPU_SHARED_POOLS,
        full: r#"[{"node":1,"cpuset":"0-25"}]"#,
        parse: |text| SharedPool::parse_list(text).map(meaning),
        nothing: Some(|| meaning([(); 0])),
    },
    Parser {
        key: BE_CPU_SHARED_POOLS,
        full: r#"[{"node":1,"cpuset":"0-25"}]"#,
        parse: |text| SharedPool::parse_be_list(text).map(meaning),
        nothing: Some(|| meaning([(); 0])),
    },
    Parser {
        key: KUBELET_CPU_MANAGER_POLICY,
        full: r#"{"policy":"static"}"#,
        parse: |text| CpuManagerPolicy::parse(text).map(meaning),
        nothing: Some(|| meaning(CpuManagerPolicy::default())),
    },
    Parser {
        key: SYSTEM_QOS_RESOURCE,
        full: r#"{"cpuset":"0-1"}"#,
        parse: |text| SystemQosResource::parse(text).map(meaning),
        nothing: Some(|| meaning(None::<()>)),
    },
    Parser {
        key: CPU_NORMALIZATION_RATIO,
        full: "1.20",
        parse: |text| CpuNormalizationRatio::parse(text).map(meaning),
        nothing: None,
    },
];

/// Keys of texts that are none of ours to parse: a pod has the one or not, the other is its UID, and
/// what the proxy notes it reads itself.
const UNPARSED: &[&str] = &[CONFIG_MIRROR, CONFIG_HASH, ORIGINALS];

fn meaning(value: impl Debug) -> String {
    format!("{value:?}")
}

/// Each that is JSON.
fn json() -> impl Iterator<Item = &'static Parser> {
    PARSERS.iter().filter(|it| it.nothing.is_some())
}

/// Whatever the type, this text is refused alike.
fn no_annotation_takes(text: &str, expected: &str) {
    for Parser { key, parse, .. } in json() {
        let error = chain(parse(text));
        let begin = format!("annotation {key} is unusable at $: ");
        let reason = error.strip_prefix(&begin).expect(&error);
        assert!(reason.starts_with(expected), "{reason} for {expected}");
    }
}

/// A key without a parser in the table would be one that no test here tries.
#[test]
fn every_annotation_that_has_a_key_is_tried() {
    let keys = include_str!("../../keys.rs");
    let (_, keys) = keys.split_once("pub mod annotation {").unwrap();
    let (keys, _) = keys.split_once("\n}").unwrap();
    let value = |constant: &'static str| constant.split('"').nth(1).unwrap();
    let mut keys: Vec<&str> = keys.split("pub const ").skip(1).map(value).collect();
    let listed = PARSERS.iter().map(|it| it.key);
    let mut listed: Vec<&str> = listed.chain(UNPARSED.iter().copied()).collect();
    keys.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, keys);
}

#[test]
fn every_annotation_is_read_if_it_says_all_that_it_can() {
    for parser in PARSERS {
        let found = (parser.parse)(parser.full).unwrap();
        assert_ne!(parser.nothing.map(|it| it()), Some(found), "{}", parser.key);
    }
}

/// Keys that an annotation's reader knows are named in its source.
#[test]
fn every_annotation_that_is_tried_says_all_that_is_read_of_it() -> io::Result<()> {
    let mut read = BTreeSet::new();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/annotation");
    for file in fs::read_dir(sources)? {
        let path = file?.path();
        if path.is_dir() {
            continue;
        }
        let source = fs::read_to_string(path)?;
        for object in source.split("json::object!(").skip(1) {
            let (object, _) = object.split_once(");").expect("an end");
            let parts: Vec<&str> = object.split('"').collect();
            read.extend(parts.iter().skip(1).step_by(2).map(|it| (*it).to_owned()));
        }
    }
    assert!(read.len() > 40, "{read:?}");
    let mut said = BTreeSet::new();
    for parser in json() {
        keys(&serde_json::from_str(parser.full)?, &mut said);
    }
    let unsaid: Vec<_> = read.difference(&said).collect();
    assert_eq!(unsaid, [""; 0]);
    Ok(())
}

fn keys(json: &Value, into: &mut BTreeSet<String>) {
    match json {
        Value::Object(members) => {
            into.extend(members.keys().cloned());
            members.values().for_each(|it| keys(it, into));
        }
        Value::Array(elements) => elements.iter().for_each(|it| keys(it, into)),
        _ => {}
    }
}

#[test]
fn a_wrong_value_anywhere_in_an_annotation_is_named_with_its_place() {
    let wrong = [json!("?"), json!(7), json!([]), json!(u64::MAX)];
    for Parser {
        key, full, parse, ..
    } in json()
    {
        let full: Value = serde_json::from_str(full).unwrap();
        let mut places = Vec::new();
        leaves(&full, ("", "$".to_owned()), &mut places);
        assert!(!places.is_empty(), "{key}");
        for (pointer, path) in places {
            let refused = wrong.iter().any(|value| {
                let mut text = full.clone();
                *text.pointer_mut(&pointer).unwrap() = value.clone();
                let Err(error) = parse(&text.to_string()) else {
                    return false;
                };
                assert_eq!((error.key, &*error.path), (*key, &*path));
                let why = error.reason.to_string();
                assert!(why.starts_with("value "), "{path}: {why}");
                true
            });
            assert!(refused, "{key} takes anything at {path}");
        }
    }
}

/// What holds nothing that has a name, as it is pointed to and as people are told of it.
fn leaves(json: &Value, (pointer, path): (&str, String), into: &mut Vec<(String, String)>) {
    match json {
        Value::Object(members) => {
            for (key, value) in members {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                let path = format!("{path}{}", step(key));
                leaves(value, (&format!("{pointer}/{escaped}"), path), into);
            }
        }
        Value::Array(elements) if elements.iter().all(Value::is_object) => {
            for (index, value) in elements.iter().enumerate() {
                let path = format!("{path}[{index}]");
                leaves(value, (&format!("{pointer}/{index}"), path), into);
            }
        }
        _ => into.push((pointer.to_owned(), path)),
    }
}

#[test]
fn no_annotation_takes_what_is_no_json() {
    let cases = [
        (
            "",
            r#"text "" is not JSON: EOF while parsing a value at line 1 column 0"#,
        ),
        (
            "{",
            r#"text "{" is not JSON: EOF while parsing an object at line 1 column 1"#,
        ),
        (
            "{}x",
            r#"text "{}x" is not JSON: trailing characters at line 1 column 3"#,
        ),
        (
            "{'cpuset':''}",
            r#"text "{'cpuset':''}" is not JSON: key must be a string at line 1 column 2"#,
        ),
        (
            "\0",
            r#"text "\0" is not JSON: expected value at line 1 column 1"#,
        ),
        (
            "\u{feff}{}",
            r#"text "\u{feff}{}" is not JSON: expected value at line 1 column 1"#,
        ),
        (
            "{\"x\":\"\n\"}",
            r#"text "{\"x\":\"\n\"}" is not JSON: control character (\u0000-\u001F) found while parsing a string at line 1 column 6"#,
        ),
        (
            "{\"x\":01}",
            r#"text "{\"x\":01}" is not JSON: invalid number at line 1 column 7"#,
        ),
    ];
    for (text, expected) in cases {
        no_annotation_takes(text, expected);
    }
}

#[test]
fn no_annotation_takes_too_much_or_no_object() {
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(MAX_LENGTH));
    let deep = format!(
        "{{\"x\":{}{}}}",
        "[".repeat(MAX_DEPTH),
        "]".repeat(MAX_DEPTH)
    );
    no_annotation_takes(&long, "text is 32776 bytes long, 32768 are allowed");
    no_annotation_takes(&deep, "nesting is deeper than 10000 levels");
    no_annotation_takes("\"LS\"", "value is \"LS\", not");
    no_annotation_takes("7", "value is 7, not");
    no_annotation_takes("true", "value is true, not");
}

#[test]
fn null_is_absence_for_every_annotation() {
    for parser in json() {
        for text in ["null", " null\n"] {
            let nothing = parser.nothing.map(|it| it());
            assert_eq!((parser.parse)(text).ok(), nothing, "{}", parser.key);
        }
    }
}

/// A plain number has no way to say nothing but to be missing.
#[test]
fn null_is_no_plain_number() {
    for Parser { key, parse, .. } in PARSERS.iter().filter(|it| it.nothing.is_none()) {
        for text in ["null", "", "{}"] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.key, &*error.path), (*key, "$"), "{text}");
        }
    }
}

/// What texts of the kinds that annotations hold are made of, and what goes wrong there.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "1e3",
    "\"0-3\"",
    "\"\\ud800\"",
    "\"cpuset\":",
    "\"CPUSET\":",
    "\"numaNodeResources\":[{",
    "\"resources\":{",
    "\"cpu\":",
    "\"containers\":{",
    "\"main\":{",
    "\"limits\":{",
    "\"kubernetes.io/batch-cpu\":",
    "\"groupIdentity\":",
    "é",
    "\0",
    "{}",
    "[]",
    "0",
    "7",
    "1.5",
    "9223372036854775808",
    "\"auto\"",
    "\"1Gi\"",
    "\"\\u0007\"",
    "\"../x\"",
];

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(WORDS)
}

/// Texts that are nearly JSON.
fn nearly_json() -> impl Strategy<Value = String> {
    collection::vec(word(), 0..16).prop_map(|words| words.concat())
}

/// Texts that are nearly one of the table: some of their tokens are others.
fn nearly_right() -> impl Strategy<Value = String> {
    let changes = collection::vec((any::<Index>(), word()), 1..4);
    (any::<Index>(), changes).prop_map(|(parser, changes)| {
        let mut tokens = tokens(parser.get(PARSERS).full);
        for (at, word) in changes {
            let at = at.index(tokens.len());
            tokens[at] = word;
        }
        tokens.concat()
    })
}

/// The strings, numbers and signs of a JSON text that has nothing escaped.
fn tokens(mut text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let end = match text.strip_prefix('"') {
            Some(string) => string.find('"').map(|at| at + 2),
            None if text.starts_with(['{', '}', '[', ']', ':', ',']) => Some(1),
            None => text.find(['"', '{', '}', '[', ']', ':', ',']),
        };
        let (token, rest) = text.split_at(end.unwrap_or(text.len()));
        tokens.push(token);
        text = rest;
    }
    tokens
}

/// What is no JSON is not taken, and what is refused is told with its key and on one line.
fn tried(parser: &Parser, text: &str) {
    let may_be_taken = match parser.nothing {
        Some(_) => serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok(),
        None => text.is_ascii(),
    };
    let key = parser.key;
    match (parser.parse)(text) {
        Ok(_) => assert!(may_be_taken, "{key}: {text}"),
        Err(error) => {
            assert_eq!(error.key, key, "{text}");
            let told = chain::<()>(Err(error));
            assert!(!told.contains(char::is_control), "{told}");
        }
    }
}

#[test]
fn no_annotation_panics_whatever_stands_in_place_of_one_of_its_words() {
    for parser in PARSERS {
        let whole = tokens(parser.full);
        for at in 0..whole.len() {
            for word in WORDS {
                let mut tokens = whole.clone();
                tokens[at] = word;
                tried(parser, &tokens.concat());
            }
        }
    }
}

proptest! {
    #[test]
    fn no_annotation_panics(text in prop_oneof![nearly_json(), nearly_right(), any::<String>()]) {
        for parser in PARSERS {
            tried(parser, &text);
        }
    }
}
