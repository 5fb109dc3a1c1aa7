//! A YAML text as JSON, in which the rest of this module reads.
//!
//! What a list has is turned into JSON one by one: all of it as a tree takes ten times its length.

use super::{MAX_OBJECTS, PodsError};
use crate::ParserError;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use std::fmt;

/// Nodes of a YAML text: a thousand pods have fewer.
const MAX_NODES: usize = 4_000_000;

/// A document of a YAML stream as JSON. What it lists is held one by one until it is written.
struct Rewritten(String);

/// What is listed, written into this.
struct Listed<'a>(&'a mut String);

struct DocumentVisitor;

/// A stream as JSON, document by document.
pub(super) fn to_json(text: &str) -> Result<String, PodsError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
        },
        // kubectl prints none.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    };
    // Documents that say nothing are not among them.
    let documents: Vec<Rewritten> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| PodsError::Yaml(ParserError::of(error)))?;
    Ok(documents.into_iter().map(|document| document.0).collect())
}

// === impl Rewritten ===

impl<'de> Deserialize<'de> for Rewritten {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Rewritten;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Rewritten, A::Error> {
        let mut json = String::new();
        while let Some(key) = fields.next_key::<String>()? {
            json.push(if json.is_empty() { '{' } else { ',' });
            let is_list = key == "items";
            json += &Value::String(key).to_string();
            json.push(':');
            match is_list {
                true => fields.next_value_seed(Listed(&mut json))?,
                false => json += &fields.next_value::<Value>()?.to_string(),
            }
        }
        json += if json.is_empty() { "{}" } else { "}" };
        Ok(Rewritten(json))
    }
}

// === impl Listed ===

impl<'de> DeserializeSeed<'de> for Listed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Listed<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        *self.0 += "null";
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self(json) = self;
        let mut count = 0;
        json.push('[');
        while let Some(item) = list.next_element::<Value>()? {
            if count == MAX_OBJECTS {
                return Err(A::Error::custom(PodsError::TooMany));
            }
            if count > 0 {
                json.push(',');
            }
            *json += &item.to_string();
            count += 1;
        }
        json.push(']');
        Ok(())
    }
}
