//! A page has every field of a NodeSLO that is looked at, with what it may be. It is printed from what the
//! reader asks for, and from its own words about what is none of that.

use super::*;
use crate::policy::place::Object;
use serde_json::{Value, json};
use std::{cell::RefCell, collections::BTreeMap, env, fs, io, path::Path};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Set, the page is written anew.
const WRITE: &str = "KOORD_WRITE_DOCS";

/// What people may begin with.
const EXAMPLE: &str = "\
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata:
  name: node-1 # what the node is called
spec:
  # Containers may save up CPU time, for use beyond their limit (CPUBurst).
  cpuBurstStrategy: {policy: cpuBurstOnly}
  resourceQOSStrategy:
    # Different pods share no core, and best-effort ones run while others leave time (CoreSched).
    policies: {cpuPolicy: coreSched}
    lsClass:
      cpuQOS: {enable: true}
      resctrlQOS: {enable: true}
    beClass:
      cpuQOS: {enable: true, schedIdle: 1}
      # They use less than a third of the cache, and half of the bandwidth to memory (RdtResctrl).
      resctrlQOS: {enable: true, catRangeEndPercent: 30, mbaPercent: 50}
      # Together they write 50 MiB a second to this disk (BlkIOReconcile).
      blkioQOS:
        enable: true
        blocks:
        - {type: device, name: /dev/vdb, ioCfg: {writeBPS: 52428800}}
";

/// What has the reader look at everything: some of it is looked at, or counts, only if this is said.
fn spec() -> Value {
    json!({
        "hostApplications": [{"name": "nginx", "cgroupPath": {"relativePath": "nginx"}}],
        "resourceQOSStrategy": {
            "policies": {"netQOSPolicy": "terway-qos"},
            "beClass": {"blkioQOS": {"blocks": [{"type": "device", "name": "sda"}]}},
            "cgroupRoot": {"blkioQOS": {"blocks": [
                {"type": "device", "name": "sda", "ioCfg": {
                    "enableUserModel": true,
                    "modelReadBPS": 7, "modelReadSeqIOPS": 7, "modelReadRandIOPS": 7,
                    "modelWriteBPS": 7, "modelWriteSeqIOPS": 7, "modelWriteRandIOPS": 7,
                }},
            ]}},
        },
    })
}

/// The places below `spec` that are looked at, and the issues there are.
fn read(spec: &Value) -> (Vec<String>, Vec<String>) {
    asked::take();
    let (_, issues) = slo_issues(&spec.to_string());
    let below = |path: String| path.strip_prefix("spec.").map(str::to_owned);
    let looked_at = asked::take().into_iter().filter_map(below);
    // Of other classes it is looked at only for refusing it.
    let is_refused = |path: &String| path.contains("Class.blkioQOS") && !path.contains("beClass");
    (looked_at.filter(|it| !is_refused(it)).collect(), issues)
}

/// The same with this at that place.
fn with(spec: &Value, path: &str, value: Value) -> Value {
    let mut whole = spec.clone();
    let mut at = &mut whole;
    for step in path.split('.') {
        let (key, is_element) = step
            .strip_suffix("[0]")
            .map_or((step, false), |it| (it, true));
        at = &mut at[key];
        if is_element {
            at = &mut at[0];
        }
    }
    *at = value;
    whole
}

/// What is said at a place of a value that it cannot be.
fn refused(spec: &Value, path: &str, value: Value) -> Option<String> {
    let (_, issues) = read(&with(spec, path, value));
    let begin = format!("\"spec.{path}\": value ");
    let issue = issues
        .into_iter()
        .find_map(|it| Some(it.strip_prefix(&begin)?.to_owned()));
    issue.map(|it| {
        it.split_once(", not ")
            .map_or(it.clone(), |(_, expected)| expected.to_owned())
    })
}

/// A field, of one class or of several.
struct Field {
    expected: String,
    /// Its classes, each with what is so where nothing is said, if that can be said.
    classes: Vec<(Option<String>, Option<String>)>,
}

/// Each field, with `CLASS` for those of classes and `[]` for any element.
fn fields() -> BTreeMap<String, Field> {
    let (spec, leaves) = everything();
    let mut fields = BTreeMap::<String, Field>::new();
    for path in leaves {
        let expected = expected(&spec, &path);
        let default = default(&spec, &path, &expected);
        let mut steps: Vec<&str> = path.split('.').collect();
        let class = steps.iter_mut().find(|it| it.ends_with("Class"));
        let class = class.map(|step| std::mem::replace(step, "CLASS").to_owned());
        let path = steps.join(".").replace("[0]", "[]");
        let field = fields.entry(path).or_insert_with(|| Field {
            expected: expected.clone(),
            classes: Vec::new(),
        });
        assert_eq!(field.expected, expected, "of {class:?}");
        field.classes.push((class, default));
    }
    fields
}

/// A spec in which all is looked at and counts, and the places in it that hold no further ones.
fn everything() -> (Value, Vec<String>) {
    let mut spec = spec();
    // What holds fields is filled until there is nothing more to look at.
    let (mut known, mut leaves) = (Vec::new(), Vec::new());
    while let Some(path) = read(&spec).0.into_iter().find(|it| !known.contains(it)) {
        let (before, _) = read(&spec);
        let of = |value: Value| {
            let filled = with(&spec, &path, value);
            let more = read(&filled).0.len() > before.len();
            more.then_some(filled)
        };
        let is_filled = before.iter().any(|it| {
            let rest = it.strip_prefix(&path);
            rest.is_some_and(|rest| rest.starts_with(['.', '[']))
        });
        match of(json!({})).or_else(|| of(json!([{}]))) {
            _ if is_filled => {}
            Some(filled) => spec = filled,
            None => leaves.push(path.clone()),
        }
        known.push(path);
    }
    for path in leaves.iter().filter(|it| it.ends_with(".enable")) {
        spec = with(&spec, path, json!(true));
    }
    (spec, leaves)
}

/// What says the same as nothing; `None` where no number, name or switch does.
fn default(spec: &Value, path: &str, expected: &str) -> Option<String> {
    let taken = |value: &Value| {
        let root = json!({"spec": with(spec, path, value.clone())});
        let issues = RefCell::default();
        let object = Object::new("NodeSLO", "node-1", &root, &issues);
        NodeSloSpec::read(&object.root().section("spec"))
    };
    let unsaid = taken(&Value::Null);
    let said = candidates(expected).find(|it| taken(it) == unsaid)?;
    Some(
        said.as_str()
            .map_or_else(|| said.to_string(), str::to_owned),
    )
}

/// Values that a field may have: all that there are, but of numbers those up to the largest default.
fn candidates(expected: &str) -> Box<dyn Iterator<Item = Value>> {
    if expected == "a boolean" {
        return Box::new([false, true].into_iter().map(Value::from));
    }
    if let Some(names) = expected.strip_prefix("one of ") {
        let names: Vec<_> = names.split(", ").map(Value::from).collect();
        return Box::new(names.into_iter());
    }
    let Some(range) = expected.strip_prefix("a whole number from ") else {
        return Box::new([].into_iter());
    };
    let (min, max) = range.split_once(" to ").expect("a range");
    let max = max.split_once(':').map_or(max, |(max, _)| max);
    let [min, max] = [min, max].map(|it| it.parse::<i64>().expect("a number"));
    Box::new((min..=max.min(3_000)).map(Value::from))
}

/// In the reader's own words.
fn expected(spec: &Value, path: &str) -> String {
    let of_type = refused(spec, path, json!([]));
    let of_text = refused(spec, path, json!("?"));
    match of_text {
        Some(it) if it.starts_with("\"?\" is none of ") => {
            it.replace("\"?\" is none of ", "one of ")
        }
        Some(it) if it.starts_with("is no quantity") => {
            let of_type = of_type.expect("a list is no quantity");
            let quantity = "a quantity";
            match of_type.starts_with(quantity) {
                true => of_type,
                false => format!("{of_type}: percent; or {quantity} as text"),
            }
        }
        _ => of_type.unwrap_or_else(|| panic!("{path} takes a list")),
    }
}

fn page() -> String {
    let mut page = String::from(
        "# The fields of a NodeSLO\n\n\
         Every field of a NodeSLO that is looked at, below `spec`. This page is printed from what reads it, in\n\
         `proto/src/policy/`; a test fails when the two differ. Where the policy comes from, and who needs what\n\
         of it: [configuration.md](configuration.md#the-node-policy).\n\n\
         A policy to begin with. In brackets is the hook, most of which have to be switched on\n\
         ([hook-requirements.md](hook-requirements.md)):\n\n\
         ```yaml\n",
    );
    page += EXAMPLE;
    page += "```\n\n\
         A wrong value is named by `koord-runtime-proxy policy` with its range, names or kind, and counts as not\n\
         said. It costs more than its field where something is nothing without that:\n\n\
         - a wrong `enable` switches its section off;\n\
         - a block without a right `name` and `type` is none, nor is an application without a `name`, or with a\n  \
           `qos` or something in its `cgroupPath` that is wrong;\n\
         - a wrong `netQOSPolicy` or `totalNetworkBandwidth` voids all of `networkQOS`;\n\
         - of a model all numbers count or none;\n\
         - of applications, and of blocks in one section, the first 256 count;\n\
         - a part of the cache that does not end behind its start is the class's own.\n\n\
         `CLASS` is one of the classes of the last column. Of `systemClass` memory alone counts: as upstream, no\n\
         hook treats CPU time or caches of these pods by their class. Of `blkioQOS` that of `beClass` and\n\
         `cgroupRoot` alone counts; blocks of another class are refused, as its pods have no directory of\n\
         their own. `networkQOS` is not read with `netQOSPolicy: tc` and no `totalNetworkBandwidth`, nor a\n\
         model without `enableUserModel`.\n\n\
         `groupIdentity` counts under `cpuPolicy: groupIdentity` on kernels with `cpu.bvt_warp_ns`; `schedIdle`\n\
         and `coreExpeller` under `coreSched`; what begins with `wmark`, `priority` or `pageCache` on kernels\n\
         that have it, of Anolis and Alibaba Cloud; `ioWeightPercent`, latencies and models on kernels with\n\
         io.cost.\n\n\
         Amounts of the network are bits in a second, of which none is more than `totalNetworkBandwidth`; with\n\
         `tc` an `egressRequest` is also no more than its `egressLimit`, and that of `beClass` than what that\n\
         of `lsClass` leaves. `BPS` are bytes in a second; latencies are microseconds; a rate or an amount of 0\n\
         is no limit, and nothing that is kept. Names and paths are checked further. What is so by default is\n\
         so where the section is enabled.\n\n\
         | Field | May be | By default | Classes |\n| --- | --- | --- | --- |\n";
    for (path, Field { expected, classes }) in fields() {
        let default = by_class(&classes);
        let classes = classes.into_iter().filter_map(|(class, _)| class);
        let classes: Vec<_> = classes.map(|it| format!("`{it}`")).collect();
        let classes = match &*classes {
            [] => "–".to_owned(),
            classes => classes.join(", "),
        };
        page += &format!("| `{path}` | {expected} | {default} | {classes} |\n");
    }
    page
}

/// What is so by default, and of which classes if not of all.
fn by_class(classes: &[(Option<String>, Option<String>)]) -> String {
    let mut whose = BTreeMap::<&str, Vec<&str>>::new();
    for (class, default) in classes {
        let of = whose.entry(default.as_deref().unwrap_or("–")).or_default();
        of.extend(class.as_deref());
    }
    if whose.len() == 1 {
        return whose.into_keys().collect();
    }
    let mut whose: Vec<_> = whose.into_iter().collect();
    whose.sort_by_key(|(_, classes)| classes.len());
    let told = whose.iter().map(|(default, classes)| {
        let classes: Vec<_> = classes.iter().map(|it| format!("`{it}`")).collect();
        format!("{default} ({})", classes.join(", "))
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Who begins with it finds nothing wrong, and something in force.
#[test]
fn the_example_of_the_page_is_right() {
    let parsed = parsed(EXAMPLE);
    assert_eq!(issues(&parsed), [""; 0]);
    let slo = parsed.policy.slo.unwrap();
    assert_eq!(slo.cpu_burst_strategy.policy, CpuBurstPolicy::CpuBurstOnly);
    let strategy = slo.resource_qos_strategy;
    assert_eq!(strategy.cpu_policy, CpuPolicy::CoreSched);
    assert_eq!(
        strategy.be_class.cpu_qos,
        cpu_qos(true, -1, true, false).cpu_qos
    );
    assert_eq!(strategy.be_class.resctrl_qos, resctrl_qos(0, 30, 50));
    assert_eq!(slo.block_qos.best_effort.len(), 1);
}

#[test]
fn every_field_that_is_looked_at_is_on_the_page() -> io::Result<()> {
    let path = Path::new(ROOT).join("docs/node-policy.md");
    let page = page();
    if env::var_os(WRITE).is_some() {
        write(&path, &page)?;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/node-policy.md is not what is read; write it anew:\n\
         {WRITE}=1 cargo test -p koord-proto --lib policy::tests::page"
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a page under version control, written on demand"
)]
fn write(path: &Path, page: &str) -> io::Result<()> {
    fs::write(path, page)
}
