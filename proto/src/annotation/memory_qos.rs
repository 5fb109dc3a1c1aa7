//! How the memory of a class of pods, or of one pod, is treated.

use super::{
    error::{AnnotationError, Misfit, Reason},
    json::{self, Decode},
};
use crate::keys::annotation::MEMORY_QOS;
use koord_model::{
    OomPriority, PageCacheSize, QosClass, RangeError, WmarkMinAdj, WmarkRatio, WmarkScale,
};

/// What is said of memory; what is not said is not decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryQos {
    /// Of the request: what is never reclaimed.
    pub min_limit_percent: Option<Percent>,
    /// Of the request: what is reclaimed only when there is no other.
    pub low_limit_percent: Option<Percent>,
    /// Of the way from request to limit: from where on a container is slowed down; 0 is never.
    pub throttling_percent: Option<Percent>,
    pub wmark_ratio: Option<WmarkRatio>,
    pub wmark_scale_permill: Option<WmarkScale>,
    pub wmark_min_adj: Option<WmarkMinAdj>,
    pub priority_enable: Option<Switch>,
    pub priority: Option<OomPriority>,
    pub oom_kill_group: Option<Switch>,
    /// Whether page cache is limited, whatever is said of how much it may be.
    pub page_cache_enable: Option<bool>,
    /// Of the limit: how much of a pod's memory may be page cache.
    pub page_cache_limit_percent: Option<Percent>,
    /// The same in bytes, which goes before it.
    pub page_cache_limit_size: Option<PageCacheSize>,
    /// Whether who makes more of it waits until it is reclaimed.
    pub page_cache_reclaim_sync: Option<bool>,
}

/// The annotation [`MEMORY_QOS`]: what it says is laid over what its policy names, field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodMemoryQos {
    pub policy: MemoryQosPolicy,
    pub qos: MemoryQos,
}

/// What lies under a pod's own words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryQosPolicy {
    /// What the node's policy says of its class.
    #[default]
    Default,
    /// Nothing.
    None,
    /// Koordinator's defaults of its class, whether the node's policy enables that or not.
    Auto,
}

/// 0 to 100 percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

/// 0 or 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch(pub bool);

json::object!(MemoryQos {
    "minLimitPercent" => min_limit_percent,
    "lowLimitPercent" => low_limit_percent,
    "throttlingPercent" => throttling_percent,
    "wmarkRatio" => wmark_ratio,
    "wmarkScalePermill" => wmark_scale_permill,
    "wmarkMinAdj" => wmark_min_adj,
    "priorityEnable" => priority_enable,
    "priority" => priority,
    "oomKillGroup" => oom_kill_group,
    "pageCacheEnable" => page_cache_enable,
    "pageCacheLimitPercent" => page_cache_limit_percent,
    "pageCacheLimitSize" => page_cache_limit_size,
    "pageCacheReclaimSync" => page_cache_reclaim_sync,
});

/// The part of the annotation that is not [`MemoryQos`]; both lie in one object.
#[derive(Default)]
struct Rest {
    policy: MemoryQosPolicy,
}

json::object!(Rest { "policy" => policy });

// === impl MemoryQos ===

impl MemoryQos {
    /// Koordinator's for an enabled class. Of what it sets to zero, which is what a kernel does by
    /// itself, nothing is said.
    pub fn of_class(class: QosClass) -> Self {
        let (ratio, scale, adj) = match class {
            QosClass::Lse | QosClass::Lsr | QosClass::Ls => (95, 20, -25),
            QosClass::Be => (95, 20, 50),
            QosClass::System => return Self::default(),
        };
        Self {
            wmark_ratio: WmarkRatio::new(ratio).ok(),
            wmark_scale_permill: WmarkScale::new(scale).ok(),
            wmark_min_adj: WmarkMinAdj::new(adj).ok(),
            ..Self::default()
        }
    }

    /// Whether anything of it depends on what is requested, or on the limit.
    pub fn is_of_request(&self) -> bool {
        let parts = [
            self.min_limit_percent,
            self.low_limit_percent,
            self.throttling_percent,
            self.page_cache_limit_percent,
        ];
        let mut parts = parts.into_iter().flatten();
        let size = self.page_cache_limit_size.unwrap_or(PageCacheSize::DEFAULT);
        parts.any(|percent| !percent.is_zero()) || size > PageCacheSize::DEFAULT
    }

    /// What this says, and below it what the other does.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            min_limit_percent: self.min_limit_percent.or(below.min_limit_percent),
            low_limit_percent: self.low_limit_percent.or(below.low_limit_percent),
            throttling_percent: self.throttling_percent.or(below.throttling_percent),
            wmark_ratio: self.wmark_ratio.or(below.wmark_ratio),
            wmark_scale_permill: self.wmark_scale_permill.or(below.wmark_scale_permill),
            wmark_min_adj: self.wmark_min_adj.or(below.wmark_min_adj),
            priority_enable: self.priority_enable.or(below.priority_enable),
            priority: self.priority.or(below.priority),
            oom_kill_group: self.oom_kill_group.or(below.oom_kill_group),
            page_cache_enable: self.page_cache_enable.or(below.page_cache_enable),
            page_cache_limit_percent: self
                .page_cache_limit_percent
                .or(below.page_cache_limit_percent),
            page_cache_limit_size: self.page_cache_limit_size.or(below.page_cache_limit_size),
            page_cache_reclaim_sync: self
                .page_cache_reclaim_sync
                .or(below.page_cache_reclaim_sync),
        }
    }
}

// === impl PodMemoryQos ===

impl PodMemoryQos {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), the policy is
    /// neither empty nor one of `default`, `none` and `auto`, or a number is outside the range of its type in
    /// [`MemoryQos`].
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(MEMORY_QOS, text)
    }
}

impl Decode for PodMemoryQos {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        let mut rest = Rest {
            policy: self.policy,
        };
        rest.decode(json)?;
        self.policy = rest.policy;
        self.qos.decode(json)
    }
}

// === impl MemoryQosPolicy ===

impl MemoryQosPolicy {
    const NAMES: [(&'static str, Self); 3] = [
        ("default", Self::Default),
        ("none", Self::None),
        ("auto", Self::Auto),
    ];
}

impl Decode for MemoryQosPolicy {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        if json::is_null(json) {
            return Ok(());
        }
        let text = json::string(json)?;
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        *self = match found {
            Some((_, policy)) => *policy,
            None if text.is_empty() => Self::Default,
            None => {
                return Err(Reason::NotOneOf {
                    value: json::shown(&text),
                    allowed: Self::NAMES.map(|(name, _)| name).to_vec(),
                }
                .into());
            }
        };
        Ok(())
    }
}

// === impl Percent ===

impl Percent {
    pub(crate) const MIN: i64 = 0;
    pub(crate) const MAX: i64 = 100;

    /// So many percent.
    ///
    /// # Errors
    ///
    /// When the percentage is outside 0 to 100.
    pub fn new(percent: i64) -> Result<Self, RangeError> {
        let in_range = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
        in_range.map(Self).ok_or(RangeError {
            what: "percentage",
            value: percent.into(),
            min: Self::MIN.into(),
            max: Self::MAX.into(),
        })
    }

    /// That much of an amount, rounded down.
    pub fn of(self, amount: u64) -> u64 {
        let part = u128::from(amount) * u128::from(self.0) / 100;
        u64::try_from(part).expect("at most the whole")
    }

    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

// === impl Switch ===

impl Switch {
    pub(crate) const MIN: i64 = 0;
    pub(crate) const MAX: i64 = 1;

    /// 0 is off, 1 is on.
    ///
    /// # Errors
    ///
    /// When the number is neither 0 nor 1.
    pub fn new(switch: i64) -> Result<Self, RangeError> {
        match switch {
            0 => Ok(Self(false)),
            1 => Ok(Self(true)),
            _ => Err(RangeError {
                what: "switch",
                value: switch.into(),
                min: Self::MIN.into(),
                max: Self::MAX.into(),
            }),
        }
    }
}

/// Numbers that are checked when they are read, [`Percent`] and its like. What a place holds before
/// is never seen.
macro_rules! ranged {
    ($($type:ty),+ $(,)?) => {$(
        impl Decode for Option<$type> {
            fn decode(&mut self, json: &str) -> Result<(), Misfit> {
                *self = match json::is_null(json) {
                    true => None,
                    false => Some(json::ranged(json, <$type>::new)?),
                };
                Ok(())
            }
        }
    )+};
}

ranged!(
    Percent,
    Switch,
    WmarkRatio,
    WmarkScale,
    WmarkMinAdj,
    OomPriority,
    PageCacheSize
);
