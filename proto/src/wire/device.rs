//! Which devices a container is to have, in a request that is not decoded.

use super::field::delimited;

/// Whether a CreateContainerRequest names a device for this path in the container.
pub fn has_device(request: &[u8], path: &str) -> bool {
    let configs = delimited(request, 2);
    let mut devices = configs.flat_map(|config| delimited(config, 8));
    devices.any(|device| delimited(device, 1).last() == Some(path.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::CreateContainerPatch;

    #[test]
    fn a_device_is_known_by_its_place_in_the_container() {
        let patch = CreateContainerPatch {
            envs: vec![("/dev/c".to_owned(), "/dev/c".to_owned())],
            devices: ["/dev/a", "/dev/b"].map(Box::from).into(),
            ..CreateContainerPatch::default()
        };
        let mut request = patch.encode();
        assert!(has_device(&request, "/dev/a") && has_device(&request, "/dev/b"));
        assert!(!has_device(&request, "/dev/c") && !has_device(&request, "/dev"));
        // config { devices { container_path: "/x" host_path: "/dev/c" } }
        request.extend(b"\x12\x0e\x42\x0c\x0a\x02/x\x12\x06/dev/c");
        assert!(has_device(&request, "/x") && !has_device(&request, "/dev/c"));
        assert!(!has_device(b"\x12\xff", "/x"));
    }
}
