//! Reading a Kubernetes object field by field, where one bad field costs that field only.
//!
//! A [`Place`] is a spot in an object, which may hold nothing. Asking it for a value of a type gives
//! the value, or nothing and, if something unfit is there, an issue. So the code that reads a whole
//! object states names, types, ranges and defaults, and nothing about errors.

use super::issue::{PolicyIssue, Problem};
use crate::{Issues, annotation::Quantity};
use koord_model::excerpt;
use serde_json::Value;
use std::{borrow::Cow, cell::RefCell};

/// The most elements that a list may have: more than a node has disks, or programs beside its pods. Each is
/// looked at with every decision about the node, while nobody else is served.
const MAX_ELEMENTS: usize = 256;

/// An object being read, and what was found wrong in it.
pub(super) struct Object<'a> {
    kind: &'a str,
    name: &'a str,
    root: &'a Value,
    issues: &'a RefCell<Issues<PolicyIssue>>,
}

/// A spot in an object.
pub(super) struct Place<'a> {
    object: &'a Object<'a>,
    path: String,
    value: Option<&'a Value>,
}

// === impl Object ===

impl<'a> Object<'a> {
    pub(super) fn new(
        kind: &'a str,
        name: &'a str,
        root: &'a Value,
        issues: &'a RefCell<Issues<PolicyIssue>>,
    ) -> Self {
        Self {
            kind,
            name,
            root,
            issues,
        }
    }

    /// The object itself.
    pub(super) fn root(&'a self) -> Place<'a> {
        Place {
            object: self,
            path: String::new(),
            value: Some(self.root),
        }
    }
}

// === impl Place ===

impl<'a> Place<'a> {
    /// The place of a field; nothing is there if this place holds no mapping.
    pub(super) fn field(&self, key: &str) -> Place<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.below(
            format!("{}{dot}{key}", self.path),
            self.value.and_then(|value| value.get(key)),
        )
    }

    /// The place of a field that holds fields itself.
    pub(super) fn section(&self, key: &str) -> Place<'a> {
        let mut section = self.field(key);
        section.value = section.take("a mapping", Value::is_object);
        section
    }

    /// The place of a key that may hold dots and slashes, such as that of an annotation.
    pub(super) fn key(&self, key: &str) -> Place<'a> {
        self.below(
            format!("{}[{key}]", self.path),
            self.value.and_then(|value| value.get(key)),
        )
    }

    /// Each element of a list, mappings all, up to [`MAX_ELEMENTS`].
    pub(super) fn elements(&self) -> Vec<Place<'a>> {
        let list = self.take("a list", Value::is_array);
        let list = list.and_then(Value::as_array);
        let (count, max) = (list.map_or(0, Vec::len), MAX_ELEMENTS);
        if count > max {
            self.report(Problem::TooMany { count, max });
        }
        let list = list.into_iter().flatten().take(max);
        list.enumerate()
            .map(|(index, value)| self.below(format!("{}[{index}]", self.path), Some(value)))
            .filter(|place| place.take("a mapping", Value::is_object).is_some())
            .collect()
    }

    pub(super) fn is_there(&self) -> bool {
        self.value.is_some()
    }

    pub(super) fn is_text(&self) -> bool {
        self.value.is_some_and(Value::is_string)
    }

    /// Whether nothing is here, or an empty text.
    pub(super) fn is_blank(&self) -> bool {
        self.value.is_none_or(|value| value.as_str() == Some(""))
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.take("a boolean", Value::is_boolean)?.as_bool()
    }

    /// A whole number from `min` to `max`.
    pub(super) fn integer(&self, min: i64, max: i64) -> Option<i64> {
        let value = self.value?;
        if !value.is_i64() && !value.is_u64() {
            self.report_type(format!("a whole number from {min} to {max}"), value);
            return None;
        }
        match value.as_i64() {
            Some(number) if (min..=max).contains(&number) => Some(number),
            _ => {
                let value = value.to_string();
                self.report(Problem::OutOfRange { value, min, max });
                None
            }
        }
    }

    /// An amount of something, as Kubernetes writes it, that cannot be below zero.
    pub(super) fn quantity(&self) -> Option<u64> {
        let amount = self.take(Quantity::SAID, |v| v.is_string() || v.is_number())?;
        let text = amount
            .as_str()
            .map_or_else(|| amount.to_string(), |text| text.trim().to_owned());
        match text.parse::<Quantity>().and_then(Quantity::unsigned_value) {
            Ok(amount) => Some(amount),
            Err(error) => {
                self.report(error.into());
                None
            }
        }
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.take("a string", Value::is_string)?.as_str()
    }

    /// One of a closed set of names; nothing if the text is empty, as upstream has it.
    pub(super) fn name<T: Copy>(&self, names: &[(&'static str, T)]) -> Option<T> {
        self.name_or_blank(names).flatten()
    }

    /// One of a closed set of names: `Some(None)` if none is said, `None` if what is said is wrong.
    pub(super) fn name_or_blank<T: Copy>(&self, names: &[(&'static str, T)]) -> Option<Option<T>> {
        let text = self.text_or_blank()?;
        if text.is_empty() {
            return Some(None);
        }
        let found = names.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            self.report(Problem::NotOneOf {
                value: excerpt(text),
                allowed: names.iter().map(|(name, _)| *name).collect(),
            });
        }
        found.map(|(_, value)| Some(*value))
    }

    /// A text: empty if there is none, `None` if what is there is wrong.
    pub(super) fn text_or_blank(&self) -> Option<&'a str> {
        if self.is_there() {
            self.text()
        } else {
            Some("")
        }
    }

    /// A text that `parse` understands.
    pub(super) fn parsed<T, E: Into<Problem>>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match parse(self.text()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.report(error.into());
                None
            }
        }
    }

    /// Writes an issue about this place.
    pub(super) fn report(&self, problem: Problem) {
        self.object.issues.borrow_mut().push(PolicyIssue {
            kind: self.object.kind.to_owned(),
            name: self.object.name.to_owned(),
            path: self.path.clone(),
            problem,
        });
    }

    fn below(&self, path: String, value: Option<&'a Value>) -> Place<'a> {
        #[cfg(test)]
        super::asked::note(&path);
        Place {
            object: self.object,
            path,
            value: value.filter(|value| !value.is_null()),
        }
    }

    fn take(&self, expected: &'static str, fits: impl Fn(&Value) -> bool) -> Option<&'a Value> {
        let value = self.value?;
        if fits(value) {
            return Some(value);
        }
        self.report_type(expected, value);
        None
    }

    fn report_type(&self, expected: impl Into<Cow<'static, str>>, found: &Value) {
        self.report(Problem::WrongType {
            expected: expected.into(),
            found: described(found),
        });
    }
}

fn described(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{:?}", excerpt(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
