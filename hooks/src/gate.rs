//! Which hooks are on, and what their failures mean: `--feature-gates` and `--hook-fail-policy`.
//!
//! The names, defaults and grouping of the gates are those of Koordinator's node agent, because
//! the flag is carried over from there as it stands. Gates of parts that are not here are accepted
//! and remembered. Every fault of a flag is reported at once.

use crate::{
    builtin,
    hook::{FailPolicy, HookMeta, Maturity},
};
use std::{collections::BTreeMap, error::Error, fmt};

/// Feature gates, each on or off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    // Only what was said; everything else follows from groups and defaults.
    named: BTreeMap<&'static str, bool>,
    all_alpha: Option<bool>,
    all_beta: Option<bool>,
}

/// What the failure of each built-in hook means for the call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailPolicies {
    named: BTreeMap<&'static str, FailPolicy>,
}

/// Everything that is wrong with one flag, in the order of its text.
#[derive(Debug, PartialEq, Eq)]
pub struct FlagError {
    pub flag: &'static str,
    pub faults: Vec<FlagFault>,
}

/// One item of a flag that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FlagFault {
    #[error("{item:?} is not NAME=VALUE")]
    NoPair { item: String },
    #[error("{name:?} is not known")]
    UnknownName { name: String },
    #[error("{value:?} of {name} is not {expected}")]
    WrongValue {
        name: String,
        value: String,
        expected: &'static str,
    },
}

#[derive(Clone, Copy)]
struct Gate {
    name: &'static str,
    default_on: bool,
    maturity: Maturity,
}

const fn alpha(name: &'static str) -> Gate {
    Gate {
        name,
        default_on: false,
        maturity: Maturity::Alpha,
    }
}

const fn beta(name: &'static str) -> Gate {
    Gate {
        name,
        default_on: true,
        maturity: Maturity::Beta,
    }
}

/// The gates of Koordinator's node agent that no hook here has.
const OTHER_GATES: &[Gate] = &[
    alpha("AuditEvents"),
    alpha("AuditEventsHTTPHandler"),
    alpha("Accelerators"),
    alpha("BEMemoryEvict"),
    alpha("BECPUEvict"),
    beta("BECPUSuppress"),
    alpha("CPUAllocatableEvict"),
    alpha("CPUEvict"),
    alpha("CPICollector"),
    alpha("ColdPageCollector"),
    alpha("HugePageReport"),
    alpha("Libpfm4"),
    alpha("MemoryAllocatableEvict"),
    alpha("MemoryEvict"),
    alpha("NodeMetricPromMetrics"),
    beta("NodeTopologyReport"),
    alpha("PSICollector"),
    alpha("PerCPUMetric"),
    alpha("PodResourcesProxy"),
    alpha("RDMADevices"),
    alpha("ResctrlCollector"),
    alpha("SystemConfig"),
];

// === impl FeatureGates ===

impl FeatureGates {
    pub const FLAG: &'static str = "--feature-gates";

    /// Reads `Name=bool,…`. A gate's own name goes before `AllAlpha` and `AllBeta`, wherever it
    /// stands; of equal names the last counts.
    ///
    /// # Errors
    ///
    /// When an item is not `NAME=VALUE`, its name is neither `AllAlpha` nor `AllBeta` nor that of a gate, or
    /// its value is none of `1`, `t`, `T`, `true`, `TRUE`, `True`, `0`, `f`, `F`, `false`, `FALSE` and
    /// `False`. All such items are told.
    pub fn parse(text: &str) -> Result<Self, FlagError> {
        let (gates, faults) = Self::of_another(text);
        FlagError::of(Self::FLAG, faults).map_or(Ok(gates), Err)
    }

    /// The same of somebody else's flag, of which what cannot be read is left out, and told.
    pub fn of_another(text: &str) -> (Self, Vec<FlagFault>) {
        let mut gates = Self::default();
        let faults = faults_of_pairs(text, |name, value| {
            let on = parse_bool(value);
            let on = on.ok_or_else(|| wrong_value(name, value, "true or false"));
            match (name, known_gates().find(|gate| gate.name == name)) {
                ("AllAlpha", _) => gates.all_alpha = Some(on?),
                ("AllBeta", _) => gates.all_beta = Some(on?),
                (_, Some(gate)) => {
                    gates.named.insert(gate.name, on?);
                }
                (_, None) => return Err(unknown_name(name)),
            }
            Ok(())
        });
        (gates, faults)
    }

    /// Whether a gate is on. A name that no gate has is off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(gate) = known_gates().find(|gate| gate.name == name) else {
            return false;
        };
        let group = match gate.maturity {
            Maturity::Alpha => self.all_alpha,
            Maturity::Beta => self.all_beta,
            Maturity::Own => None,
        };
        let named = self.named.get(gate.name).copied();
        named.or(group).unwrap_or(gate.default_on)
    }

    /// Gates that were switched on by name but of which nothing is here, so that the operator can
    /// be told.
    pub fn unserved(&self) -> impl Iterator<Item = &'static str> {
        self.named
            .iter()
            .filter(|(_, on)| **on)
            .map(|(name, _)| *name)
            .filter(|name| OTHER_GATES.iter().any(|gate| gate.name == *name))
    }
}

fn known_gates() -> impl Iterator<Item = Gate> {
    let metas = builtin::TABLE.iter().map(|row| &row.meta);
    let hooks = metas.clone().map(|meta| Gate {
        name: meta.gate,
        default_on: meta.default_on,
        maturity: meta.maturity,
    });
    let options = metas.flat_map(|meta| meta.options).map(|option| Gate {
        name: option.gate,
        default_on: false,
        maturity: option.maturity,
    });
    hooks.chain(options).chain(OTHER_GATES.iter().copied())
}

// === impl FailPolicies ===

impl FailPolicies {
    pub const FLAG: &'static str = "--hook-fail-policy";

    /// Reads `Hook=Open,Hook=Closed,…`; of equal names the last counts.
    ///
    /// # Errors
    ///
    /// When an item is not `NAME=VALUE`, its name is that of no built-in hook, or its value is neither `Open`
    /// nor `Closed`. All such items are told.
    pub fn parse(text: &str) -> Result<Self, FlagError> {
        let mut policies = Self::default();
        let faults = faults_of_pairs(text, |name, value| {
            let known = builtin::TABLE.iter().find(|row| row.meta.name == name);
            let hook = known.ok_or_else(|| unknown_name(name))?.meta.name;
            let policy = match value {
                "Open" => FailPolicy::Open,
                "Closed" => FailPolicy::Closed,
                _ => return Err(wrong_value(name, value, "Open or Closed")),
            };
            policies.named.insert(hook, policy);
            Ok(())
        });
        FlagError::of(Self::FLAG, faults).map_or(Ok(policies), Err)
    }

    /// The policy of a hook: what was said, else its own.
    pub fn of(&self, meta: &HookMeta) -> FailPolicy {
        let named = self.named.get(meta.name).copied();
        named.unwrap_or(meta.fail_policy)
    }
}

// === impl FlagError ===

impl FlagError {
    /// What is wrong with a flag, if anything is.
    fn of(flag: &'static str, faults: Vec<FlagFault>) -> Option<Self> {
        (!faults.is_empty()).then_some(Self { flag, faults })
    }
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.flag)?;
        let mut separator = ": ";
        for fault in &self.faults {
            write!(f, "{separator}{fault}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl Error for FlagError {}

/// Has each pair of a flag taken. What is wrong with it.
fn faults_of_pairs(
    text: &str,
    mut take: impl FnMut(&str, &str) -> Result<(), FlagFault>,
) -> Vec<FlagFault> {
    let mut faults = Vec::new();
    for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
        let taken = match item.split_once('=') {
            Some((name, value)) => take(name.trim(), value.trim()),
            None => Err(FlagFault::NoPair { item: item.into() }),
        };
        faults.extend(taken.err());
    }
    faults
}

/// The spellings that Go's `strconv.ParseBool` takes.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn unknown_name(name: &str) -> FlagFault {
    FlagFault::UnknownName { name: name.into() }
}

fn wrong_value(name: &str, value: &str, expected: &'static str) -> FlagFault {
    FlagFault::WrongValue {
        name: name.into(),
        value: value.into(),
        expected,
    }
}

#[cfg(test)]
mod tests;
