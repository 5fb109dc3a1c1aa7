//! Why an annotation cannot be used: one error for all of them, because the caller does the same
//! with each: it drops what the annotation would have decided, and names key, place and reason.

use super::{json, normalization::NormalizationError, quantity::QuantityError};
use koord_model::{BlockNameError, CpuSetError, RangeError};
use std::borrow::Cow;
use thiserror::Error;

/// An annotation that cannot be used.
///
/// One in JSON cannot be if it is longer than [`MAX_LENGTH`](super::MAX_LENGTH) bytes, is nested deeper than
/// [`MAX_DEPTH`](super::MAX_DEPTH), or is no JSON. Nor can it be if a value that is looked at is of another
/// type than is expected there, or a list that is looked at has more than 1,024 elements. `null` is taken for
/// any type.
#[derive(Debug, Error)]
#[error("annotation {key} is unusable at {path}")]
pub struct AnnotationError {
    /// The annotation's key.
    pub key: &'static str,
    /// Where in its JSON text, as `$.containers.main.limits`; `$` is the whole.
    pub path: String,
    #[source]
    pub reason: Reason,
}

/// What is wrong with one value, which is told with it: cut and escaped, because whoever wrote the
/// annotation chose it.
#[derive(Debug, Error)]
pub enum Reason {
    #[error("text is {length} bytes long, {} are allowed", json::MAX_LENGTH)]
    TooLong { length: usize },
    #[error("nesting is deeper than {} levels", json::MAX_DEPTH)]
    TooDeep,
    #[error("text {text} is not JSON")]
    Syntax {
        text: String,
        source: serde_json::Error,
    },
    #[error("value is {found}, not {expected}")]
    WrongType {
        expected: Cow<'static, str>,
        found: String,
    },
    #[error("value is no CPU list")]
    Cpuset(#[source] CpuSetError),
    #[error("value is no quantity")]
    Quantity(#[source] QuantityError),
    #[error("value is no ratio")]
    Ratio(#[source] NormalizationError),
    #[error("value {value} is none of {}", allowed.join(", "))]
    NotOneOf {
        value: String,
        allowed: Vec<&'static str>,
    },
    #[error("value is no name")]
    BlockName(#[source] BlockNameError),
    #[error("value is out of range")]
    Range(#[source] Box<RangeError>),
}

/// A reason and the way to it, from the inside out.
#[derive(Debug)]
pub(super) struct Misfit {
    steps: Vec<String>,
    reason: Reason,
}

// === impl Misfit ===

impl Misfit {
    /// The same, seen from one level further out.
    pub(super) fn inside(mut self, step: String) -> Self {
        self.steps.push(step);
        self
    }

    pub(super) fn of(self, key: &'static str) -> AnnotationError {
        let mut path = String::from("$");
        self.steps.iter().rev().for_each(|step| path.push_str(step));
        AnnotationError {
            key,
            path,
            reason: self.reason,
        }
    }
}

impl<R: Into<Reason>> From<R> for Misfit {
    fn from(reason: R) -> Self {
        Self {
            steps: Vec::new(),
            reason: reason.into(),
        }
    }
}

macro_rules! reasons {
    ($($variant:ident($source:ty)),+ $(,)?) => {$(
        impl From<$source> for Reason {
            fn from(source: $source) -> Self {
                Self::$variant(source)
            }
        }
    )+};
}

reasons! {
    Cpuset(CpuSetError),
    Quantity(QuantityError),
    Ratio(NormalizationError),
    BlockName(BlockNameError),
    Range(Box<RangeError>),
}
