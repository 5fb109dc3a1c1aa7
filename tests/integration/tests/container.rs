//! The proxy in a container, as `deploy/daemonset.yaml` has it: the manifest agrees with itself and
//! with the flags there are, and a real kubelet runs its pod, with all that it says of privileges and
//! places, which then is the runtime's plugin, or watches it.

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{Front, Proxy, ProxyOptions, binary, classes, static_pod};
use koord_testkit::{
    ContainerdVersion, Kubelet, Options, PodCgroups, Runtime, Testbed, poll::wait_patiently, setup,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

/// Where the node's own places are in the container.
const HOST: &str = "/host";

/// By which a kubelet knows that it serves, and that it does not hang.
const PROBES: [&str; 2] = ["readinessProbe", "livenessProbe"];

/// After so many of the latter without success, one each second here, a kubelet starts it anew.
const FAILURES: u32 = 3;

/// Where the container has the program.
const PROGRAM: &str = "/koord-runtime-proxy";

fn deployed(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn manifest_text() -> Result<String> {
    deployed("daemonset.yaml")
}

fn manifest() -> Result<Value> {
    Ok(serde_saphyr::from_str(&manifest_text()?)?)
}

/// The manifest with all that stands in its comments for those who want it.
fn whole_manifest() -> Result<Value> {
    let mut whole = String::new();
    for line in manifest_text()?.lines() {
        let line = match line.split_once("# ") {
            Some((margin, wanted)) if wanted.starts_with("- ") || wanted.starts_with("  ") => {
                format!("{margin}{wanted}")
            }
            _ => line.to_owned(),
        };
        whole.push_str(&line);
        whole.push('\n');
    }
    Ok(serde_saphyr::from_str(&whole)?)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The places of the node that the container has, by where it has them.
fn mounts(pod: &Value) -> BTreeMap<String, String> {
    let volumes: BTreeMap<&str, &str> = list(&pod["volumes"])
        .iter()
        .map(|it| (text(&it["name"]), text(&it["hostPath"]["path"])))
        .collect();
    list(&pod["containers"][0]["volumeMounts"])
        .iter()
        .map(|it| {
            let from = volumes.get(text(&it["name"])).copied();
            (
                text(&it["mountPath"]).to_owned(),
                from.unwrap_or_default().to_owned(),
            )
        })
        .collect()
}

#[test]
fn the_manifest_agrees_with_itself_and_with_the_flags() -> Result<()> {
    let (manifest, whole) = (manifest()?, whole_manifest()?);
    agrees(&manifest)?;
    agrees(&whole)?;
    let pod = |manifest: &Value| manifest["spec"]["template"]["spec"].clone();
    let more = |count: fn(&Value) -> usize| count(&pod(&whole)) - count(&pod(&manifest));
    assert_eq!(more(|pod| list(&pod["volumes"]).len()), 1);
    assert_eq!(more(|pod| list(&pod["containers"][0]["args"]).len()), 6);
    Ok(())
}

#[test]
fn the_policy_for_the_api_server_has_the_scheduler_alone_write_what_hooks_believe_from_it()
-> Result<()> {
    let text = deployed("scheduler-annotations.yaml")?;
    let (policy, binding) = text.split_once("\n---\n").context("two documents")?;
    let (policy, binding): (Value, Value) = (
        serde_saphyr::from_str(policy)?,
        serde_saphyr::from_str(binding)?,
    );
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    let variable = |name: &str| {
        let mut variables = list(&policy["spec"]["variables"]).iter();
        let found = variables.find(|it| it["name"] == name);
        found.map(|it| self::text(&it["expression"]).replace('\'', "\""))
    };
    let writers: Vec<String> = serde_json::from_str(&variable("writers").context("writers")?)?;
    let scheduler = "system:serviceaccount:koordinator-system:koord-scheduler";
    assert_eq!(writers, [scheduler]);
    let keys: Vec<String> = serde_json::from_str(&variable("keys").context("keys")?)?;
    for believed in [
        "scheduling.koordinator.sh/resource-status",
        "scheduling.koordinator.sh/device-allocated",
    ] {
        assert!(keys.iter().any(|key| key == believed), "{believed}");
    }
    let rules = list(&policy["spec"]["matchConstraints"]["resourceRules"]);
    let [rule] = rules else {
        anyhow::bail!("{rules:?}");
    };
    assert_eq!(rule["operations"], json!(["CREATE", "UPDATE"]));
    let all_ways = json!(["pods", "pods/status", "pods/binding", "bindings"]);
    assert_eq!(rule["resources"], all_ways);
    let validations = list(&policy["spec"]["validations"]);
    let [validation] = validations else {
        anyhow::bail!("{validations:?}");
    };
    let expression = self::text(&validation["expression"]);
    for variable in ["variables.writers", "variables.keys", "variables.before"] {
        assert!(expression.contains(variable), "{expression}");
    }
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    Ok(())
}

fn agrees(manifest: &Value) -> Result<()> {
    assert_eq!(manifest["kind"], "DaemonSet");
    let template = &manifest["spec"]["template"];
    let selector = manifest["spec"]["selector"]["matchLabels"].as_object();
    let labels = template["metadata"]["labels"]
        .as_object()
        .context("labels")?;
    for (key, value) in selector.context("a selector")? {
        assert_eq!(labels.get(key), Some(value), "{key}");
    }
    let pod = &template["spec"];
    let names = |list: &Value, key: &str| -> BTreeSet<String> {
        let all = self::list(list).iter();
        all.map(|it| text(&it[key]).to_owned()).collect()
    };
    let container = &pod["containers"][0];
    let limit = text(&container["resources"]["limits"]["memory"]);
    let limit: u32 = limit.strip_suffix("Mi").context("in MiB")?.parse()?;
    // What a kubelet says of its pods as it comes and as it is kept, the policy, and a list of the runtime's.
    assert!(2 * 64 + 4 + 16 < limit, "{limit} MiB");
    let volumes = names(&pod["volumes"], "name");
    assert_eq!(names(&container["volumeMounts"], "name"), volumes);

    let help = Command::new(binary("koord-runtime-proxy")?)
        .arg("--help")
        .output()?;
    let help = String::from_utf8(help.stdout)?;
    let mounts = mounts(pod);
    for (at, from) in &mounts {
        assert_eq!(
            *at,
            format!("{HOST}{from}"),
            "a place of the node is below {HOST}"
        );
    }
    let probes = PROBES.map(|it| list(&container[it]["exec"]["command"]));
    let [ready, alive] = probes;
    assert_eq!(ready.last(), Some(&json!("health")));
    assert_eq!(alive.last(), Some(&json!("/healthz")));
    let said = probes.iter().flat_map(|it| &it[1..]);
    let said = list(&container["args"]).iter().chain(said).map(text);
    for (flag, value) in said.filter_map(|argument| argument.split_once('=')) {
        ensure!(help.contains(&format!("{flag} <")), "there is no {flag}");
        if value.starts_with('/') {
            let there = mounts.keys().any(|at| Path::new(value).starts_with(at));
            ensure!(there, "{flag}: {value} is not in the container");
        }
    }
    Ok(())
}

/// The manifest's pod as a kubelet without a cluster takes it, with the places of a testbed in those of
/// the node.
fn pod_of(manifest: &Value, testbed: &Testbed, own: &Path) -> Result<Value> {
    let mut spec = manifest["spec"]["template"]["spec"].clone();
    let directory = testbed.directory();
    for volume in spec["volumes"].as_array_mut().context("volumes")? {
        let host = &mut volume["hostPath"];
        let place = match text(&host["path"]) {
            "/sys" => PathBuf::from("/sys"),
            "/run/containerd" | "/run/nri" => directory.to_owned(),
            "/run/koord-runtime-proxy" => own.join("admin"),
            other => own.join(other.trim_start_matches('/')),
        };
        host["path"] = json!(place);
    }
    // In place of an image: the program, and the libraries that it is linked to.
    let parts = [
        ("program", binary("koord-runtime-proxy")?, PROGRAM),
        ("lib", PathBuf::from("/usr/lib"), "/lib"),
        ("lib64", PathBuf::from("/usr/lib64"), "/lib64"),
    ];
    for (name, from, at) in parts {
        let volume = json!({"name": name, "hostPath": {"path": from}});
        spec["volumes"]
            .as_array_mut()
            .context("volumes")?
            .push(volume);
        let mount = json!({"name": name, "mountPath": at, "readOnly": true});
        let mounts = spec["containers"][0]["volumeMounts"].as_array_mut();
        mounts.context("mounts")?.push(mount);
    }
    let container = &mut spec["containers"][0];
    container["image"] = json!(setup::BUSYBOX_IMAGE);
    container["imagePullPolicy"] = json!("Never");
    container["command"] = json!([PROGRAM]);
    for probe in PROBES {
        container[probe]["exec"]["command"][0] = json!(PROGRAM);
        container[probe]["periodSeconds"] = json!(1);
    }
    let arguments = container["args"].as_array_mut().context("args")?;
    let gates = format!("--feature-gates={}", classes::FEATURE_GATES);
    let root = format!("--cgroup-root={}", testbed.cgroup_root());
    let policy = "--node-policy=/host/etc/koord-runtime-proxy/policy.yaml".to_owned();
    arguments.extend([gates, root, policy].map(Value::String));
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "agent",
            "namespace": "default",
            "uid": "uid-agent",
            "labels": manifest["spec"]["template"]["metadata"]["labels"],
        },
        "spec": spec,
    }))
}

/// The manifest with `--front=watch`, changed in all that its first lines allow.
fn without_nri(mut manifest: Value) -> Result<Value> {
    fn keep(list: &mut Value, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let all = list.as_array_mut().context("a list")?;
        let before = all.len();
        all.retain(wanted);
        ensure!(all.len() + 1 == before, "one is left out of {all:?}");
        Ok(())
    }
    let pod = &mut manifest["spec"]["template"]["spec"];
    keep(&mut pod["volumes"], |it| it["name"] != "nri")?;
    let container = &mut pod["containers"][0];
    keep(&mut container["volumeMounts"], |it| it["name"] != "nri")?;
    let arguments = &mut container["args"];
    keep(arguments, |it| !text(it).starts_with("--nri-socket-path="))?;
    let front = arguments.as_array_mut().context("args")?;
    let front = front.iter_mut().find(|it| **it == "--front=nri");
    *front.context("the front")? = json!("--front=watch");
    Ok(manifest)
}

/// The thread that writes has a table of descriptors of its own without sockets, in a container too,
/// whose filter of system calls lets nobody unshare anything.
fn stands_apart(testbed: &Testbed) -> Result<()> {
    let of_testbed = |process: &Path| {
        let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        groups.contains(&testbed.cgroup_root())
    };
    let mut writers = 0;
    for process in fs::read_dir("/proc")? {
        let process = process?.path();
        let threads = fs::read_dir(process.join("task")).into_iter().flatten();
        for thread in threads.filter(|_| of_testbed(&process)) {
            // Those of others end at any time, even between two looks.
            let Ok(thread) = thread.map(|thread| thread.path()) else {
                continue;
            };
            let Ok(name) = fs::read_to_string(thread.join("comm")) else {
                continue;
            };
            if name.trim() != "cgroup-writer" {
                continue;
            }
            writers += 1;
            for descriptor in fs::read_dir(thread.join("fd"))? {
                // What it writes to is open for a moment only.
                let Ok(to) = fs::read_link(descriptor?.path()) else {
                    continue;
                };
                ensure!(
                    !to.to_string_lossy().starts_with("socket:"),
                    "it has {}",
                    to.display()
                );
            }
        }
    }
    assert_eq!(writers, 1);
    Ok(())
}

/// How often it is tried. Where the machine stands still for the two seconds that the runtime waits, a
/// container is created without its plugin, rightly.
const ATTEMPTS: usize = 3;

fn a_container_serves(version: ContainerdVersion, front: Front) -> Result<()> {
    for _ in 0..ATTEMPTS {
        if serves_and_adjusts_all(version, front)? {
            return Ok(());
        }
    }
    bail!("not every creation was adjusted in any of {ATTEMPTS} attempts")
}

/// Whether the plugin has adjusted each creation; one that watches is asked about none.
fn serves_and_adjusts_all(version: ContainerdVersion, front: Front) -> Result<bool> {
    let manifest = match front {
        Front::Watch => without_nri(manifest()?)?,
        Front::Cri | Front::Nri => manifest()?,
    };
    // It waits for its plugin as long as it does by itself, unlike that of a `Node`.
    let options = Options {
        nri: front == Front::Nri,
        ..Options::default()
    };
    let containerd = Runtime::start(version, &options)?;
    let testbed = containerd.testbed();
    let cgroups = PodCgroups::new(testbed)?;
    // It is asked like one that was started here.
    let agent = ProxyOptions {
        front,
        own_directory: Some("agent"),
        ..ProxyOptions::default()
    };
    let agent = Proxy::new(testbed, &containerd.socket(), agent)?;
    let own = testbed.directory().join("agent");
    let share_pool = classes::share_pool()?;
    fs::create_dir_all(own.join("etc/koord-runtime-proxy"))?;
    let policy = classes::node_policy(&share_pool).replace("node-1", "node");
    fs::write(own.join("etc/koord-runtime-proxy/policy.yaml"), policy)?;

    let kubelet = Kubelet::start(testbed, &containerd.socket(), json!({}))?;
    kubelet.apply(&pod_of(&manifest, testbed, &own)?)?;
    wait_patiently("the container serves its front", || agent.serves());
    let pods = classes::all(&share_pool);
    for pod in &pods {
        kubelet.apply(&static_pod::manifest(pod))?;
    }
    static_pod::settled(&cgroups, &kubelet, &pods);
    let status = |field: &str| {
        let pods = kubelet.pods().unwrap_or_default();
        let mut pods = pods.iter();
        let own = pods.find(|it| it["metadata"]["name"] == "agent-node");
        own.map(|it| it["status"]["containerStatuses"][0][field].clone())
    };
    wait_patiently("the container is ready", || {
        status("ready") == Some(json!(true))
    });
    thread::sleep(Duration::from_secs(1) * (FAILURES + 3));
    assert_eq!(
        status("restartCount"),
        Some(json!(0)),
        "it is taken to hang"
    );
    let patched = agent.creations(Some("patched"))?;
    println!("{patched} creations were adjusted");
    stands_apart(testbed)?;
    // Its own pod too, which it leaves alone.
    let known = agent.ledger()?["pods"].as_array().map(Vec::len);
    assert_eq!(known, Some(pods.len() + 1));
    Ok(patched > 3.5 || front != Front::Nri)
}

#[test]
fn the_manifests_pod_is_the_plugin_of_containerd_1_7() -> Result<()> {
    a_container_serves(ContainerdVersion::V1_7, Front::Nri)
}

#[test]
fn the_manifests_pod_is_the_plugin_of_containerd_2() -> Result<()> {
    a_container_serves(ContainerdVersion::V2, Front::Nri)
}

#[test]
fn the_manifests_pod_watches_a_containerd_1_6_that_has_no_nri() -> Result<()> {
    a_container_serves(ContainerdVersion::V1_6, Front::Watch)
}
