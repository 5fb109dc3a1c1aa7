//! What a pod's annotations mean, each parsed once.
//!
//! Several hooks read the same one, for each container of the pod and with each change of the policy, and
//! to parse it takes as long as all else that they do. What was found is kept beside the text, and goes with
//! it.

use crate::view::PodView;
use koord_model::{Block, CacheShares};
use koord_proto::{
    annotation::{
        AnnotationError, CpuBurst, DeviceAllocated, ExtendedResourceSpec, IoLimits, NetworkLimits,
        OomScoreAdjSpec, PodMemoryQos, ResourceStatus, block_limits, cache_shares,
    },
    keys::annotation::{
        BLKIO_QOS, CPU_BURST, DEVICE_ALLOCATED, EXTENDED_RESOURCE_SPEC, MEMORY_QOS, NETWORK_QOS,
        OOM_SCORE_ADJ_SPEC, RESCTRL, RESOURCE_STATUS,
    },
};
use std::{cell::RefCell, sync::Arc};

/// What annotations of a pod were found to mean.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    extended: Memo<ExtendedResourceSpec>,
    status: Memo<ResourceStatus>,
    burst: Memo<CpuBurst>,
    memory: Memo<PodMemoryQos>,
    devices: Memo<DeviceAllocated>,
    network: Memo<NetworkLimits>,
    scores: Memo<OomScoreAdjSpec>,
    caches: Memo<CacheShares>,
    blocks: Memo<BlockLimits>,
}

/// What a pod may do to block devices.
pub(crate) type BlockLimits = Vec<(Block, IoLimits)>;

/// What the text of an annotation was found to mean, beside it.
#[derive(Debug)]
struct Memo<T>(RefCell<Option<Meaning<T>>>);

/// Of a text.
type Meaning<T> = (Arc<str>, Result<Arc<T>, Arc<AnnotationError>>);

// === impl PodView ===

impl PodView {
    /// What it has of the node's batch resources: by its annotation, which whoever makes requests
    /// without a source of pods goes by too, else by itself.
    ///
    /// # Errors
    ///
    /// When [`ExtendedResourceSpec::parse`] refuses the annotation [`EXTENDED_RESOURCE_SPEC`]; what the pod
    /// says by itself does not take its place then.
    pub fn batch_resources(
        &self,
    ) -> Result<Option<Arc<ExtendedResourceSpec>>, Arc<AnnotationError>> {
        let memo = &self.parsed.extended;
        let said = self.meaning(memo, EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec::parse)?;
        let of_itself = || self.spec.as_ref().and_then(|spec| spec.batch.clone());
        Ok(said.or_else(of_itself))
    }

    /// What the scheduler gave it; `None` without the annotation [`RESOURCE_STATUS`].
    ///
    /// # Errors
    ///
    /// When [`ResourceStatus::parse`] refuses the annotation.
    pub fn resource_status(&self) -> Result<Option<Arc<ResourceStatus>>, Arc<AnnotationError>> {
        self.meaning(&self.parsed.status, RESOURCE_STATUS, ResourceStatus::parse)
    }

    /// How much of its quota it may save up; `None` without the annotation [`CPU_BURST`].
    ///
    /// # Errors
    ///
    /// When [`CpuBurst::parse`] refuses the annotation.
    pub fn cpu_burst(&self) -> Result<Option<Arc<CpuBurst>>, Arc<AnnotationError>> {
        self.meaning(&self.parsed.burst, CPU_BURST, CpuBurst::parse)
    }

    /// How its memory is kept; `None` without the annotation [`MEMORY_QOS`].
    ///
    /// # Errors
    ///
    /// When [`PodMemoryQos::parse`] refuses the annotation.
    pub fn memory_qos(&self) -> Result<Option<Arc<PodMemoryQos>>, Arc<AnnotationError>> {
        self.meaning(&self.parsed.memory, MEMORY_QOS, PodMemoryQos::parse)
    }

    /// The devices that the scheduler gave it; `None` without the annotation [`DEVICE_ALLOCATED`].
    ///
    /// # Errors
    ///
    /// When [`DeviceAllocated::parse`] refuses the annotation.
    pub fn devices(&self) -> Result<Option<Arc<DeviceAllocated>>, Arc<AnnotationError>> {
        let memo = &self.parsed.devices;
        self.meaning(memo, DEVICE_ALLOCATED, DeviceAllocated::parse)
    }

    /// Its part of the network; `None` without the annotation [`NETWORK_QOS`].
    ///
    /// # Errors
    ///
    /// When [`NetworkLimits::parse`] refuses the annotation.
    pub fn network_limits(&self) -> Result<Option<Arc<NetworkLimits>>, Arc<AnnotationError>> {
        self.meaning(&self.parsed.network, NETWORK_QOS, NetworkLimits::parse)
    }

    /// The scores of its containers; `None` without the annotation [`OOM_SCORE_ADJ_SPEC`].
    ///
    /// # Errors
    ///
    /// When [`OomScoreAdjSpec::parse`] refuses the annotation. A score that is out of range is no error yet.
    pub fn oom_scores(&self) -> Result<Option<Arc<OomScoreAdjSpec>>, Arc<AnnotationError>> {
        let memo = &self.parsed.scores;
        self.meaning(memo, OOM_SCORE_ADJ_SPEC, OomScoreAdjSpec::parse)
    }

    /// The part of the caches and of the bandwidth to memory that it asks for; `None` without the annotation
    /// [`RESCTRL`].
    ///
    /// # Errors
    ///
    /// When [`cache_shares`] refuses the annotation.
    pub(crate) fn cache_shares(&self) -> Result<Option<Arc<CacheShares>>, Arc<AnnotationError>> {
        self.meaning(&self.parsed.caches, RESCTRL, cache_shares)
    }

    /// What it may do to block devices; `None` without the annotation [`BLKIO_QOS`].
    ///
    /// # Errors
    ///
    /// When [`block_limits`] refuses the annotation.
    pub(crate) fn block_limits(&self) -> Result<Option<Arc<BlockLimits>>, Arc<AnnotationError>> {
        let parse = |text: &str| block_limits(text, &self.uid);
        self.meaning(&self.parsed.blocks, BLKIO_QOS, parse)
    }

    fn meaning<T>(
        &self,
        memo: &Memo<T>,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, AnnotationError>,
    ) -> Result<Option<Arc<T>>, Arc<AnnotationError>> {
        let text = self.annotations.shared(key);
        text.map(|text| memo.of(text, parse)).transpose()
    }
}

// === impl Memo ===

impl<T> Memo<T> {
    fn of(
        &self,
        text: &Arc<str>,
        parse: impl FnOnce(&str) -> Result<T, AnnotationError>,
    ) -> Result<Arc<T>, Arc<AnnotationError>> {
        if let Some((of, meaning)) = &*self.0.borrow()
            && of == text
        {
            return meaning.clone();
        }
        let meaning = parse(text).map(Arc::new).map_err(Arc::new);
        self.0.replace(Some((text.clone(), meaning.clone())));
        meaning
    }
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T> Clone for Memo<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pod;
    use std::cell::Cell;

    #[test]
    fn an_annotation_is_parsed_once_for_each_text_of_it() {
        let memo = Memo::<usize>::default();
        let parsed = Cell::new(0);
        let parse = |text: &str| {
            parsed.set(parsed.get() + 1);
            Ok(text.len())
        };
        for (text, length, count) in [("1", 1, 1), ("1", 1, 1), ("22", 2, 2), ("1", 1, 3)] {
            assert_eq!(*memo.of(&text.into(), parse).unwrap(), length);
            assert_eq!(parsed.get(), count);
        }
        let copy = memo.clone();
        assert_eq!(*copy.of(&"1".into(), parse).unwrap(), 1);
        assert_eq!(parsed.get(), 3);
    }

    #[test]
    fn what_was_parsed_for_one_container_is_there_for_the_next() {
        let pod = pod("LS", &[(OOM_SCORE_ADJ_SPEC, r#"{"main":1}"#)]);
        let [one, other] = [pod.oom_scores(), pod.oom_scores()].map(|it| it.unwrap().unwrap());
        assert!(Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn what_cannot_be_parsed_is_not_tried_again() {
        let pod = pod("LS", &[(CPU_BURST, "{")]);
        let errors = [pod.cpu_burst().unwrap_err(), pod.cpu_burst().unwrap_err()];
        assert!(Arc::ptr_eq(&errors[0], &errors[1]));
        assert_eq!(errors[0].key, CPU_BURST);
        assert!(pod.resource_status().unwrap().is_none());
    }
}
