//! Which boot of the machine this is: what was noted in another one says nothing of this.

use std::{fs, io, path::Path};

/// Bytes of it, a UUID's.
const LENGTH: usize = 36;

/// What the kernel calls this boot, the same for as long as it runs and in no other one, from the procfs at
/// `proc`, which is `/proc` on a node.
///
/// # Errors
///
/// When the file cannot be read, or holds something else.
pub fn id(proc: &Path) -> io::Result<String> {
    let text = fs::read_to_string(proc.join("sys/kernel/random/boot_id"))?;
    let id = text.trim_end();
    match id.len() {
        LENGTH => Ok(id.to_owned()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_has_one_name() {
        let asked = || id(Path::new("/proc")).unwrap();
        assert_eq!(asked(), asked());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file of the test's own")]
    fn what_is_no_name_of_a_boot_is_an_error() {
        let proc = tempfile::tempdir().unwrap();
        let of = || id(proc.path()).map_err(|error| error.kind());
        assert_eq!(of(), Err(io::ErrorKind::NotFound));
        let random = proc.path().join("sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        for text in ["", "\n", "1\n"] {
            fs::write(random.join("boot_id"), text).unwrap();
            assert_eq!(of(), Err(io::ErrorKind::InvalidData), "{text:?}");
        }
    }
}
