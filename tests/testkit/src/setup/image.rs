//! The images that test pods run: one static busybox under two names.

use std::path::PathBuf;

use super::{Cache, Debian, Selection, SetupError, shell};
use crate::command::run;

/// The sandbox image that [`Runtime`](crate::Runtime)s are configured with.
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.9";

/// The image of test containers: every busybox applet in `/bin`; sleeps until SIGTERM by default.
pub const BUSYBOX_IMAGE: &str = "koord.test/busybox:1";

const BUSYBOX_IMAGE_SCRIPT: &str = include_str!("../../../setup/busybox-image.sh");

/// The static busybox binary.
///
/// # Errors
///
/// When the package cannot be fetched or unpacked.
pub fn ensure_busybox(cache: &Cache) -> Result<PathBuf, SetupError> {
    let package = Debian {
        suite: "bookworm",
        packages: &["busybox-static"],
        selection: Selection::Exactly,
    };
    Ok(package.ensure(cache)?.join("bin/busybox"))
}

/// A docker-archive with [`PAUSE_IMAGE`] and [`BUSYBOX_IMAGE`], for `ctr images import`.
///
/// # Errors
///
/// When busybox cannot be fetched or the archive cannot be packed.
pub fn ensure_image_archive(cache: &Cache) -> Result<PathBuf, SetupError> {
    let busybox = ensure_busybox(cache)?;
    // The path of the binary names its own inputs.
    let inputs = [BUSYBOX_IMAGE_SCRIPT, &busybox.to_string_lossy()];
    let entry = cache.entry("image", &inputs, |out| {
        run(shell(BUSYBOX_IMAGE_SCRIPT)
            .arg(&busybox)
            .arg(out.join("image.tar")))
        .map(drop)
        .map_err(SetupError::recipe("the busybox image"))
    })?;
    Ok(entry.join("image.tar"))
}
