//! A page has every field of a NodeSLO that is looked at, with what it may be. It is printed from what the
//! reader asks for, and from its own words about what is none of that.

use super::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, env, fs, io, path::Path};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Set, the page is written anew.
const WRITE: &str = "KOORD_WRITE_DOCS";

/// What has the reader look at everything: some of it is looked at only if this is said.
fn spec() -> Value {
    json!({
        "hostApplications": [{"name": "nginx", "cgroupPath": {}}],
        "resourceQOSStrategy": {
            "policies": {"netQOSPolicy": "terway-qos"},
            "beClass": {"blkioQOS": {"blocks": [{"type": "device"}]}},
            "cgroupRoot": {"blkioQOS": {"blocks": [
                {"type": "device", "ioCfg": {"enableUserModel": true}},
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

/// What each field may be, with `CLASS` for those of classes and `[]` for any element, and the classes.
fn fields() -> BTreeMap<String, (String, Vec<String>)> {
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
    let mut fields = BTreeMap::<String, (String, Vec<String>)>::new();
    for path in leaves {
        let expected = expected(&spec, &path);
        let mut steps: Vec<&str> = path.split('.').collect();
        let class = steps.iter_mut().find(|it| it.ends_with("Class"));
        let class = class.map(|step| std::mem::replace(step, "CLASS").to_owned());
        let path = steps.join(".").replace("[0]", "[]");
        let field = fields
            .entry(path)
            .or_insert_with(|| (expected.clone(), Vec::new()));
        assert_eq!(field.0, expected, "of {class:?}");
        field.1.extend(class);
    }
    fields
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
         `proto/src/policy/`; a test fails when the two differ. A wrong value is named by\n\
         `koord-runtime-proxy policy` with its range, names or kind, and costs its field alone, or what is\n\
         nothing without it: a wrong `enable` switches its section off, a block or an application without its\n\
         name is none, a wrong `netQOSPolicy` or `totalNetworkBandwidth` voids all of `networkQOS`, of a model\n\
         all numbers count or none, and a part of the cache that does not end behind its start is the class's\n\
         own (to 30 % for `beClass`, else all). What is not said is as upstream has it. Where the policy comes\n\
         from, and who needs what of it: [configuration.md](configuration.md#the-node-policy).\n\n\
         `CLASS` is one of the classes of the last column. Of `blkioQOS` that of `beClass` and `cgroupRoot`\n\
         alone counts; blocks of another class are refused, as its pods have no directory of their own.\n\
         `networkQOS` is not read with `netQOSPolicy: tc` and no `totalNetworkBandwidth`, nor a model without\n\
         `enableUserModel`. Amounts of the network are bits in a second, of which none is more than\n\
         `totalNetworkBandwidth`; `BPS` are bytes in a second; latencies are microseconds; a rate of 0 is no\n\
         limit. Names and paths are checked further.\n\n\
         | Field | May be | Classes |\n| --- | --- | --- |\n",
    );
    for (path, (expected, classes)) in fields() {
        let classes = classes.iter().map(|it| format!("`{it}`"));
        let classes = match classes.collect::<Vec<_>>() {
            none if none.is_empty() => "–".to_owned(),
            classes => classes.join(", "),
        };
        page += &format!("| `{path}` | {expected} | {classes} |\n");
    }
    page
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
