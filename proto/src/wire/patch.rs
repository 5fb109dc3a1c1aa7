//! What can be changed in a request, as bytes to append to it.

use super::writer::Writer;
use koord_model::Bind;

/// A key and its value.
pub type Entry = (String, String);

/// New values for a `LinuxContainerResources`. `None` leaves what was asked for; zero and the
/// empty string are sent as such, which clears a value at creation and is "unchanged" in an
/// update.
///
/// If the request has no such message, appending creates it, and containerd then sets an
/// `oom_score_adj` of 0: look for it in the decoded copy first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcesPatch {
    /// Microseconds.
    pub cpu_period: Option<i64>,
    /// Microseconds in each period; −1 is unlimited.
    pub cpu_quota: Option<i64>,
    pub cpu_shares: Option<i64>,
    pub memory_limit_in_bytes: Option<i64>,
    /// Memory and swap together.
    pub memory_swap_limit_in_bytes: Option<i64>,
    pub oom_score_adj: Option<i64>,
    pub cpuset_cpus: Option<String>,
}

/// A change of a CreateContainerRequest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateContainerPatch {
    pub resources: ResourcesPatch,
    /// Added, or put in place of those with the same key.
    pub annotations: Vec<Entry>,
    /// Added behind those that are there. Runtimes let the last of two equal names win.
    pub envs: Vec<Entry>,
    pub binds: Vec<Bind>,
    /// Paths of devices, on the node and in the container. Processes may read and write them.
    pub devices: Vec<Box<str>>,
}

/// A change of an UpdateContainerResourcesRequest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateContainerResourcesPatch {
    pub resources: ResourcesPatch,
}

// === impl ResourcesPatch ===

impl ResourcesPatch {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn write(&self) -> Writer {
        let mut message = Writer::default();
        message.int64(1, self.cpu_period);
        message.int64(2, self.cpu_quota);
        message.int64(3, self.cpu_shares);
        message.int64(4, self.memory_limit_in_bytes);
        message.int64(5, self.oom_score_adj);
        message.string(6, self.cpuset_cpus.as_deref());
        message.int64(10, self.memory_swap_limit_in_bytes);
        message
    }
}

// === impl CreateContainerPatch ===

impl CreateContainerPatch {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The bytes to append; none if nothing changes.
    pub fn encode(&self) -> Vec<u8> {
        let mut linux = Writer::default();
        linux.message(1, &self.resources.write());
        let mut config = Writer::default();
        for (name, value) in &self.envs {
            config.pair(6, name, value);
        }
        for bind in &self.binds {
            let mut mount = Writer::default();
            // Where in the container, and of what on the node.
            mount.string(1, Some(&bind.path));
            mount.string(2, Some(bind.source()));
            mount.int64(3, bind.read_only.then_some(1));
            config.message(7, &mount);
        }
        for path in &self.devices {
            let mut device = Writer::default();
            device.string(1, Some(path));
            device.string(2, Some(path));
            // Not to make others like it.
            device.string(3, Some("rw"));
            config.message(8, &device);
        }
        for (key, value) in &self.annotations {
            config.pair(10, key, value);
        }
        config.message(15, &linux);
        let mut request = Writer::default();
        request.message(2, &config);
        request.into_bytes()
    }
}

// === impl UpdateContainerResourcesPatch ===

impl UpdateContainerResourcesPatch {
    /// The bytes to append; none if nothing changes.
    pub fn encode(&self) -> Vec<u8> {
        let mut request = Writer::default();
        request.message(2, &self.resources.write());
        request.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_is_no_byte() {
        assert_eq!(CreateContainerPatch::default().encode(), b"");
        assert_eq!(UpdateContainerResourcesPatch::default().encode(), b"");
        assert!(ResourcesPatch::default().is_empty());
    }

    /// The bytes are worked out by hand from the encoding rules of protobuf.
    #[test]
    fn zero_and_the_empty_string_are_sent() {
        let patch = UpdateContainerResourcesPatch {
            resources: ResourcesPatch {
                cpu_period: Some(0),
                cpuset_cpus: Some(String::new()),
                ..ResourcesPatch::default()
            },
        };
        assert_eq!(patch.encode(), b"\x12\x04\x08\0\x32\0");
    }

    #[test]
    fn unlimited_is_ten_bytes_of_a_varint() {
        let patch = CreateContainerPatch {
            resources: ResourcesPatch {
                cpu_quota: Some(-1),
                ..ResourcesPatch::default()
            },
            ..CreateContainerPatch::default()
        };
        let mut expected = b"\x12\x0f\x7a\x0d\x0a\x0b\x10".to_vec();
        expected.extend([0xff; 9]);
        expected.push(1);
        assert_eq!(patch.encode(), expected);
    }

    #[test]
    fn a_pair_without_a_value_keeps_its_field() {
        let patch = CreateContainerPatch {
            envs: vec![("A".to_owned(), String::new())],
            annotations: vec![("k".to_owned(), "v".to_owned())],
            ..CreateContainerPatch::default()
        };
        assert_eq!(
            patch.encode(),
            b"\x12\x0f\x32\x05\x0a\x01A\x12\0\x52\x06\x0a\x01k\x12\x01v"
        );
    }

    #[test]
    fn a_mount_that_is_not_to_be_written_to_says_so() {
        let bind = |path: &str, read_only| Bind {
            path: path.into(),
            source: None,
            read_only,
        };
        let patch = CreateContainerPatch {
            binds: vec![bind("/b", true), bind("/c", false)],
            ..CreateContainerPatch::default()
        };
        assert_eq!(
            patch.encode(),
            b"\x12\x16\x3a\x0a\x0a\x02/b\x12\x02/b\x18\x01\x3a\x08\x0a\x02/c\x12\x02/c"
        );
    }

    #[test]
    fn a_mount_may_be_elsewhere_on_the_node() {
        let bind = Bind {
            path: "/d".into(),
            source: Some("/e".into()),
            read_only: false,
        };
        let patch = CreateContainerPatch {
            binds: vec![bind],
            ..CreateContainerPatch::default()
        };
        assert_eq!(patch.encode(), b"\x12\x0a\x3a\x08\x0a\x02/d\x12\x02/e");
    }

    #[test]
    fn a_device_is_where_it_is_on_the_node_to_be_read_and_written() {
        let patch = CreateContainerPatch {
            devices: vec!["/b".into()],
            ..CreateContainerPatch::default()
        };
        assert_eq!(
            patch.encode(),
            b"\x12\x0e\x42\x0c\x0a\x02/b\x12\x02/b\x1a\x02rw"
        );
    }
}
