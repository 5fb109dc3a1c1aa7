//! What a pod's containers ask for. Requests of pods that are not guaranteed, and resources that
//! Kubernetes does not know, reach no runtime.

use super::{Problem, text::cut};
use crate::{
    annotation::{
        ExtendedContainer, ExtendedResourceSpec, ExtendedResources, Quantity, QuantityError,
    },
    keys::resource,
};
use koord_model::MilliCpu;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The parts of a pod's `spec` that the node's hooks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSpec {
    /// Those that start before the others too.
    pub containers: Vec<ContainerSpec>,
    /// Batch resources of containers that have some, those that start before the others not among
    /// them: what Koordinator's webhook writes into the annotation of that name. `None` if none has.
    pub batch: Option<ExtendedResourceSpec>,
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
}

#[derive(Deserialize)]
struct ContainerText {
    name: String,
    resources: Option<ResourcesText>,
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
        for container in self.containers.into_iter().flatten() {
            let (container, batch) = container.read()?;
            if batch != ExtendedContainer::default() {
                let batches = spec.batch.get_or_insert_default();
                let batches = batches.containers.get_or_insert_default();
                batches.insert(container.name.clone(), batch);
            }
            spec.containers.push(container);
        }
        for container in self.init_containers.into_iter().flatten() {
            spec.containers.push(container.read()?.0);
        }
        Ok(spec)
    }
}

// === impl ContainerText ===

impl ContainerText {
    fn read(self) -> Result<(ContainerSpec, ExtendedContainer), Problem> {
        let Self { name, resources } = self;
        let ResourcesText { requests, limits } = resources.unwrap_or_default();
        let read = |amounts: Option<Amounts>| {
            let amounts = amounts.unwrap_or_default();
            let amount = |resource: &'static str, value: fn(Quantity) -> Amount| {
                let amount = amounts.of(resource, value);
                amount.map_err(|source| Problem::Amount {
                    container: cut(&name),
                    resource,
                    source,
                })
            };
            let resources = Resources {
                cpu: amount(resource::CPU, Quantity::unsigned_milli_value)?.map(MilliCpu),
                memory: amount(resource::MEMORY, Quantity::unsigned_value)?,
            };
            let batch = ExtendedResources {
                batch_cpu: amount(resource::BATCH_CPU, Quantity::unsigned_value)?.map(MilliCpu),
                batch_memory: amount(resource::BATCH_MEMORY, Quantity::unsigned_value)?,
            };
            Ok((resources, batch))
        };
        let (mut requests, mut batch_requests) = read(requests)?;
        let (limits, batch_limits) = read(limits)?;
        requests.cpu = requests.cpu.or(limits.cpu);
        requests.memory = requests.memory.or(limits.memory);
        batch_requests.batch_cpu = batch_requests.batch_cpu.or(batch_limits.batch_cpu);
        batch_requests.batch_memory = batch_requests.batch_memory.or(batch_limits.batch_memory);
        let batch = ExtendedContainer {
            requests: batch_requests,
            limits: batch_limits,
        };
        let container = ContainerSpec {
            name,
            requests,
            limits,
        };
        Ok((container, batch))
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
