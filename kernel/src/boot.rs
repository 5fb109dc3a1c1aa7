//! Which boot of the machine this is: what was noted in another one says nothing of this.

use std::{fs, io, path::Path};

/// Where the kernel has hyphens in it, a UUID.
const HYPHENS: [usize; 4] = [8, 12, 16, 20];

/// Hexadecimal digits of it.
const DIGITS: usize = 32;

/// What the kernel calls this boot, the same for as long as it runs and in no other one, from the procfs at
/// `proc`, which is `/proc` on a node.
///
/// # Errors
///
/// When the file cannot be read, or holds something else.
pub fn id(proc: &Path) -> io::Result<String> {
    let text = fs::read_to_string(proc.join("sys/kernel/random/boot_id"))?;
    told(text.trim_end()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The same as somebody says it who sees that file where we may not: systemd (`%b`) leaves the hyphens out.
/// `None` if this is no such name.
pub fn told(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|it| *it != '-').collect();
    if digits.len() != DIGITS || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    let mut id = digits;
    for (count, at) in HYPHENS.into_iter().enumerate() {
        id.insert(at + count, '-');
    }
    Some(id)
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
    fn hyphens_make_no_other_boot_of_it() {
        let (id, bare) = (
            "01234567-89ab-cdef-0123-456789abcdef",
            "0123456789abcdef0123456789abcdef",
        );
        for text in [id, bare] {
            assert_eq!(told(text).as_deref(), Some(id));
        }
        for text in ["", "%b", &bare[1..], "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(told(text), None, "{text:?}");
        }
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
