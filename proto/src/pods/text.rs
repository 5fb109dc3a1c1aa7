//! The text of a pod, and of a claim.

use super::{Item, Pod, PodIssue, Problem, spec::SpecText};
use crate::{ParserError, keys::annotation};
use koord_model::{BlockName, PodUid, excerpt};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

#[derive(Deserialize)]
struct PodText<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    metadata: Metadata,
    spec: Option<SpecText>,
    /// One that is not as a pod's is says nothing.
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StatusText {
    conditions: Option<Vec<ConditionText>>,
}

#[derive(Deserialize)]
struct ConditionText {
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: Option<String>,
}

/// `null` is what is not there.
#[derive(Deserialize)]
struct Metadata {
    uid: Option<String>,
    namespace: Option<String>,
    name: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// As much of an object as it takes to name it.
#[derive(Default, Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Names,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Names {
    namespace: Value,
    name: Value,
}

/// As much of a claim as it takes to know what it is bound to.
#[derive(Deserialize)]
struct ClaimText {
    metadata: Names,
    spec: ClaimSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSpec {
    volume_name: Option<String>,
}

/// Reads an object that has to be a pod or a claim. In the kubelet's list none says its kind.
pub(super) fn read(text: &str, keep: impl Fn(&str) -> bool) -> Result<Item, PodIssue> {
    let bad = |problem| issue(text, problem);
    let PodText {
        kind,
        metadata,
        spec,
        status,
    } = serde_json::from_str(text).map_err(|error| bad(Problem::Form(ParserError::of(error))))?;
    match kind.as_deref() {
        None | Some("Pod") => {}
        Some("PersistentVolumeClaim") => return Ok(Item::Claim(claim(text))),
        Some(kind) => {
            let kind = excerpt(kind);
            return Err(bad(Problem::OtherKind { kind }));
        }
    }
    let annotations = metadata.annotations.unwrap_or_default();
    // A mirror pod stands for one that the API server did not make; the runtime knows that one, by
    // the hash of its manifest.
    let mirrors = annotations.contains_key(annotation::CONFIG_MIRROR);
    let uid = match annotations.get(annotation::CONFIG_HASH) {
        Some(hash) if mirrors => Some(hash.clone()),
        _ => metadata.uid,
    };
    let mut spec = spec.unwrap_or_default().read().map_err(bad)?;
    spec.is_stuck_in_resize = status.is_some_and(|status| {
        let status = serde_json::from_str::<StatusText>(status.get());
        status.is_ok_and(|status| status.is_stuck_in_resize())
    });
    let kept = |mut texts: BTreeMap<String, String>| {
        texts.retain(|key, _| keep(key));
        texts
    };
    Ok(Item::Pod(Pod {
        uid: PodUid::new(&uid.unwrap_or_default()).map_err(|_| bad(Problem::Uid))?,
        namespace: metadata.namespace.unwrap_or_else(|| "default".to_owned()),
        name: metadata.name,
        labels: kept(metadata.labels.unwrap_or_default()),
        annotations: kept(annotations),
        spec: Arc::new(spec),
    }))
}

/// Namespace and name of a claim, and the PersistentVolume that it is bound to, if it is.
fn claim(text: &str) -> Option<((String, String), BlockName)> {
    let ClaimText { metadata, spec } = serde_json::from_str(text).ok()?;
    let namespace = metadata.namespace.as_str().unwrap_or("default").to_owned();
    let name = metadata.name.as_str()?.to_owned();
    let volume = BlockName::volume(&spec.volume_name?).ok()?;
    Some(((namespace, name), volume))
}

// === impl StatusText ===

impl StatusText {
    /// What kubelets say since 1.33 of a resize that has failed at the node.
    fn is_stuck_in_resize(&self) -> bool {
        let mut conditions = self.conditions.iter().flatten();
        conditions.any(|it| {
            let (kind, reason) = (it.kind.as_deref(), it.reason.as_deref());
            (kind, reason) == (Some("PodResizeInProgress"), Some("Error"))
        })
    }
}

/// An issue with the name that the object has, as far as it has one.
pub(super) fn issue(text: &str, problem: Problem) -> PodIssue {
    let Named { metadata } = serde_json::from_str(text).unwrap_or_default();
    let [namespace, name] = [metadata.namespace, metadata.name]
        .map(|part| part.as_str().map_or_else(|| "?".to_owned(), excerpt));
    PodIssue {
        pod: format!("{namespace}/{name}"),
        problem,
    }
}
