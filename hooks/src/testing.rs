//! A hook that does what a pod's annotation says, to try out how callers take a hook's faults.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{Stage, View},
};
use koord_model::{CpuShares, Setting};
use koord_proto::annotation::{AnnotationError, Reason};

/// The annotation that a [`ScriptedHook`] with the policy [`FailPolicy::Open`] obeys.
pub const OPEN: &str = "hooks.testing/open";
/// The annotation that a [`ScriptedHook`] with the policy [`FailPolicy::Closed`] obeys.
pub const CLOSED: &str = "hooks.testing/closed";

/// At pods and containers, by its annotation: `panic` panics; a number from 2 to 262,144 sets
/// `cpu.shares`, which is a conflict where an earlier hook has set them; `override` and a number,
/// apart by a space, sets them whoever has; anything else is an error.
#[derive(Clone, Copy, Debug)]
pub struct ScriptedHook {
    key: &'static str,
}

// === impl ScriptedHook ===

impl ScriptedHook {
    /// A hook with its row, as [`Chain::with_hook`](crate::Chain::with_hook) takes them.
    pub fn with_policy(fail_policy: FailPolicy) -> (HookMeta, Box<dyn Hook>) {
        let (name, key, annotations): (_, _, &'static [&'static str]) = match fail_policy {
            FailPolicy::Open => ("ScriptedOpen", OPEN, &[OPEN]),
            FailPolicy::Closed => ("ScriptedClosed", CLOSED, &[CLOSED]),
        };
        let meta = HookMeta {
            name,
            gate: name,
            default_on: true,
            maturity: Maturity::Own,
            options: &[],
            stages: &[Stage::Pod, Stage::Container],
            fail_policy,
            doc: "does what an annotation says",
            inputs: Inputs {
                labels: &[],
                annotations,
            },
            settings: &[Setting::CpuShares],
        };
        (meta, Box::new(Self { key }))
    }
}

impl Hook for ScriptedHook {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let Some(script) = view.pod.annotations.get(self.key) else {
            return Ok(Adjustment::default());
        };
        assert_ne!(script, "panic", "a pod told this hook to");
        let (overriding, number) = match script.strip_prefix("override ") {
            Some(number) => (true, number),
            None => (false, script),
        };
        let shares = number.parse().ok().and_then(|n| CpuShares::new(n).ok());
        let shares = shares.ok_or_else(|| AnnotationError {
            key: self.key,
            path: "$".into(),
            reason: Reason::WrongType {
                expected: "a script".into(),
                found: "something else".to_owned(),
            },
        })?;
        let adjustment = Adjustment {
            cpu_shares: Some(shares),
            ..Adjustment::default()
        };
        if overriding {
            return Ok(adjustment.overriding(Setting::CpuShares));
        }
        Ok(adjustment)
    }
}
