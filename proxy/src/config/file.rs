//! The configuration file: YAML, one mapping, the flags' names as keys.

use super::key::{Key, Origin, RawConfig, Repeat};
use super::{Issue, Problem};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
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
            (Some(key), Scalar::Text(text)) => {
                raw.insert(key, text, origin.clone());
                continue;
            }
            (Some(key), Scalar::List(items)) if key.repeat == Repeat::Extends => {
                raw.insert(key, items.join(","), origin.clone());
                continue;
            }
            (Some(_), Scalar::List(_)) => Problem::NoList,
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
}

struct ScalarVisitor {
    lists: bool,
}

// === impl Scalar ===

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor { lists: true })
    }
}

/// An item of a list: no list itself.
struct Item(String);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(ScalarVisitor { lists: false })? {
            Scalar::Text(text) => Ok(Self(text)),
            Scalar::List(_) => Err(de::Error::custom("a list within a list")),
        }
    }
}

// === impl ScalarVisitor ===

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lists {
            "text, a number, true, false or a list of these"
        } else {
            "text, a number, true or false"
        })
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

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Scalar, A::Error> {
        if !self.lists {
            return Err(de::Error::invalid_type(de::Unexpected::Seq, &self));
        }
        let mut list = Vec::new();
        while let Some(Item(text)) = items.next_element()? {
            list.push(text);
        }
        Ok(Scalar::List(list))
    }
}
