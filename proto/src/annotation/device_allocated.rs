//! The devices that the scheduler has given a pod.

use super::{
    error::{AnnotationError, Misfit},
    json::{self, Decode},
    quantity::Quantity,
};
use crate::keys::{annotation::DEVICE_ALLOCATED, resource};
use koord_model::RangeError;

/// The annotation [`DEVICE_ALLOCATED`], as far as it is about GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAllocated {
    pub gpu: Vec<Gpu>,
}

/// A GPU, or a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    pub minor: Minor,
    pub resources: GpuResources,
}

/// The number of a device on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minor(pub i32);

/// How much of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuResources {
    /// Percent of its time.
    pub core: Option<u64>,
    /// Bytes.
    pub memory: Option<u64>,
    /// Percent of its memory.
    pub memory_ratio: Option<u64>,
}

json::object!(DeviceAllocated { "gpu" => gpu });
json::object!(Gpu { "minor" => minor, "resources" => resources });

// === impl DeviceAllocated ===

impl DeviceAllocated {
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(DEVICE_ALLOCATED, text)
    }
}

impl Decode for Minor {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.0.decode(json)?;
        if self.0 < 0 {
            return Err(Misfit::from(Box::new(RangeError {
                what: "minor",
                value: self.0.into(),
                min: 0,
                max: i32::MAX.into(),
            })));
        }
        Ok(())
    }
}

impl Decode for GpuResources {
    /// Every amount is checked, also of resources that nobody here asks for: one that is no
    /// quantity spoils the annotation upstream.
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if json::is_null(json) {
            *self = Self::default();
            return Ok(());
        }
        json::for_each_member(json, |name, value| {
            let mut amount = Quantity::default();
            amount.decode(value)?;
            let place = match name {
                resource::GPU_CORE => &mut self.core,
                resource::GPU_MEMORY => &mut self.memory,
                resource::GPU_MEMORY_RATIO => &mut self.memory_ratio,
                _ => return Ok(()),
            };
            *place = Some(amount.unsigned_value()?);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_scheduler_writes_is_read() {
        let text = r#"{"gpu":[
            {"minor":1,"id":"GPU-1","resources":{"koordinator.sh/gpu-core":"50",
             "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"},
             "extension":{"vfs":[{"minor":0,"busID":"0000:00:01.1"}]}},
            {"minor":0}],"rdma":[{"minor":0,"id":"0000:00:02.0"}]}"#;
        let devices = DeviceAllocated::parse(text).unwrap().gpu;
        let part = GpuResources {
            core: Some(50),
            memory: Some(8_589_934_592),
            memory_ratio: Some(50),
        };
        let expected = [(1, part), (0, GpuResources::default())];
        let found = devices.iter().map(|it| (it.minor.0, it.resources));
        assert!(found.eq(expected), "{devices:?}");
        assert_eq!(DeviceAllocated::parse(r#"{"fpga":[]}"#).unwrap().gpu, []);
    }

    #[test]
    fn what_is_no_device_is_told_with_its_place() {
        for (text, path) in [
            (r#"{"gpu":[{"minor":0},{"minor":-1}]}"#, "$.gpu[1].minor"),
            (r#"{"gpu":{"minor":0}}"#, "$.gpu"),
            (
                r#"{"gpu":[{"resources":{"koordinator.sh/gpu-core":"half"}}]}"#,
                r#"$.gpu[0].resources["koordinator.sh/gpu-core"]"#,
            ),
            (
                r#"{"gpu":[{"resources":{"example.com/other":"?"}}]}"#,
                r#"$.gpu[0].resources["example.com/other"]"#,
            ),
        ] {
            assert_eq!(DeviceAllocated::parse(text).unwrap_err().path, path);
        }
    }
}
