//! A plugin that its runtime has started: the connection is there before anything else is.
//!
//! A runtime starts what is in its plugin folder with three variables and a connected descriptor,
//! and nothing else: the configuration comes with its first question. So that question is waited for
//! before there is anything to configure, and answered by the session that goes on from here.

use super::{
    identity::{Identity, IdentityError},
    session::{SessionError, registration},
};
use crate::config::Launch;
use koord_kernel::process::{InheritError, inherited_stream};
use koord_nri::{Event, Limits, Peer, Request, Role};
use koord_proto::nri::ConfigureRequest;
use std::{
    ffi::OsString,
    io::{Read, Write},
    os::unix::net::UnixStream,
};
use thiserror::Error;

/// The variables of a runtime's launch.
const NAME: &str = "NRI_PLUGIN_NAME";
const INDEX: &str = "NRI_PLUGIN_IDX";
const SOCKET: &str = "NRI_PLUGIN_SOCKET";

/// Why a launch comes to nothing.
#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("the runtime launched us under a name that it does not take")]
    Identity(#[from] IdentityError),
    #[error("the runtime's connection was not handed over")]
    Inherited(#[from] InheritError),
    #[error("the runtime that launched us does not configure us")]
    Session(#[from] SessionError),
}

/// A launch by a runtime, registered, and with a configuration that is not answered yet.
#[derive(Debug)]
pub struct Launched {
    pub(super) stream: UnixStream,
    pub(super) peer: Peer,
    pub(super) configure: Request,
    /// Whether the runtime has said that we are registered.
    pub(super) accepted: bool,
    identity: Identity,
    configuration: ConfigureRequest,
}

// === impl Launched ===

impl Launched {
    /// Registers, if the environment says that a runtime has launched this process. Blocks until the
    /// runtime has sent its configuration.
    ///
    /// # Errors
    ///
    /// When the environment contradicts itself, or the runtime does not go on.
    pub fn take(
        environment: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Option<Self>, LaunchError> {
        let text = |name| environment(name).map(|it| it.to_string_lossy().into_owned());
        let Some(socket) = text(SOCKET) else {
            return Ok(None);
        };
        let identity = called(&text(NAME).unwrap_or_default(), text(INDEX).as_deref())?;
        let stream = UnixStream::from(inherited_stream(&socket)?);
        Ok(Some(Self::register(stream, identity)?))
    }

    fn register(mut stream: UnixStream, identity: Identity) -> Result<Self, SessionError> {
        let mut peer = Peer::new(Role::Plugin, Limits::default());
        registration(&mut peer, &identity)?;
        stream.write_all(peer.output())?;
        peer.advance(usize::MAX);
        let mut accepted = false;
        let configure = loop {
            match next(&mut stream, &mut peer)? {
                Event::Answer { result, .. } => {
                    result.map_err(SessionError::Refused)?;
                    accepted = true;
                }
                Event::Request(request) if request.method == "Configure" => break request,
                Event::Request(request) => return Err(SessionError::Unconfigured(request.method)),
                Event::Lost { .. } => return Err(SessionError::Closed),
            }
        };
        let configuration = ConfigureRequest::read(&configure.payload);
        let configuration = configuration.ok_or(SessionError::Configuration)?;
        Ok(Self {
            stream,
            peer,
            configure,
            accepted,
            identity,
            configuration,
        })
    }

    /// What the runtime says to us, as the configuration is made of it.
    pub fn said(&self) -> Launch {
        Launch {
            name: self.identity.name().to_owned(),
            index: self.identity.index().to_owned(),
            text: self.configuration.config.clone(),
        }
    }

    /// What an operator should know of a launch by this runtime; `None` where there is nothing.
    pub fn remark(&self) -> Option<String> {
        let ConfigureRequest {
            runtime_name: name,
            runtime_version: version,
            ..
        } = &self.configuration;
        closes_its_own(name, version).then(|| {
            format!(
                "{name} {version} may close a descriptor of its own as it launches a plugin, and then lose \
                 a socket or end (containerd/nri#66): use a newer release, or let the proxy register"
            )
        })
    }
}

/// Whether it is a containerd whose NRI is older than 0.6.0. Such a one closes its end of a launched plugin's
/// connection twice, the second time by a number that may be another file's by then.
fn closes_its_own(name: &str, version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').splitn(3, '.').map(|part| {
        let end = part.find(|it: char| !it.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().ok()
    });
    let mut part = || parts.next().flatten();
    match (part(), part(), part()) {
        (Some(major), Some(minor), Some(patch)) => {
            name == "containerd" && [major, minor, patch] < [1, 7, 14]
        }
        _ => false,
    }
}

/// What a runtime calls a plugin that it launches. NRI 0.3 (containerd before 1.7.7) says the whole name of
/// the file, in which the index is said once more (`newLaunchedPlugin` of its `pkg/adaptation/plugin.go`).
fn called(name: &str, index: Option<&str>) -> Result<Identity, IdentityError> {
    let of_file = name.split_once('-');
    let of_file = of_file.and_then(|(first, rest)| Identity::new(rest, first).ok());
    match of_file {
        Some(whole) if index.is_none_or(|index| index == whole.index()) => Ok(whole),
        _ => Identity::new(name, index.unwrap_or_default()),
    }
}

/// Reads until there is something. The runtime gives a launch up that it does not like, so nothing
/// here has a limit of its own.
fn next(stream: &mut UnixStream, peer: &mut Peer) -> Result<Event, SessionError> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(event) = peer.next_event() {
            return Ok(event);
        }
        match stream.read(&mut buffer)? {
            0 => return Err(SessionError::Closed),
            count => peer.feed(&buffer[..count])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_called_as_its_file_whether_the_index_is_said_twice_or_once() {
        for (name, index, expected) in [
            ("koord-proxy", Some("10"), ("koord-proxy", "10")),
            ("10-koord-proxy", Some("10"), ("koord-proxy", "10")),
            ("10-koord-proxy", None, ("koord-proxy", "10")),
            // What only resembles the index is of the name.
            ("20-koord", Some("10"), ("20-koord", "10")),
            ("1a-koord", Some("10"), ("1a-koord", "10")),
            ("10", Some("10"), ("10", "10")),
            ("10-", Some("10"), ("10-", "10")),
        ] {
            let identity = called(name, index).unwrap();
            let found = (identity.name(), identity.index());
            assert_eq!(found, expected, "{name:?}, {index:?}");
        }
        let error = called("koord-proxy", None).unwrap_err();
        assert_eq!(error, IdentityError::Index(String::new()));
    }

    #[test]
    fn a_runtime_that_closes_its_own_descriptors_is_known_by_its_version() {
        for (name, version, expected) in [
            ("containerd", "v1.7.6", true),
            ("containerd", "v1.7.13", true),
            ("containerd", "1.7.12-0ubuntu2~22.04.1", true),
            ("containerd", "1.7.13~ds1", true),
            ("containerd", "v1.7.14", false),
            ("containerd", "1.7.24~ds1", false),
            ("containerd", "v2.0.0-rc.1", false),
            // Whose it is, or which, is not known.
            ("another", "v1.7.6", false),
            ("containerd", "", false),
            ("containerd", "1.7", false),
            ("containerd", "main", false),
            ("containerd", "1.7.99999999999", false),
        ] {
            let found = closes_its_own(name, version);
            assert_eq!(found, expected, "{name} {version}");
        }
    }
}
