//! How far the containers of one pod may run beyond their CPU limits for a moment.

use super::{
    error::{AnnotationError, Misfit, Reason},
    json::{self, Decode},
};
use crate::keys::annotation::CPU_BURST;
use koord_model::RangeError;

/// The annotation [`CPU_BURST`], laid over the node's strategy field by field. What else it says is
/// about quotas that are raised while a node is quiet, which is no matter of the pod's creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBurst {
    pub policy: Option<CpuBurstPolicy>,
    pub percent: Option<BurstPercent>,
}

/// What a container may do when it has used up its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuBurstPolicy {
    #[default]
    None,
    /// It uses time that it has saved up.
    CpuBurstOnly,
    /// Its quota is raised for as long as the node is quiet.
    CfsQuotaBurstOnly,
    /// Both.
    Auto,
}

/// How much time may be saved up, as a part of the CPU limit: 1 to 10,000 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstPercent(u32);

json::object!(CpuBurst {
    "policy" => policy,
    "cpuBurstPercent" => percent,
});

// === impl CpuBurst ===

impl CpuBurst {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), the policy is none
    /// of `none`, `cpuBurstOnly`, `cfsQuotaBurstOnly` and `auto` nor empty, or the percentage is outside 1 to
    /// 10,000.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(CPU_BURST, text)
    }
}

// === impl CpuBurstPolicy ===

impl CpuBurstPolicy {
    pub(crate) const NAMES: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("cpuBurstOnly", Self::CpuBurstOnly),
        ("cfsQuotaBurstOnly", Self::CfsQuotaBurstOnly),
        ("auto", Self::Auto),
    ];

    /// Whether time is saved up.
    pub fn saves_up(self) -> bool {
        matches!(self, Self::CpuBurstOnly | Self::Auto)
    }
}

impl Decode for CpuBurstPolicy {
    /// Upstream's merge leaves out a text that is empty.
    fn says_nothing(json: &str) -> bool {
        json::is_null(json) || json::string(json).is_ok_and(|text| text.is_empty())
    }

    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if json::is_null(json) {
            return Ok(());
        }
        let text = json::string(json)?;
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        let (_, policy) = found.ok_or_else(|| Reason::NotOneOf {
            value: json::shown(&text),
            allowed: Self::NAMES.map(|(name, _)| name).to_vec(),
        })?;
        *self = *policy;
        Ok(())
    }
}

// === impl BurstPercent ===

impl BurstPercent {
    pub(crate) const MIN: i64 = 1;
    pub(crate) const MAX: i64 = 10_000;

    /// So many percent of the CPU limit.
    ///
    /// # Errors
    ///
    /// When the percentage is outside 1 to 10,000.
    pub fn new(percent: i64) -> Result<Self, RangeError> {
        let in_range = u32::try_from(percent)
            .ok()
            .filter(|_| (Self::MIN..=Self::MAX).contains(&percent));
        in_range.map(Self).ok_or(RangeError {
            what: "cpuBurstPercent",
            value: percent.into(),
            min: Self::MIN.into(),
            max: Self::MAX.into(),
        })
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for BurstPercent {
    /// Koordinator's.
    fn default() -> Self {
        Self(1_000)
    }
}

impl Decode for BurstPercent {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if !json::is_null(json) {
            *self = json::ranged(json, Self::new)?;
        }
        Ok(())
    }
}
