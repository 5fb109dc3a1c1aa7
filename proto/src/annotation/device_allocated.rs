//! The devices that the scheduler has given a pod.

use super::{
    error::{AnnotationError, Misfit, Reason},
    json::{self, Decode},
    quantity::{Quantity, take_amounts},
};
use crate::keys::{annotation::DEVICE_ALLOCATED, resource};
use koord_model::{PciAddress, PciAddressError, RangeError};

/// The annotation [`DEVICE_ALLOCATED`], as far as it is about GPUs and RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAllocated {
    pub gpu: Vec<Gpu>,
    pub rdma: Vec<Rdma>,
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

/// An RDMA device, or virtual functions of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rdma {
    /// Where it is. What else it may be called nobody has to know who asks for none.
    id: String,
    extension: Option<Extension>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extension {
    vfs: Vec<VirtualFunction>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VirtualFunction {
    bus_id: String,
}

json::object!(DeviceAllocated { "gpu" => gpu, "rdma" => rdma });
json::object!(Rdma { "id" => id, "extension" => extension });
json::object!(Extension { "vfs" => vfs });
json::object!(VirtualFunction { "busID" => bus_id });
json::object!(Gpu { "minor" => minor, "resources" => resources });

// === impl DeviceAllocated ===

impl DeviceAllocated {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), the minor of a GPU
    /// is outside 0 to 2,147,483,647, or one of its amounts, of whatever resource, is no [`Quantity`]. Or
    /// when a part of its time or its memory is outside 0 to 100 percent, or its bytes are below zero.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(DEVICE_ALLOCATED, text)
    }

    /// The functions of PCI devices that RDMA goes by: those that are virtual where a device names
    /// such, else the device itself.
    ///
    /// # Errors
    ///
    /// When one of them is not written as a PCI address: 4 to 8 hexadecimal digits of domain, 2 of bus, 2 up
    /// to `1f` of device and 1 up to `7` of function, as `0000:65:00.1`.
    pub fn rdma_functions(&self) -> Result<Vec<PciAddress>, AnnotationError> {
        let mut functions = Vec::new();
        for (index, device) in self.rdma.iter().enumerate() {
            let at = format!("$.rdma[{index}]");
            let virtuals = device.extension.as_ref().map_or(&[][..], |it| &it.vfs);
            if virtuals.is_empty() {
                functions.push(address(&device.id, || format!("{at}.id"))?);
            }
            for (index, function) in virtuals.iter().enumerate() {
                let at = || format!("{at}.extension.vfs[{index}].busID");
                functions.push(address(&function.bus_id, at)?);
            }
        }
        Ok(functions)
    }
}

fn address(text: &str, path: impl Fn() -> String) -> Result<PciAddress, AnnotationError> {
    text.parse().map_err(|PciAddressError| AnnotationError {
        key: DEVICE_ALLOCATED,
        path: path(),
        reason: Reason::WrongType {
            expected: "a PCI address".into(),
            found: json::shown(text),
        },
    })
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
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        take_amounts(self, json, |amounts, name, amount| {
            match name {
                resource::GPU_CORE => amounts.core = Some(percent(amount)?),
                resource::GPU_MEMORY => amounts.memory = Some(amount.unsigned_value()?),
                resource::GPU_MEMORY_RATIO => amounts.memory_ratio = Some(percent(amount)?),
                _ => {}
            }
            Ok(())
        })
    }
}

/// Of one device, as koordlet counts them: a pod that has more than one has each for itself.
fn percent(amount: Quantity) -> Result<u64, Misfit> {
    let percent = amount.unsigned_value()?;
    if percent > 100 {
        return Err(Misfit::from(Box::new(RangeError {
            what: "percentage",
            value: percent.into(),
            min: 0,
            max: 100,
        })));
    }
    Ok(percent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

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
    fn keys_have_any_case() {
        let text = r#"{"GPU":[{"Minor":3,"RESOURCES":{"koordinator.sh/gpu-core":"50"}}],
            "Rdma":[{"ID":"0000:65:00.0"}]}"#;
        let devices = DeviceAllocated::parse(text).unwrap();
        let [Gpu { minor, resources }] = &*devices.gpu else {
            panic!("{devices:?}");
        };
        assert_eq!((minor.0, resources.core), (3, Some(50)));
        let functions = devices.rdma_functions().unwrap();
        let functions: Vec<_> = functions.iter().map(ToString::to_string).collect();
        assert_eq!(functions, ["0000:65:00.0"]);
    }

    #[test]
    fn rdma_goes_by_virtual_functions_where_there_are_any() {
        let text = r#"{"rdma":[
            {"minor":0,"id":"0000:65:00.0","extension":{"VFs":[{"minor":-1,"busID":"0000:65:00.2"},
             {"minor":3,"busid":"0000:65:00.3"}]},"resources":{"koordinator.sh/rdma":"1"}},
            {"minor":1,"id":"0000:AF:00.1","extension":{"vfs":null}},
            {"minor":2,"id":"0000:d8:00.0","extension":null}]}"#;
        let functions = DeviceAllocated::parse(text).unwrap().rdma_functions();
        let functions: Vec<_> = functions.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            functions,
            [
                "0000:65:00.2",
                "0000:65:00.3",
                "0000:af:00.1",
                "0000:d8:00.0"
            ]
        );
        let none = DeviceAllocated::parse(r#"{"gpu":[{"minor":0}],"rdma":[]}"#).unwrap();
        assert_eq!(none.rdma_functions().unwrap(), []);
    }

    #[test]
    fn what_is_no_pci_address_is_told_with_its_place_to_who_asks_for_rdma() {
        for (text, path, found) in [
            (
                r#"{"rdma":[{"id":"0000:65:00.0"},{"id":"mlx5_0"}]}"#,
                "$.rdma[1].id",
                r#""mlx5_0""#,
            ),
            (r#"{"rdma":[{"minor":0}]}"#, "$.rdma[0].id", r#""""#),
            (
                r#"{"rdma":[{"extension":{"vfs":[{"busID":"../../../../etc"}]}}]}"#,
                "$.rdma[0].extension.vfs[0].busID",
                r#""../../../../etc""#,
            ),
        ] {
            let devices = DeviceAllocated::parse(text).unwrap();
            let error = devices.rdma_functions().unwrap_err();
            assert_eq!((error.key, &*error.path), (DEVICE_ALLOCATED, path));
            let reason = format!("value is {found}, not a PCI address");
            assert_eq!(error.reason.to_string(), reason);
        }
    }

    #[test]
    fn no_device_has_more_than_the_whole_of_it() {
        for key in ["gpu-core", "gpu-memory-ratio"] {
            let parse = |percent: &str| {
                DeviceAllocated::parse(&format!(
                    r#"{{"gpu":[{{"resources":{{"koordinator.sh/{key}":{percent}}}}}]}}"#
                ))
            };
            assert!(parse("100").is_ok(), "{key}");
            let error = parse("101").unwrap_err();
            let path = format!("$.gpu[0].resources[\"koordinator.sh/{key}\"]");
            assert_eq!((error.key, &error.path), (DEVICE_ALLOCATED, &path));
            assert_eq!(
                error.reason.source().unwrap().to_string(),
                "percentage 101 is outside 0 to 100"
            );
        }
    }

    #[test]
    fn what_is_no_device_is_told_with_its_place() {
        for (text, path) in [
            (r#"{"gpu":[{"minor":0},{"minor":-1}]}"#, "$.gpu[1].minor"),
            (r#"{"gpu":{"minor":0}}"#, "$.gpu"),
            (r#"{"rdma":[{"id":7}]}"#, "$.rdma[0].id"),
            (
                r#"{"rdma":[{"extension":{"vfs":{}}}]}"#,
                "$.rdma[0].extension.vfs",
            ),
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
