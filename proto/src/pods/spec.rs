//! What a pod's containers ask for, and which volumes it has. Requests of pods that are not
//! guaranteed, resources that Kubernetes does not know, and names of volumes reach no runtime.

use super::Problem;
use crate::{
    annotation::{
        ExtendedContainer, ExtendedResourceSpec, ExtendedResources, Quantity, QuantityError,
    },
    keys::resource,
};
use koord_model::{BlockName, MilliCpu, excerpt};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// The parts of a pod's `spec` that the node's hooks need, and of its `status` one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSpec {
    /// Those that start before the others too.
    pub containers: Vec<ContainerSpec>,
    /// Batch resources of containers that have some, those that start before the others not among
    /// them: what Koordinator's webhook writes into the annotation of that name. `None` if none has.
    pub batch: Option<Arc<ExtendedResourceSpec>>,
    /// Mid resources in the same way, which no annotation says.
    pub mid: Option<ExtendedResourceSpec>,
    /// Its volumes, if there is a claim among them; else none is kept.
    pub volumes: Vec<VolumeSpec>,
    /// The kubelet has begun to resize it in place, and something refused to: it tries again and again.
    pub is_stuck_in_resize: bool,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpec {
    pub name: String,
    /// It is what a claim is bound to. On the node that has a name of its own, any other volume this.
    pub is_claim: bool,
    /// What the claim is called. `None` for one that is made with the pod: pod and volume say it.
    pub claim: Option<String>,
    /// The PersistentVolume that the claim is bound to, where the source says claims too.
    pub bound: Option<BlockName>,
    /// Containers have it as a device, without a file system, as they can have claims alone.
    pub is_device: bool,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSpec {
    pub name: String,
    /// Where nothing is requested, what it is limited to, as Kubernetes has it.
    pub requests: Resources,
    pub limits: Resources,
}

/// Amounts of what Kubernetes knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu: Option<MilliCpu>,
    /// Bytes.
    pub memory: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SpecText {
    containers: Option<Vec<ContainerText>>,
    init_containers: Option<Vec<ContainerText>>,
    volumes: Option<Vec<VolumeText>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerText {
    name: String,
    resources: Option<ResourcesText>,
    volume_devices: Option<Vec<DeviceText>>,
}

#[derive(Deserialize)]
struct DeviceText {
    /// Of the volume.
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeText {
    name: String,
    persistent_volume_claim: Option<ClaimSourceText>,
    /// A claim that is made with the pod.
    ephemeral: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSourceText {
    claim_name: Option<String>,
}

/// A container, what it has of each kind of resources that Kubernetes does not know, and the volumes
/// that it has as devices.
struct Read {
    own: ContainerSpec,
    batch: ExtendedContainer,
    mid: ExtendedContainer,
    devices: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourcesText {
    requests: Option<Amounts>,
    limits: Option<Amounts>,
}

/// As they are written, by the name of the resource.
#[derive(Default, Deserialize)]
struct Amounts(BTreeMap<String, Value>);

// === impl PodSpec ===

impl PodSpec {
    pub fn container(&self, name: &str) -> Option<&ContainerSpec> {
        self.containers.iter().find(|it| it.name == name)
    }
}

// === impl SpecText ===

impl SpecText {
    pub(super) fn read(self) -> Result<PodSpec, Problem> {
        let mut spec = PodSpec::default();
        let mut batch = None;
        let mut as_devices = HashSet::new();
        for container in self.containers.into_iter().flatten() {
            let container = container.read()?;
            add(&mut batch, &container.own.name, container.batch);
            add(&mut spec.mid, &container.own.name, container.mid);
            as_devices.extend(container.devices);
            spec.containers.push(container.own);
        }
        spec.batch = batch.map(Arc::new);
        for container in self.init_containers.into_iter().flatten() {
            let container = container.read()?;
            as_devices.extend(container.devices);
            spec.containers.push(container.own);
        }
        let volumes = self.volumes.into_iter().flatten();
        let volumes: Vec<_> = volumes.map(|it| it.read(&as_devices)).collect();
        if volumes.iter().any(|it| it.is_claim) {
            spec.volumes = volumes;
        }
        Ok(spec)
    }
}

/// Notes what a container has of one kind, if it has any.
fn add(spec: &mut Option<ExtendedResourceSpec>, name: &str, container: ExtendedContainer) {
    if container != ExtendedContainer::default() {
        let spec = spec.get_or_insert_default();
        let containers = spec.containers.get_or_insert_default();
        containers.insert(name.to_owned(), container);
    }
}

// === impl VolumeText ===

impl VolumeText {
    fn read(self, as_devices: &HashSet<String>) -> VolumeSpec {
        VolumeSpec {
            is_claim: self.persistent_volume_claim.is_some() || self.ephemeral.is_some(),
            claim: self.persistent_volume_claim.and_then(|it| it.claim_name),
            bound: None,
            is_device: as_devices.contains(&self.name),
            name: self.name,
        }
    }
}

// === impl ContainerText ===

impl ContainerText {
    fn read(self) -> Result<Read, Problem> {
        let Self {
            name,
            resources,
            volume_devices,
        } = self;
        let ResourcesText { requests, limits } = resources.unwrap_or_default();
        let (requested, limited) = (requests.unwrap_or_default(), limits.unwrap_or_default());
        let amount = |amounts: &Amounts, resource: &'static str, value: fn(Quantity) -> Amount| {
            let amount = amounts.of(resource, value);
            amount.map_err(|source| Problem::Amount {
                container: excerpt(&name),
                resource,
                source,
            })
        };
        let known = |amounts: &Amounts| {
            Ok::<_, Problem>(Resources {
                cpu: amount(amounts, resource::CPU, Quantity::unsigned_milli_value)?.map(MilliCpu),
                memory: amount(amounts, resource::MEMORY, Quantity::unsigned_value)?,
            })
        };
        let extended = |cpu: &'static str, memory: &'static str| {
            let of = |amounts: &Amounts| {
                Ok::<_, Problem>(ExtendedResources {
                    cpu: amount(amounts, cpu, Quantity::unsigned_value)?.map(MilliCpu),
                    memory: amount(amounts, memory, Quantity::unsigned_value)?,
                })
            };
            let (mut requests, limits) = (of(&requested)?, of(&limited)?);
            requests.cpu = requests.cpu.or(limits.cpu);
            requests.memory = requests.memory.or(limits.memory);
            Ok::<_, Problem>(ExtendedContainer { requests, limits })
        };
        let (mut requests, limits) = (known(&requested)?, known(&limited)?);
        requests.cpu = requests.cpu.or(limits.cpu);
        requests.memory = requests.memory.or(limits.memory);
        let batch = extended(resource::BATCH_CPU, resource::BATCH_MEMORY)?;
        let mid = extended(resource::MID_CPU, resource::MID_MEMORY)?;
        let own = ContainerSpec {
            name,
            requests,
            limits,
        };
        let devices = volume_devices.into_iter().flatten();
        Ok(Read {
            own,
            batch,
            mid,
            devices: devices.map(|it| it.name).collect(),
        })
    }
}

type Amount = Result<u64, QuantityError>;

// === impl Amounts ===

impl Amounts {
    fn of(
        &self,
        resource: &str,
        value: fn(Quantity) -> Amount,
    ) -> Result<Option<u64>, QuantityError> {
        let text = match self.0.get(resource) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(other) => other.to_string(),
        };
        value(text.parse()?).map(Some)
    }
}
