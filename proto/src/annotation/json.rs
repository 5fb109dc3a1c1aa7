//! JSON as Go's `encoding/json` takes it into a struct.
//!
//! A value is taken *into* a place ([`Decode::decode`]), because that is what makes Go's rules for
//! repeated keys: the later one is laid over the earlier one. serde_json checks the grammar and
//! cuts an object into its members; numbers stay text, so that a quantity is exact. Recursion goes
//! as deep as our types do, never as deep as the input; what no type asks for is skipped without
//! recursion.

use super::error::{AnnotationError, Misfit, Reason};
use koord_model::{Bvt, CpuSet, MAX_SHOWN, RangeError, excerpt};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, fmt};

/// The longest annotation text that is looked at, in bytes. Kubernetes allows 256 KiB for all
/// annotations of an object together, but each is read again at each decision about its pod: who
/// fills them would hold up those of all others. The batch resources of a hundred containers are
/// 20 KB.
pub const MAX_LENGTH: usize = 32 * 1024;

/// How deep objects and lists may be nested; the bound of `encoding/json`.
pub const MAX_DEPTH: usize = 10_000;

/// The most elements that a list may have: more than there are NUMA nodes, devices or caches. What a text
/// says is kept as long as its pod lives, in more memory than the text.
const MAX_ELEMENTS: usize = 1_024;

/// A place that takes JSON values.
pub(super) trait Decode {
    /// Whether a value of an object is as good as left out, where that is told apart.
    fn says_nothing(json: &str) -> bool {
        is_null(json)
    }

    /// Takes `json`, the text of one well-formed value without white space around it.
    fn decode(&mut self, json: &str) -> Result<(), Misfit>;
}

/// Gives the members of an object, in the order of the text and repeated keys included, to a
/// function, until it refuses one.
struct Members<F> {
    take: F,
}

/// A string of JSON, copied only if it has escapes.
struct Text<'a>(Cow<'a, str>);

/// Reads a whole annotation.
pub(super) fn parse<T: Decode + Default>(
    key: &'static str,
    text: &str,
) -> Result<T, AnnotationError> {
    let mut value = T::default();
    check_bounds(text)
        .and_then(|()| serde_json::from_str::<&RawValue>(text).map_err(malformed(text)))
        .and_then(|json| value.decode(json.get()))
        .map_err(|misfit| misfit.of(key))?;
    Ok(value)
}

fn check_bounds(text: &str) -> Result<(), Misfit> {
    if text.len() > MAX_LENGTH {
        let length = text.len();
        return Err(Reason::TooLong { length }.into());
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(Reason::TooDeep.into());
        }
    }
    Ok(())
}

pub(super) fn is_null(json: &str) -> bool {
    json == "null"
}

/// The refusal of a value that is of another type than the place.
pub(super) fn wrong_type(expected: impl Into<Cow<'static, str>>, json: &str) -> Misfit {
    let found = match json.as_bytes().first() {
        Some(b'{') => "an object".to_owned(),
        Some(b'[') => "a list".to_owned(),
        Some(b'"') => string(json).map_or_else(|_| "a string".to_owned(), |text| shown(&text)),
        // A number, a boolean, or null.
        _ => excerpt(json),
    };
    let expected = expected.into();
    Reason::WrongType { expected, found }.into()
}

/// A whole number that `new` takes. What is no number is told the range too.
pub(super) fn ranged<T>(
    json: &str,
    new: impl Fn(i64) -> Result<T, RangeError>,
) -> Result<T, Misfit> {
    let number = json.parse().map_err(|_| wrong_type(range(&new), json))?;
    Ok(new(number).map_err(Box::new)?)
}

/// What `new` takes, which it says when it refuses a number.
pub(super) fn range<T>(new: impl Fn(i64) -> Result<T, RangeError>) -> String {
    match new(i64::MIN) {
        Err(RangeError { min, max, .. }) => format!("a whole number from {min} to {max}"),
        Ok(_) => "an integer of 64 bits".to_owned(),
    }
}

/// The refusal of a list that has more elements than it may.
fn too_many(elements: usize) -> Misfit {
    let number = |count: usize| i128::try_from(count).expect("a count fits");
    Misfit::from(Box::new(RangeError {
        what: "count of elements",
        value: number(elements),
        min: 0,
        max: number(MAX_ELEMENTS),
    }))
}

/// The refusal of a text that is no JSON.
fn malformed(text: &str) -> impl FnOnce(serde_json::Error) -> Misfit {
    move |source| {
        let text = shown(text);
        Reason::Syntax { text, source }.into()
    }
}

/// A text that whoever wrote the annotation chose, as people are told it: cut and escaped.
pub(super) fn shown(text: &str) -> String {
    format!("{:?}", excerpt(text))
}

/// Takes each member of an object by `take`; an error is told with the member's key.
pub(super) fn for_each_member(
    json: &str,
    take: impl FnMut(&str, &str) -> Result<(), Misfit>,
) -> Result<(), Misfit> {
    if !json.starts_with('{') {
        return Err(wrong_type("an object", json));
    }
    let taken = serde_json::Deserializer::from_str(json).deserialize_map(Members { take });
    taken.map_err(malformed(json))?
}

/// A key as part of a path. Whoever wrote the annotation chose it, so it is cut and escaped.
pub(super) fn step(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if key.len() <= MAX_SHOWN && !key.is_empty() && key.chars().all(plain) {
        return format!(".{key}");
    }
    format!("[{}]", shown(key))
}

/// The text of a string.
pub(super) fn string(json: &str) -> Result<Cow<'_, str>, Misfit> {
    if !json.starts_with('"') {
        return Err(wrong_type("a string", json));
    }
    let Text(text) = serde_json::from_str(json).map_err(malformed(json))?;
    Ok(text)
}

/// Makes a struct a place for objects: each named member goes to its field, whatever the case of
/// its key.
macro_rules! object {
    ($type:ty { $($key:literal => $field:ident),+ $(,)? }) => {
        impl $crate::annotation::json::Decode for $type {
            fn decode(&mut self, json: &str) -> Result<(), $crate::annotation::error::Misfit> {
                use $crate::annotation::json::{for_each_member, is_null, Decode};
                if is_null(json) {
                    return Ok(());
                }
                for_each_member(json, |key, value| {
                    $(if key.eq_ignore_ascii_case($key) {
                        return Decode::decode(&mut self.$field, value);
                    })+
                    Ok(())
                })
            }
        }
    };
}
pub(super) use object;

// === impl Members ===

impl<'de, F: FnMut(&str, &str) -> Result<(), Misfit>> Visitor<'de> for Members<F> {
    type Value = Result<(), Misfit>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut taken = Ok(());
        // To the end in any case: serde_json takes an object that is not read whole for malformed.
        while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &RawValue>()? {
            if taken.is_ok() {
                taken = (self.take)(&key, value.get()).map_err(|misfit| misfit.inside(step(&key)));
            }
        }
        Ok(taken)
    }
}

// === impl Text ===

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;

        impl<'de> Visitor<'de> for Whole {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Whole)
    }
}

// === impl Decode ===

impl Decode for bool {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        match json {
            "true" => *self = true,
            "false" => *self = false,
            _ if is_null(json) => {}
            _ => return Err(wrong_type("a boolean", json)),
        }
        Ok(())
    }
}

macro_rules! integers {
    ($($type:ty: $name:literal),+) => {$(
        impl Decode for $type {
            fn decode(&mut self, json: &str) -> Result<(), Misfit> {
                if !is_null(json) {
                    *self = json.parse().map_err(|_| wrong_type($name, json))?;
                }
                Ok(())
            }
        }
    )+};
}

integers!(i32: "an integer of 32 bits", i64: "an integer of 64 bits");

impl Decode for String {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if !is_null(json) {
            *self = string(json)?.into_owned();
        }
        Ok(())
    }
}

impl Decode for CpuSet {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if !is_null(json) {
            *self = string(json)?.parse::<Self>()?;
        }
        Ok(())
    }
}

impl Decode for Bvt {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if !is_null(json) {
            *self = ranged(json, Self::new)?;
        }
        Ok(())
    }
}

impl<T: Decode + Default> Decode for Option<T> {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if T::says_nothing(json) {
            *self = None;
            return Ok(());
        }
        self.get_or_insert_default().decode(json)
    }
}

impl<T: Decode + Default> Decode for Vec<T> {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.clear();
        if is_null(json) {
            return Ok(());
        }
        if !json.starts_with('[') {
            return Err(wrong_type("a list", json));
        }
        let elements = serde_json::from_str::<Vec<&RawValue>>(json);
        let elements = elements.map_err(malformed(json))?;
        if elements.len() > MAX_ELEMENTS {
            return Err(too_many(elements.len()));
        }
        for (index, element) in elements.iter().enumerate() {
            let mut value = T::default();
            value
                .decode(element.get())
                .map_err(|misfit| misfit.inside(format!("[{index}]")))?;
            self.push(value);
        }
        Ok(())
    }
}

impl<T: Decode + Default> Decode for BTreeMap<String, T> {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if is_null(json) {
            self.clear();
            return Ok(());
        }
        for_each_member(json, |key, element| {
            let mut value = T::default();
            value.decode(element)?;
            self.insert(key.to_owned(), value);
            Ok(())
        })
    }
}
