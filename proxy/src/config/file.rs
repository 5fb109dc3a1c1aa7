//! The configuration file: YAML, one mapping, the flags' names as keys.

use super::key::{Key, Origin, RawConfig, Repeat};
use super::{Issue, Problem};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{collections::BTreeMap, fmt, path::Path};

/// Reads the text of a configuration file. Bad keys are added to `issues`; the rest is used.
pub(super) fn read(text: &str, path: &Path, issues: &mut Vec<Issue>) -> RawConfig {
    let origin = Origin::File(path.to_owned());
    let mut raw = RawConfig::default();
    // A file of comments alone is an empty document, which is no mapping.
    // A value is what it would be in a flag: `no` is a word there, and `05` has two digits.
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true
    };
    let said = serde_saphyr::from_str_with_options::<Option<BTreeMap<_, _>>>(text, options);
    let said: BTreeMap<String, Scalar> = match said {
        Ok(said) => said.unwrap_or_default(),
        Err(source) => {
            let (key, problem) = unread(source);
            issues.push(Issue {
                key,
                origin,
                problem,
            });
            return raw;
        }
    };
    for (name, value) in said {
        let problem = match (Key::named(&name), value) {
            (None, _) => Problem::UnknownKey,
            (Some(key), _) if raw.get(key).is_some() => Problem::Twice { other: key.name },
            (Some(key), Scalar::Text(text)) => {
                raw.insert(key, text, origin.clone());
                continue;
            }
            (Some(key), Scalar::List(items)) if key.repeat == Repeat::Extends => {
                raw.insert(key, items.join(","), origin.clone());
                continue;
            }
            (Some(key), other) => Problem::Kind {
                wanted: match key.repeat {
                    Repeat::Replaces => "one value",
                    Repeat::Extends => "text or a list of text",
                },
                found: other.kind(),
            },
        };
        issues.push(Issue {
            key: name,
            origin: origin.clone(),
            problem,
        });
    }
    raw
}

/// Why nothing of a file is used, and of which key, if it is one.
fn unread(error: serde_saphyr::Error) -> (String, Problem) {
    match error {
        serde_saphyr::Error::DuplicateMappingKey {
            key: Some(key),
            location,
        } => {
            let line = location.line();
            (key, Problem::Duplicate { line })
        }
        error => (String::new(), Problem::Syntax(Box::new(error))),
    }
}

/// A value in the file. Numbers and booleans are taken as they would be written in a flag.
enum Scalar {
    Text(String),
    List(Vec<String>),
    /// What no flag could say: a mapping, or a list with something else than text in it.
    Nested(&'static str),
}

struct ScalarVisitor;

// === impl Scalar ===

impl Scalar {
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Nested(kind) => kind,
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

// === impl ScalarVisitor ===

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, true, false or a list of these")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_string()))
    }

    /// `key:` with nothing after it.
    fn visit_unit<E: de::Error>(self) -> Result<Scalar, E> {
        Ok(Scalar::Text(String::new()))
    }

    /// To the end, whatever is in it: what else is wrong with the file is said too.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Scalar, A::Error> {
        let (mut list, mut nested) = (Vec::new(), None);
        while let Some(item) = items.next_element::<Scalar>()? {
            match item {
                Scalar::Text(text) => list.push(text),
                Scalar::List(_) => nested = Some("a list within a list"),
                Scalar::Nested(kind) => nested = Some(kind),
            }
        }
        Ok(nested.map_or(Scalar::List(list), Scalar::Nested))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Scalar, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested("a mapping"))
    }
}
