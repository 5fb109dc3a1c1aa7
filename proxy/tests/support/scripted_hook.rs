//! A creation with a hook behind the built-in ones that does what the pod says.

use super::{inside::Inside, log::Lines, method, node::script, pod::Pod};
use koord_hooks::{
    Chain, FailPolicies, FailPolicy, FeatureGates,
    testing::{CLOSED, OPEN, ScriptedHook},
};
use koord_testkit::{
    RawClient, RawReply, RawRequest,
    scripted::{Call, ScriptedRuntime},
};
use tokio::task::LocalSet;

/// Creates a container of a pod that says `told` to the hook; gives the reply, the call as the
/// runtime saw it, and what was logged. The series `counted` has to be 1.
pub async fn create(
    policy: FailPolicy,
    told: &str,
    counted: &str,
) -> (RawReply, Call, Vec<serde_json::Value>) {
    let (dispatch, lines) = Lines::of_a_log();
    let _logging = tracing::dispatcher::set_default(&dispatch);
    let (meta, hook) = ScriptedHook::with_policy(policy);
    let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
    let key = match policy {
        FailPolicy::Open => OPEN,
        FailPolicy::Closed => CLOSED,
    };
    let pod = Pod::best_effort("odd").annotation(key, told);
    let calls = async {
        let inside = Inside::start(chain.with_hook(meta, hook));
        let runtime = ScriptedRuntime::listen(&inside.runtime_socket(), script()).unwrap();
        let client = RawClient::connect(&inside.socket()).await.unwrap();
        let request = RawRequest::unary(method::CREATE, pod.create().encode());
        let reply = client.call(request).await.unwrap();
        assert_eq!(inside.metric(counted), 1, "{counted}");
        (reply, runtime.ended_calls(1).remove(0))
    };
    let (reply, call) = LocalSet::new().run_until(calls).await;
    (reply, call, lines.all())
}
