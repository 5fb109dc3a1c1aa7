//! Classes of pods: Koordinator's, and Kubernetes' own.

use crate::excerpt;
use std::{fmt, str::FromStr};
use thiserror::Error;

/// A class name that does not exist. Pods with one count as pods without.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{name:?} is no {what}: those are {}", allowed.join(", "))]
pub struct UnknownClass {
    pub what: &'static str,
    pub name: String,
    pub allowed: &'static [&'static str],
}

macro_rules! class {
    ($(#[$doc:meta])* $type:ident, $what:literal {
        $($(#[$variant_doc:meta])* $variant:ident = $name:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type {
            $($(#[$variant_doc])* $variant),+
        }

        impl $type {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl FromStr for $type {
            type Err = UnknownClass;

            fn from_str(name: &str) -> Result<Self, UnknownClass> {
                match name {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(UnknownClass {
                        what: $what,
                        name: excerpt(name),
                        allowed: &[$($name),+],
                    }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

class!(
    /// The label `koordinator.sh/qosClass`; exact case.
    QosClass, "Koordinator QoS class" {
        /// Latency sensitive, exclusive CPUs.
        Lse = "LSE",
        /// Latency sensitive, reserved CPUs.
        Lsr = "LSR",
        /// Latency sensitive, shared CPUs.
        Ls = "LS",
        /// Best effort.
        Be = "BE",
        System = "SYSTEM",
    }
);

class!(
    /// The tier that the kubelet puts a pod in.
    KubeQos, "Kubernetes QoS class" {
        Guaranteed = "Guaranteed",
        Burstable = "Burstable",
        BestEffort = "BestEffort",
    }
);

// === impl QosClass ===

impl QosClass {
    /// As which a pod counts that has no class, by what the kubelet takes it for.
    pub fn of_tier(tier: KubeQos) -> Self {
        match tier {
            KubeQos::Guaranteed => Self::Lsr,
            KubeQos::Burstable => Self::Ls,
            KubeQos::BestEffort => Self::Be,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_in_case() {
        assert_eq!("LSR".parse(), Ok(QosClass::Lsr));
        assert_eq!("SYSTEM".parse(), Ok(QosClass::System));
        assert!("lsr".parse::<QosClass>().is_err());
        assert_eq!(
            "Gold".parse::<QosClass>().unwrap_err().to_string(),
            "\"Gold\" is no Koordinator QoS class: those are LSE, LSR, LS, BE, SYSTEM"
        );
        assert_eq!("BestEffort".parse(), Ok(KubeQos::BestEffort));
    }
}
