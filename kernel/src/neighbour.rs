//! Other processes of this machine, as far as they have to be known.

use std::{fs, io, path::Path};

/// The command lines of all processes whose name is `name` (at most 15 bytes, as the kernel keeps
/// it), in no order; of one that may not be looked at, an empty one.
///
/// # Errors
///
/// When the processes cannot be listed. One that ends meanwhile is not there.
pub fn command_lines(proc_root: &Path, name: &str) -> io::Result<Vec<Vec<String>>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc_root)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str());
        if !number.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        let is_it =
            fs::read(path.join("comm")).is_ok_and(|comm| comm.trim_ascii() == name.as_bytes());
        if is_it {
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            let words = line
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty());
            found.push(
                words
                    .map(|it| String::from_utf8_lossy(it).into_owned())
                    .collect(),
            );
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test's own files")]

    use super::*;

    #[test]
    fn a_process_is_found_by_its_name_and_what_is_none_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        for (number, comm, line) in [
            ("1", "systemd\n", &b"/sbin/init\0"[..]),
            (
                "20",
                "koordlet\n",
                b"/koordlet\0--feature-gates=AllAlpha=true\0-v=4\0",
            ),
            ("21", "koordlet-x\n", b"/other\0"),
            ("self", "koordlet\n", b"/not-a-number\0"),
        ] {
            let process = dir.path().join(number);
            fs::create_dir(&process).unwrap();
            fs::write(process.join("comm"), comm).unwrap();
            fs::write(process.join("cmdline"), line).unwrap();
        }
        // One that ended between two looks has no file any more.
        fs::create_dir(dir.path().join("22")).unwrap();
        let found = command_lines(dir.path(), "koordlet").unwrap();
        assert_eq!(
            found,
            [["/koordlet", "--feature-gates=AllAlpha=true", "-v=4"]]
        );
        assert!(command_lines(&dir.path().join("none"), "koordlet").is_err());
    }

    #[test]
    fn our_own_process_is_found_here() {
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        let own: Vec<String> = std::env::args().collect();
        let found = command_lines(Path::new("/proc"), name.trim()).unwrap();
        assert!(found.contains(&own), "{found:?}");
    }
}
