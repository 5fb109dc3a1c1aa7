//! From a YAML stream, as `kubectl get -o yaml` prints it, to the policy of one node.

use super::{
    NodeMetadata, NodePolicy, NodeSloSpec, NodeTopology,
    issue::{PolicyError, PolicyIssue, Problem},
    place::Object,
};
use crate::{Issues, ParserError};
use koord_model::excerpt;
use serde_json::Value;
use std::cell::RefCell;

/// The longest text that is read, in bytes.
pub const MAX_LENGTH: usize = 4 * 1024 * 1024;

/// What a text gave.
#[derive(Debug)]
pub struct Parsed {
    pub policy: NodePolicy,
    /// What is not in force because it is wrong; the rest of its document is.
    pub issues: Issues<PolicyIssue>,
    /// Documents about other nodes than the one asked for.
    pub other_nodes: usize,
}

/// The kinds that are read, with their `apiVersion`; of a group any version will do.
const KINDS: [(&str, &str, Kind); 3] = [
    ("NodeSLO", "slo.koordinator.sh/v1alpha1", Kind::Slo),
    (
        "NodeResourceTopology",
        "topology.node.k8s.io/v1alpha1",
        Kind::Topology,
    ),
    ("Node", "v1", Kind::Node),
];

#[derive(Clone, Copy)]
enum Kind {
    Slo,
    Topology,
    Node,
}

struct Reader {
    node_name: Option<String>,
    /// Whether the caller named the node; else the first document did.
    named_by_caller: bool,
    policy: NodePolicy,
    issues: RefCell<Issues<PolicyIssue>>,
    other_nodes: usize,
}

// === impl NodePolicy ===

impl NodePolicy {
    /// Reads a stream of NodeSLO, NodeResourceTopology and Node documents, and lists of such.
    ///
    /// Without a `node_name` all documents must be about one node. A wrong value costs that value only and
    /// becomes an issue.
    ///
    /// # Errors
    ///
    /// When the text is longer than [`MAX_LENGTH`] bytes, is no YAML stream, has a key twice in one mapping,
    /// goes beyond the parser's bounds, or says nothing. Or when a Status is in it, or it has none of these
    /// objects that can be read and no list without items: a message of whoever was to write them.
    pub fn parse_stream(yaml: &str, node_name: Option<&str>) -> Result<Parsed, PolicyError> {
        if yaml.len() > MAX_LENGTH {
            let length = yaml.len();
            return Err(PolicyError::TooLong { length });
        }
        // The parser's own budget bounds depth (64) and nodes (250,000). kubectl prints no aliases.
        let options = serde_saphyr::options! {
            with_snippet: false,
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
        };
        let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(yaml, options)
            .map_err(|error| unread(error, yaml))?;
        // Whoever writes the file has only begun, or failed: a list without items says that there is
        // no policy.
        if documents.iter().all(Value::is_null) {
            return Err(PolicyError::Empty);
        }

        let mut reader = Reader {
            node_name: node_name.map(str::to_owned),
            named_by_caller: node_name.is_some(),
            policy: Self::default(),
            issues: RefCell::default(),
            other_nodes: 0,
        };
        let mut is_withdrawn = false;
        for (number, document) in (1..).zip(&documents) {
            if text_at(document, "/kind") == "List" {
                let items = document.get("items").and_then(Value::as_array);
                is_withdrawn |= items.is_some_and(Vec::is_empty);
                for item in items.into_iter().flatten() {
                    reader.take(number, item)?;
                }
            } else {
                reader.take(number, document)?;
            }
        }
        let is_read = reader.other_nodes > 0 || reader.policy != Self::default();
        if !is_read && !is_withdrawn {
            let first = reader.issues.into_inner().into_first();
            return Err(PolicyError::NoObject(first.map(Box::new)));
        }
        Ok(Parsed {
            policy: reader.policy,
            issues: reader.issues.into_inner(),
            other_nodes: reader.other_nodes,
        })
    }
}

fn unread(error: serde_saphyr::Error, yaml: &str) -> PolicyError {
    match error {
        serde_saphyr::Error::DuplicateMappingKey {
            key: Some(key),
            location,
        } => {
            let line = location.line();
            let (document, kind) = document_of(yaml, line);
            PolicyError::DuplicateKey {
                document,
                kind: excerpt(kind),
                key: excerpt(&key),
                line,
            }
        }
        error => PolicyError::Syntax(ParserError::of(error)),
    }
}

/// The document that a line of a stream is in, counted as far as they say anything, and its kind. The
/// text alone tells: who could not read a document has nothing else of it.
fn document_of(yaml: &str, line: u64) -> (usize, &str) {
    let (mut document, mut kind, mut is_empty) = (1, "", true);
    for (number, text) in (1..).zip(yaml.lines()) {
        let begun = text
            .strip_prefix("---")
            .filter(|rest| rest.is_empty() || rest.starts_with(' '));
        if begun.is_some() {
            if number > line {
                break;
            }
            document += usize::from(!is_empty);
            (kind, is_empty) = ("", true);
        }
        let text = begun.unwrap_or(text);
        let said = text.trim_start();
        is_empty &= said.is_empty() || said.starts_with('#');
        if let Some(named) = text.strip_prefix("kind:") {
            let word = named.split_whitespace().next().unwrap_or_default();
            kind = word.trim_matches(['"', '\'']);
        }
    }
    (document, kind)
}

/// Whether an `apiVersion` is the expected one, or another version of its group.
fn is_version_of(expected: &str, api_version: &str) -> bool {
    match expected.split_once('/') {
        None => api_version == expected,
        Some((group, _)) => api_version
            .split_once('/')
            .is_some_and(|(named, _)| named == group),
    }
}

fn text_at<'a>(document: &'a Value, pointer: &str) -> &'a str {
    let value = document.pointer(pointer).and_then(Value::as_str);
    value.unwrap_or_default()
}

// === impl Reader ===

impl Reader {
    /// Takes an object of the document of this number. An error if it is none, but what an API server says
    /// that has none for us.
    fn take(&mut self, number: usize, document: &Value) -> Result<(), PolicyError> {
        if text_at(document, "/kind") == "Status" {
            let message = excerpt(text_at(document, "/message"));
            let document = number;
            return Err(PolicyError::Status { document, message });
        }
        self.read(number, document);
        Ok(())
    }

    fn read(&mut self, number: usize, document: &Value) {
        let (kind, api_version) = (text_at(document, "/kind"), text_at(document, "/apiVersion"));
        let name = text_at(document, "/metadata/name");
        let shown_kind = match kind {
            "" => format!("document {number}"),
            kind => excerpt(kind),
        };
        let shown_name = excerpt(name);
        let object = Object::new(&shown_kind, &shown_name, document, &self.issues);
        if kind.is_empty() {
            return object.root().field("kind").report(Problem::NoKind);
        }
        let known = KINDS.iter().find(|(name, ..)| *name == kind);
        let Some(&(_, expected, known)) = known else {
            object.root().report(Problem::UnknownKind {
                kind: shown_kind.clone(),
                api_version: excerpt(api_version),
            });
            return;
        };
        if !is_version_of(expected, api_version) {
            let place = object.root().field("apiVersion");
            return place.report(Problem::ApiVersion {
                document: number,
                found: excerpt(api_version),
                expected,
            });
        }
        if name.is_empty() {
            let place = object.root().field("metadata").field("name");
            return place.report(Problem::Missing);
        }
        match &self.node_name {
            Some(expected) if expected != name && self.named_by_caller => {
                self.other_nodes += 1;
                return;
            }
            Some(expected) if expected != name => {
                let expected = excerpt(expected);
                return object.root().report(Problem::OtherNode { expected });
            }
            _ => self.node_name = Some(name.to_owned()),
        }
        let repeated = match known {
            Kind::Slo => {
                let slo = NodeSloSpec::read(&object.root().section("spec"));
                self.policy.slo.replace(slo).is_some()
            }
            Kind::Topology => {
                let topology = NodeTopology::read(&object.root().section("metadata"));
                self.policy.topology.replace(topology).is_some()
            }
            Kind::Node => {
                let node = NodeMetadata::read(&object.root());
                self.policy.node.replace(node).is_some()
            }
        };
        if repeated {
            object.root().report(Problem::Repeated);
        }
    }
}
