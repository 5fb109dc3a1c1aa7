//! Identifiers that must not be mixed up.

use crate::excerpt;
use std::{borrow::Borrow, fmt, sync::Arc};
use thiserror::Error;

/// Why a text is no identifier.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is no {what}: 1 to 253 letters, digits, '-', '_' or '.' are")]
pub struct IdError {
    pub what: &'static str,
    pub text: String,
}

/// The longest identifier taken: that of a Kubernetes object name.
const MAX_LENGTH: usize = 253;

/// An identifier becomes part of a path, so the alphabet is one that cannot leave a directory.
fn check(what: &'static str, text: &str) -> Result<(), IdError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let dots = text.bytes().all(|b| b == b'.');
    if text.is_empty() || text.len() > MAX_LENGTH || dots || !text.bytes().all(plain) {
        let text = excerpt(text);
        return Err(IdError { what, text });
    }
    Ok(())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The identifier that is written so.
            ///
            /// # Errors
            ///
            /// When the text is not 1 to 253 ASCII letters, digits, `-`, `_` or `.`, or has nothing but dots.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check($what, text)?;
                Ok(Self(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// The UID of a pod; for static pods a hash, so not always a UUID.
    PodUid,
    "pod UID"
);
id!(
    /// The runtime's name of a pod sandbox.
    SandboxId,
    "pod sandbox id"
);
id!(
    /// The runtime's name of a container.
    ContainerId,
    "container id"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_lead_out_of_a_directory() {
        for text in ["", ".", "..", "a/b", "a\0", "a b", "é", &"x".repeat(254)] {
            assert!(ContainerId::new(text).is_err(), "{text:?}");
        }
        assert!(PodUid::new("a.b-c_D9").is_ok());
    }
}
