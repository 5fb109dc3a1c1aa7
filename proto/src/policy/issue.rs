//! What is wrong with a policy: issues cost one field, errors cost the whole text.

use super::stream::MAX_LENGTH;
use crate::{
    ParserError,
    annotation::{AnnotationError, QuantityError},
};
use koord_model::{BlockNameError, CgroupPathError};
use std::borrow::Cow;
use thiserror::Error;

/// One thing in a policy that is not in force because it is wrong.
#[derive(Debug, Error)]
#[error("{kind}{} is wrong{}", named(name), at(path))]
pub struct PolicyIssue {
    pub kind: String,
    pub name: String,
    /// As `spec.resourceQOSStrategy.lsClass.cpuQOS.groupIdentity`; empty is the whole document.
    pub path: String,
    #[source]
    pub problem: Problem,
}

/// What is wrong there.
#[derive(Debug, Error)]
pub enum Problem {
    #[error("value is {found}, not {expected}")]
    WrongType {
        expected: Cow<'static, str>,
        found: String,
    },
    #[error("value {value} is outside {min} to {max}")]
    OutOfRange { value: String, min: i64, max: i64 },
    #[error("value {value:?} is none of {}", allowed.join(", "))]
    NotOneOf {
        value: String,
        allowed: Vec<&'static str>,
    },
    #[error("list has {count} elements, of which the first {max} count")]
    TooMany { count: usize, max: usize },
    #[error("value is missing")]
    Missing,
    #[error("annotation cannot be used")]
    Annotation(#[source] AnnotationError),
    #[error("value is no quantity")]
    Quantity(#[source] QuantityError),
    #[error("value is no name")]
    BlockName(#[source] BlockNameError),
    #[error(
        "limits of block devices are taken of beClass, cgroupRoot and pods: pods of this class have no directory of their own"
    )]
    NoDirectory,
    #[error("path cannot be used")]
    CgroupPath(#[source] CgroupPathError),
    #[error("path leads to the base itself")]
    EmptyPath,
    #[error("no kind is named")]
    NoKind,
    #[error("kind {kind:?} of {api_version:?} is none that is read here")]
    UnknownKind { kind: String, api_version: String },
    #[error("in document {document} it is {found:?}, and of this kind {expected:?} is expected")]
    ApiVersion {
        document: usize,
        found: String,
        expected: &'static str,
    },
    #[error("document is about another node than {expected:?}, the first that was named")]
    OtherNode { expected: String },
    #[error("document takes the place of an earlier one")]
    Repeated,
}

/// Why a text gives no policy at all.
#[derive(Debug, Error)]
pub enum PolicyError {
    #[error("policy is {length} bytes long, {MAX_LENGTH} are allowed")]
    TooLong { length: usize },
    #[error("policy is empty")]
    Empty,
    #[error(
        "document {document} is a Status, which an API server answers instead of objects: {message:?}"
    )]
    Status { document: usize, message: String },
    #[error("no NodeSLO, NodeResourceTopology or Node can be read of it")]
    NoObject(#[source] Option<Box<PolicyIssue>>),
    #[error(
        "document {document} of kind {kind:?} has the key {key:?} again in line {line}, and each key is \
         expected once"
    )]
    DuplicateKey {
        document: usize,
        kind: String,
        key: String,
        line: u64,
    },
    #[error("policy is no YAML stream")]
    Syntax(#[source] ParserError),
}

/// With a space before it, if there is a name.
fn named(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" {name:?}"),
    }
}

/// The same of a place in the document.
fn at(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!(" at {path:?}"),
    }
}

// === impl Problem ===

impl From<AnnotationError> for Problem {
    fn from(error: AnnotationError) -> Self {
        Self::Annotation(error)
    }
}

impl From<QuantityError> for Problem {
    fn from(error: QuantityError) -> Self {
        Self::Quantity(error)
    }
}

impl From<CgroupPathError> for Problem {
    fn from(error: CgroupPathError) -> Self {
        Self::CgroupPath(error)
    }
}

impl From<BlockNameError> for Problem {
    fn from(error: BlockNameError) -> Self {
        Self::BlockName(error)
    }
}
