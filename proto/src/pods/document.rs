//! The documents of a text, and the objects that they list.
//!
//! A text need not be what was to be written: a command that fails leaves a message, and an API server
//! answers with a Status. So a document is looked at for what it says it is before anything is taken of
//! it, and one that is nothing of ours makes the whole text an error.

use super::{MAX_OBJECTS, PodsError};
use crate::ParserError;
use koord_model::excerpt;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// As much of a document, or of an object in a list, as it takes to know what it is.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    items: Items<'a>,
}

/// What a list has, as it is written there.
#[derive(Default)]
struct Items<'a> {
    /// Whether there is anything; `null` is a list without items, as a kubelet without pods says it.
    are_there: bool,
    first: Vec<&'a RawValue>,
    /// Whether there are more than are allowed.
    are_too_many: bool,
}

/// What a document is.
enum Standing<'a> {
    List(Items<'a>),
    /// A pod or a claim, however wrong.
    Object,
    Status {
        message: String,
    },
    Other {
        kind: String,
    },
}

struct ItemsVisitor;

/// The objects in a stream of documents.
pub(super) fn items(text: &str) -> Result<Vec<&RawValue>, PodsError> {
    let mut all = Vec::new();
    let mut number = 0;
    for document in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        number += 1;
        let document = document.map_err(|error| PodsError::Json(ParserError::of(error)))?;
        let known: Document<'_> =
            serde_json::from_str(document.get()).map_err(|error| PodsError::Document {
                document: number,
                source: ParserError::of(error),
            })?;
        let mut are_too_many = false;
        match known.standing() {
            Standing::List(items) => {
                all.extend(items.first);
                are_too_many = items.are_too_many;
            }
            Standing::Object => all.push(document),
            Standing::Status { message } => return Err(PodsError::Status { message }),
            Standing::Other { kind } => {
                let document = number;
                return Err(PodsError::Other { document, kind });
            }
        }
        if are_too_many || all.len() > MAX_OBJECTS {
            return Err(PodsError::TooMany);
        }
    }
    // Whoever writes a file by a shell's redirection empties it first.
    match number {
        0 => Err(PodsError::Empty),
        _ => Ok(all),
    }
}

/// Whether what cannot be read of a list is a pod or a claim. An error if an API server has said it that
/// has none for us.
pub(super) fn is_ours(text: &str) -> Result<bool, PodsError> {
    let Ok(document) = serde_json::from_str::<Document<'_>>(text) else {
        return Ok(false);
    };
    match document.standing() {
        Standing::Object => Ok(true),
        Standing::Status { message } => Err(PodsError::Status { message }),
        Standing::List(_) | Standing::Other { .. } => Ok(false),
    }
}

// === impl Document ===

impl<'a> Document<'a> {
    fn standing(self) -> Standing<'a> {
        match self.kind.as_deref() {
            Some("List" | "PodList") if self.items.are_there => Standing::List(self.items),
            Some("Pod" | "PersistentVolumeClaim") => Standing::Object,
            None if self.metadata.is_some_and(|it| it.get().starts_with('{')) => Standing::Object,
            Some("Status") => {
                let message = self.message.map(|it| serde_json::from_str(it.get()));
                let message: String = message.and_then(Result::ok).unwrap_or_default();
                let message = excerpt(&message);
                Standing::Status { message }
            }
            kind => Standing::Other {
                kind: excerpt(kind.unwrap_or_default()),
            },
        }
    }
}

// === impl Items ===

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor)
    }
}

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Items<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<Items<'de>, E> {
        Ok(Items {
            are_there: true,
            ..Items::default()
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items<'de>, A::Error> {
        let mut first = Vec::new();
        while first.len() < MAX_OBJECTS {
            let Some(item) = list.next_element()? else {
                break;
            };
            first.push(item);
        }
        let mut are_too_many = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            are_too_many = true;
        }
        Ok(Items {
            are_there: true,
            first,
            are_too_many,
        })
    }
}
