//! What gives pods a network of their own.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::runtime::link;
use super::{Cache, Debian, Selection, SetupError};

/// The CNI plugins, and beside them `iptables`, by which `portmap` does its work and which it looks
/// for in `PATH`.
///
/// # Errors
///
/// When a package cannot be fetched.
pub fn ensure_pod_network(cache: &Cache) -> Result<PathBuf, SetupError> {
    let plugins = Debian {
        suite: "bookworm",
        packages: &["containernetworking-plugins"],
        selection: Selection::Exactly,
    };
    let iptables = Debian {
        suite: "bookworm",
        packages: &["iptables", "libmnl0", "libnftnl11", "libxtables12"],
        selection: Selection::Exactly,
    };
    let plugins = plugins.ensure(cache)?.join("usr/lib/cni");
    let iptables = iptables.ensure(cache)?.join("usr");
    let inputs = [
        &*plugins.to_string_lossy(),
        &*xtables(&iptables, "iptables"),
    ];
    cache.entry("network", &inputs, |out| {
        for plugin in ["host-local", "loopback", "portmap", "ptp"] {
            link(&plugins, plugin, out)?;
        }
        for program in ["iptables", "ip6tables"] {
            let path = out.join(program);
            write_program(&path, &xtables(&iptables, program))
                .map_err(SetupError::file("write", &path))?;
        }
        Ok(())
    })
}

/// A script that runs an unpacked program of iptables with the extensions unpacked beside it.
fn xtables(usr: &Path, program: &str) -> String {
    let usr = usr.display();
    format!(
        "#!/bin/sh\n\
         libraries=$(echo '{usr}'/lib/*-linux-gnu)\n\
         export LD_LIBRARY_PATH=\"$libraries\" XTABLES_LIBDIR=\"$libraries/xtables\"\n\
         exec '{usr}/sbin/xtables-nft-multi' {program} \"$@\"\n"
    )
}

/// A script that runs an unpacked program with the libraries unpacked beside it.
pub(super) fn with_libraries(usr: &Path, program: &str) -> String {
    let usr = usr.display();
    format!(
        "#!/bin/sh\n\
         export LD_LIBRARY_PATH=\"$(echo '{usr}'/lib/*-linux-gnu)\"\n\
         exec '{usr}/{program}' \"$@\"\n"
    )
}

pub(super) fn write_program(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}
