//! Pods as the cluster wants them now, of whoever knows: what `kubectl get pods -o json` or
//! `-o yaml` prints, or the kubelet's `/pods`. Among them may be claims (`kubectl get pvc`), which say
//! what volumes of the pods are bound to.
//!
//! Of a pod only what is looked at is read. A pod that cannot be read costs itself and is named; a
//! text of which nothing can be read is an error.

mod document;
mod room;
mod spec;
#[cfg(test)]
mod tests;
mod text;
mod yaml;

pub use self::{
    room::make_room,
    spec::{ContainerSpec, PodSpec, Resources, VolumeSpec},
};

use crate::{Issues, ParserError, annotation::QuantityError};
use koord_model::{BlockName, PodUid};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::Arc,
};
use thiserror::Error;

/// The longest text that is read, in bytes.
pub const MAX_LENGTH: usize = 64 * 1024 * 1024;

/// Pods and claims of a text. Of those that kubectl prints, fewer fit into its length.
const MAX_OBJECTS: usize = 100_000;

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// By which the runtime knows it.
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Of a pod that stays as it is the same, which costs nothing to keep.
    pub spec: Arc<PodSpec>,
}

/// Who a pod is. A UID alone does not say it, because whoever makes a mirror pod writes there what it
/// likes; a second pod of a name nobody can make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodId {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
}

/// What a text gave.
#[derive(Debug, Default)]
pub struct Parsed {
    pub pods: Vec<Arc<Pod>>,
    /// What was left out because it is wrong.
    pub issues: Issues<PodIssue>,
}

/// Something that was left out.
#[derive(Debug, Error)]
#[error("{pod} is left out")]
pub struct PodIssue {
    /// Namespace and name, or what is known of them.
    pub pod: String,
    #[source]
    pub problem: Problem,
}

/// Why it was left out.
#[derive(Debug, Error)]
pub enum Problem {
    #[error("kind is {kind:?}, not Pod")]
    OtherKind { kind: String },
    #[error("it is not as a pod is")]
    Form(#[source] ParserError),
    #[error("{resource} of container {container:?} is no amount")]
    Amount {
        container: String,
        resource: &'static str,
        #[source]
        source: QuantityError,
    },
    #[error("it has no UID that a pod can have")]
    Uid,
    #[error("another one before it has the same UID and name")]
    Repeated,
    /// Its length is not told: what is told already is known by its text, and this one's changes at
    /// the will of whoever made it.
    #[error("it is one of the largest, and all together have more than {MAX_LENGTH} bytes")]
    NoRoom,
}

/// Why a text gives no pods at all.
#[derive(Debug, Error)]
pub enum PodsError {
    #[error("text is {length} bytes long, {MAX_LENGTH} are allowed")]
    TooLong { length: usize },
    #[error("text has more than {MAX_OBJECTS} objects")]
    TooMany,
    #[error("text holds no document")]
    Empty,
    #[error(
        "text begins with a brace, and is no JSON as `kubectl get -o json` and the kubelet's /pods print it"
    )]
    Json(#[source] ParserError),
    #[error("text cannot be read as a YAML stream of objects")]
    Yaml(#[source] ParserError),
    #[error("document {document} is no object")]
    Document {
        document: usize,
        #[source]
        source: ParserError,
    },
    #[error("a Status is in it, which an API server answers instead of pods: {message:?}")]
    Status { message: String },
    #[error("document {document} is of kind {kind:?}, and no pod, claim or List of such")]
    Other { document: usize, kind: String },
    #[error("nothing in its lists is a pod or a claim")]
    NoPods(#[source] Box<PodIssue>),
}

/// An object of a text, by its kind.
enum Item {
    Pod(Pod),
    /// By namespace and name, and what it is bound to; `None` if that cannot be known or is nothing.
    Claim(Option<((String, String), BlockName)>),
}

/// What claims are bound to, by namespace and name.
type Claims = HashMap<(String, String), BlockName>;

/// Reads one text after the other, and of each only the pods that were not so in the one before.
#[derive(Debug, Default)]
pub struct Reader {
    hasher: RandomState,
    known: HashMap<u64, Arc<Pod>>,
}

// === impl Pod ===

impl Pod {
    pub fn id(&self) -> PodId {
        PodId {
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// What a volume's claim is bound to. One that is made with the pod is called as pod and volume
    /// (`VolumeClaimName` of Kubernetes).
    fn bound<'a>(&self, volume: &VolumeSpec, claims: &'a Claims) -> Option<&'a BlockName> {
        if !volume.is_claim || claims.is_empty() {
            return None;
        }
        let claim = match &volume.claim {
            Some(claim) => claim.clone(),
            None => format!("{}-{}", self.name, volume.name),
        };
        claims.get(&(self.namespace.clone(), claim))
    }
}

// === impl Reader ===

impl Reader {
    /// Reads lists of pods and claims, and pods and claims one after the other. What begins with a brace is
    /// JSON, anything else YAML. Of labels and annotations those are kept that `keep` wants, which has to
    /// want the same each time.
    ///
    /// # Errors
    ///
    /// When the text is longer than [`MAX_LENGTH`] bytes, has more than 100,000 objects, is no JSON or YAML
    /// of objects, or holds no document. Or when a Status is in it, a document that is neither pod nor claim
    /// nor list, or lists of other things alone: whoever was to write it had no pods for us.
    pub fn read(&mut self, text: &str, keep: impl Fn(&str) -> bool) -> Result<Parsed, PodsError> {
        let length = text.len();
        if length > MAX_LENGTH {
            return Err(PodsError::TooLong { length });
        }
        let json;
        let text = match text.trim_start().starts_with('{') {
            true => text,
            false => {
                json = yaml::to_json(text)?;
                json.as_str()
            }
        };
        let mut known = HashMap::new();
        let mut parsed = Parsed::default();
        let (mut pods, mut claims) = (Vec::new(), Claims::new());
        let mut seen = HashSet::new();
        let mut is_ours = false;
        for item in document::items(text)? {
            let hash = self.hasher.hash_one(item.get());
            let pod = match self.known.get(&hash) {
                Some(pod) => pod.clone(),
                None => match text::read(item.get(), &keep) {
                    Ok(Item::Pod(pod)) => Arc::new(pod),
                    Ok(Item::Claim(claim)) => {
                        is_ours = true;
                        claims.extend(claim);
                        continue;
                    }
                    Err(issue) => {
                        is_ours |= document::is_ours(item.get())?;
                        parsed.issues.push(issue);
                        continue;
                    }
                },
            };
            is_ours = true;
            match seen.insert(pod.id()) {
                true => pods.push((hash, pod)),
                false => parsed
                    .issues
                    .push(text::issue(item.get(), Problem::Repeated)),
            }
        }
        if !is_ours && !parsed.issues.is_empty() {
            let first = parsed.issues.into_first();
            let first = first.expect("the first of some is kept");
            return Err(PodsError::NoPods(Box::new(first)));
        }
        for (hash, mut pod) in pods {
            bind(&mut pod, &claims);
            known.insert(hash, pod.clone());
            parsed.pods.push(pod);
        }
        self.known = known;
        Ok(parsed)
    }
}

/// Notes what the claims of a pod are bound to. A pod of which that is as it was stays the same.
fn bind(pod: &mut Arc<Pod>, claims: &Claims) {
    let volumes = pod.spec.volumes.iter();
    let bound: Vec<_> = volumes.map(|it| pod.bound(it, claims)).collect();
    let before = pod.spec.volumes.iter().map(|it| it.bound.as_ref());
    if before.eq(bound.iter().copied()) {
        return;
    }
    let spec = Arc::make_mut(&mut Arc::make_mut(pod).spec);
    for (volume, bound) in spec.volumes.iter_mut().zip(bound) {
        volume.bound = bound.cloned();
    }
}
