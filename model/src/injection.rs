//! What a container is given when it is made, and cannot be given later.

use crate::DeviceNumber;
use std::fmt;

/// An addition to the configuration of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Injection {
    pub envs: Vec<Env>,
    pub binds: Vec<Bind>,
    pub devices: Vec<DeviceNode>,
}

/// A path of the node that is in the container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bind {
    /// In the container.
    pub path: Box<str>,
    /// On the node; `None` if it is the same there.
    pub source: Option<Box<str>>,
    /// Whoever is root in a container would be so towards the file of the node, too.
    pub read_only: bool,
}

/// A character device that processes in the container may read and write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNode {
    /// On the node, and in the container.
    pub path: Box<str>,
    pub number: DeviceNumber,
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Env {
    pub name: &'static str,
    pub value: EnvValue,
}

/// What a variable becomes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EnvValue {
    /// This, whatever it was.
    Is(Box<str>),
    /// A list with colons between, which this is put before.
    Before(Box<str>),
}

// === impl Bind ===

impl Bind {
    /// Where it is on the node.
    pub fn source(&self) -> &str {
        self.source.as_deref().unwrap_or(&self.path)
    }
}

// === impl Env ===

impl Env {
    pub fn is(name: &'static str, value: impl Into<Box<str>>) -> Self {
        Self {
            name,
            value: EnvValue::Is(value.into()),
        }
    }

    pub fn before(name: &'static str, value: impl Into<Box<str>>) -> Self {
        Self {
            name,
            value: EnvValue::Before(value.into()),
        }
    }

    /// The value where the container has this one already.
    pub fn over(&self, there: Option<&str>) -> String {
        match (&self.value, there.filter(|there| !there.is_empty())) {
            (EnvValue::Before(value), Some(there)) => format!("{value}:{there}"),
            (EnvValue::Is(value) | EnvValue::Before(value), _) => value.to_string(),
        }
    }
}

/// Names and never values: this is for logs and for whoever may read the ledger.
impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.envs.iter().map(|env| env.name);
        let names = names.chain(self.binds.iter().map(|bind| &*bind.path));
        let names = names.chain(self.devices.iter().map(|device| &*device.path));
        f.write_str(&names.collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_put_before_what_is_there_and_a_value_in_its_place() {
        let list = Env::before("LD_PRELOAD", "/a.so");
        assert_eq!(list.over(None), "/a.so");
        assert_eq!(list.over(Some("")), "/a.so");
        assert_eq!(list.over(Some("/b.so:/c.so")), "/a.so:/b.so:/c.so");
        assert_eq!(Env::is("X", "1").over(Some("2")), "1");
    }

    #[test]
    fn no_value_is_shown() {
        let injection = Injection {
            envs: vec![Env::is("A", "secret"), Env::before("B", "secret")],
            binds: vec![Bind {
                path: "/lib.so".into(),
                source: None,
                read_only: true,
            }],
            devices: vec![DeviceNode {
                path: "/dev/infiniband/uverbs0".into(),
                number: "231:192".parse().unwrap(),
            }],
        };
        assert_eq!(injection.to_string(), "A B /lib.so /dev/infiniband/uverbs0");
    }
}
