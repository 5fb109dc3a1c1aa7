//! Answers of the admin socket as tables.
//!
//! Only what is printed is read of them, so that a newer proxy may say more. Names come from
//! whoever made the pod, so control characters do not reach the terminal.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ledger {
    #[serde(default)]
    left_settings: Vec<String>,
    pods: Vec<Pod>,
    #[serde(default)]
    node: Vec<NodeGroup>,
    #[serde(default)]
    node_left_out: Vec<LeftOut>,
}

#[derive(Deserialize)]
struct NodeGroup {
    cgroup: String,
    kind: String,
    settings: Vec<Setting>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    namespace: String,
    name: String,
    class: String,
    exempt: Option<String>,
    settings: Vec<Setting>,
    #[serde(default)]
    left_out: Vec<LeftOut>,
    #[serde(default)]
    sandbox_settings: Vec<Setting>,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    settings: Vec<Setting>,
    #[serde(default)]
    left_out: Vec<LeftOut>,
}

#[derive(Deserialize)]
struct LeftOut {
    hook: String,
    reason: String,
}

#[derive(Deserialize)]
struct Setting {
    setting: String,
    asked: Option<String>,
    desired: String,
    owner: String,
    route: String,
    applied: String,
    kernel: Option<String>,
}

const HEADER: [&str; 10] = [
    "POD", "CLASS", "OF", "SETTING", "ASKED", "DESIRED", "HOOK", "VIA", "STATE", "KERNEL",
];

const NODE_HEADER: [&str; 9] = [
    "CGROUP", "OF", "SETTING", "ASKED", "DESIRED", "HOOK", "VIA", "STATE", "KERNEL",
];

/// Characters that a state has at most, with one of space on either side: a longer one goes on below,
/// so that what the kernel has stays in view.
const STATE_WIDTH: u16 = 60;

/// What stands where nothing was said.
const NONE: &str = "-";

/// What stands where it is not known whether the runtime is up.
const UNASKED: &str = "unknown: nobody has asked it";

/// The ledger, a row for each setting: pods, and below them the node, if something is decided for
/// it. Who asked about the node alone gets it alone.
pub(super) fn ledger(json: &str) -> Result<String, serde_json::Error> {
    let ledger: Ledger = serde_json::from_str(json)?;
    let is_node_told = !ledger.node.is_empty() || !ledger.node_left_out.is_empty();
    let node = is_node_told.then(|| node_table(&ledger.node, &ledger.node_left_out));
    let mut text = match (&ledger.pods[..], node) {
        ([], None) => "nothing is decided\n".to_owned(),
        (pods, None) => format!("{}\n", pods_table(pods)),
        ([], Some(node)) => format!("{node}\n"),
        (pods, Some(node)) => format!("{}\n\n{node}\n", pods_table(pods)),
    };
    if !ledger.left_settings.is_empty() {
        let left = printable(&ledger.left_settings.join(", "));
        text += &format!("\nleft to others by --leave-settings: {left}\n");
    }
    Ok(text)
}

fn node_table(groups: &[NodeGroup], left_out: &[LeftOut]) -> Table {
    let mut table = settings_table(NODE_HEADER);
    for LeftOut { hook, reason } in left_out {
        let mut cells = [NONE; NODE_HEADER.len()].map(str::to_owned);
        cells[1] = "(node)".to_owned();
        cells[5] = printable(hook);
        cells[7] = printable(&format!("left out: {reason}"));
        table.add_row(cells);
    }
    for group in groups {
        for setting in &group.settings {
            let named = [&group.cgroup, &group.kind].map(|text| printable(text));
            table.add_row(named.into_iter().chain(cells(setting)));
        }
    }
    table
}

fn pods_table(pods: &[Pod]) -> Table {
    let mut table = settings_table(HEADER);
    for pod in pods {
        let containers = pod
            .containers
            .iter()
            .map(|it| (it.name.as_str(), &it.settings, &it.left_out[..]));
        let groups = [
            ("(pod)", &pod.settings, &pod.left_out[..]),
            ("(sandbox)", &pod.sandbox_settings, &[]),
        ];
        let mut empty = true;
        for (of, settings, left_out) in groups.into_iter().chain(containers) {
            for LeftOut { hook, reason } in left_out {
                let mut cells = [NONE; HEADER.len()].map(str::to_owned);
                cells[0] = full_name(pod);
                cells[1] = or_none(&pod.class);
                cells[2] = printable(of);
                cells[6] = printable(hook);
                cells[8] = printable(&format!("left out: {reason}"));
                table.add_row(cells);
                empty = false;
            }
            for setting in settings {
                let named = [full_name(pod), or_none(&pod.class), printable(of)];
                table.add_row(named.into_iter().chain(cells(setting)));
                empty = false;
            }
        }
        if empty {
            let state = pod.exempt.as_deref().unwrap_or("nothing to set");
            let mut cells = [NONE; HEADER.len()].map(str::to_owned);
            cells[0] = full_name(pod);
            cells[1] = or_none(&pod.class);
            cells[8] = printable(state);
            table.add_row(cells);
        }
    }
    table
}

/// A setting, from its name to what the kernel holds.
fn cells(setting: &Setting) -> [String; 7] {
    let optional = |value: &Option<String>| or_none(value.as_deref().unwrap_or_default());
    [
        printable(&setting.setting),
        optional(&setting.asked),
        or_none(&setting.desired),
        printable(&setting.owner),
        printable(&setting.route),
        printable(&setting.applied),
        optional(&setting.kernel),
    ]
}

/// The status, a row for each thing said. What is not there has none, but that nobody has asked the runtime is
/// not that: a person who looks for it finds it said.
pub(super) fn status(json: &str) -> Result<String, serde_json::Error> {
    let mut said: Value = serde_json::from_str(json)?;
    if let Some(up) = said.get_mut("runtimeUp").filter(|up| up.is_null()) {
        *up = UNASKED.into();
    }
    Ok(things(&said))
}

/// The policy, likewise.
pub(super) fn policy(json: &str) -> Result<String, serde_json::Error> {
    Ok(match serde_json::from_str(json)? {
        Value::Null => "no policy file is named (--node-policy)\n".to_owned(),
        said => things(&said),
    })
}

fn things(said: &Value) -> String {
    let mut table = new_table();
    add_rows(&mut table, "", said);
    format!("{table}\n")
}

/// Objects are told by the path of their keys, list items by their name where they have one. What
/// has nothing but a name is told by it, and what there is not, as a plugin's part on another front, by
/// nothing.
fn add_rows(table: &mut Table, path: &str, value: &Value) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                add_rows(table, &below(key), value);
            }
        }
        Value::Array(items) if items.is_empty() => add_row(table, path, NONE),
        Value::Array(items) => {
            for item in items {
                let alone = item.as_object().is_some_and(|fields| fields.len() == 1);
                match item.get("name").and_then(Value::as_str) {
                    Some(name) if alone => add_row(table, path, name),
                    Some(name) => {
                        let mut item = item.clone();
                        item.as_object_mut().map(|fields| fields.remove("name"));
                        add_rows(table, &below(name), &item);
                    }
                    None => add_rows(table, path, item),
                }
            }
        }
        Value::Null => {}
        Value::String(text) => add_row(table, path, text),
        Value::Bool(_) | Value::Number(_) => add_row(table, path, &value.to_string()),
    }
}

fn add_row(table: &mut Table, path: &str, text: &str) {
    table.add_row([printable(path), or_none(text)]);
}

fn new_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn settings_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = new_table();
    table.set_header(header);
    let state = header.iter().position(|name| *name == "STATE");
    if let Some(state) = state.and_then(|state| table.column_mut(state)) {
        state.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(STATE_WIDTH)));
    }
    table
}

fn full_name(pod: &Pod) -> String {
    printable(&format!("{}/{}", pod.namespace, pod.name))
}

fn or_none(text: &str) -> String {
    match text {
        "" => NONE.to_owned(),
        text => printable(text),
    }
}

fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines without the spaces that fill columns.
    fn lines(table: &str) -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.lines().map(words).collect()
    }

    #[test]
    fn the_ledger_has_a_row_for_each_setting() {
        let json = r#"{"pods": [{
            "uid": "u", "namespace": "default", "name": "be", "class": "BE", "kubeQos": "BestEffort",
            "sandbox": "s", "ready": true,
            "settings": [{"setting": "cpu.bvt_warp_ns", "desired": "-1", "owner": "GroupIdentity",
                          "route": "kernel", "applied": "written", "kernel": "-1"}],
            "sandboxSettings": [],
            "containers": [{"id": "c", "name": "main", "state": "running", "settings": [
                {"setting": "cpu.shares", "asked": "2", "desired": "512", "owner": "BatchResource",
                 "route": "request", "applied": "equal", "kernel": "512"}]}]
        }, {
            "uid": "v", "namespace": "kube-system", "name": "dns", "class": "", "exempt": "skip label",
            "settings": [], "containers": []
        }]}"#;
        assert_eq!(
            lines(&ledger(json).unwrap()),
            [
                "POD CLASS OF SETTING ASKED DESIRED HOOK VIA STATE KERNEL",
                "default/be BE (pod) cpu.bvt_warp_ns - -1 GroupIdentity kernel written -1",
                "default/be BE main cpu.shares 2 512 BatchResource request equal 512",
                "kube-system/dns - - - - - - - skip label -",
            ]
        );
    }

    #[test]
    fn the_node_has_a_table_of_its_own_below_the_pods() {
        let node = r#""node": [{"cgroup": "kubepods/burstable", "kind": "burstable pods", "settings":
            [{"setting": "cpu.bvt_warp_ns", "asked": "0", "desired": "2", "owner": "GroupIdentity",
              "route": "kernel", "applied": "written", "kernel": "2"}]}]"#;
        let rows = [
            "CGROUP OF SETTING ASKED DESIRED HOOK VIA STATE KERNEL",
            "kubepods/burstable burstable pods cpu.bvt_warp_ns 0 2 GroupIdentity kernel written 2",
        ];
        let alone = ledger(&format!(r#"{{"pods": [], {node}}}"#)).unwrap();
        assert_eq!(lines(&alone), rows);
        let pod = r#"{"namespace": "default", "name": "web", "class": "LS", "settings": [],
                      "containers": []}"#;
        let both = ledger(&format!(r#"{{"pods": [{pod}], {node}}}"#)).unwrap();
        let both = lines(&both);
        assert_eq!(both[1], "default/web LS - - - - - - nothing to set -");
        assert_eq!(both[2..], ["", rows[0], rows[1]]);
    }

    #[test]
    fn a_hook_that_failed_for_the_node_is_told_above_its_groups() {
        let failed = r#""nodeLeftOut": [{"hook": "CPUSetAllocator", "reason": "no usable CPU"}]"#;
        let row = "- (node) - - - CPUSetAllocator - left out: no usable CPU -";
        let alone = ledger(&format!(r#"{{"pods": [], "node": [], {failed}}}"#)).unwrap();
        assert_eq!(lines(&alone)[1..], [row]);
        let group = r#"{"cgroup": "kubepods", "kind": "all pods", "settings":
            [{"setting": "cpu.idle", "desired": "0", "owner": "-", "route": "kernel", "applied": "written"}]}"#;
        let both = ledger(&format!(r#"{{"pods": [], "node": [{group}], {failed}}}"#)).unwrap();
        assert_eq!(
            lines(&both)[1..],
            [row, "kubepods all pods cpu.idle - 0 - kernel written -"]
        );
    }

    #[test]
    fn a_hook_that_failed_is_told_where_its_values_would_be() {
        let json = r#"{"pods": [{"namespace": "default", "name": "web", "class": "BE", "settings": [],
            "leftOut": [{"hook": "BatchResource", "reason": "text is not JSON"}],
            "containers": [{"name": "main", "settings": [],
                            "leftOut": [{"hook": "BatchResource", "reason": "text is not JSON"}]}]}]}"#;
        assert_eq!(
            lines(&ledger(json).unwrap())[1..],
            [
                "default/web BE (pod) - - - BatchResource - left out: text is not JSON -",
                "default/web BE main - - - BatchResource - left out: text is not JSON -",
            ]
        );
    }

    #[test]
    fn a_long_state_goes_on_below_and_does_not_widen_the_table() {
        let reason = "node.koordinator.sh/extended-resource-spec cannot be used: the value at \
                      containers.main.limits is a list, and an object is expected";
        let setting = r#"{"setting": "cpu.shares", "asked": "2", "desired": "512", "owner": "Other",
                          "route": "kernel", "applied": "written", "kernel": "512"}"#;
        let json = format!(
            r#"{{"pods": [{{"namespace": "default", "name": "web", "class": "BE",
                "settings": [{setting}], "containers": [],
                "leftOut": [{{"hook": "BatchResource", "reason": "{reason}"}}]}}]}}"#
        );
        let table = ledger(&json).unwrap();
        assert_eq!(
            lines(&table)[1..],
            [
                "default/web BE (pod) - - - BatchResource - left out: \
                 node.koordinator.sh/extended-resource-spec -",
                "cannot be used: the value at containers.main.limits is a",
                "list, and an object is expected",
                "default/web BE (pod) cpu.shares 2 512 Other kernel written 512",
            ]
        );
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|width| width < 160), "{table}");
    }

    #[test]
    fn what_is_left_to_others_is_told_below() {
        let json = r#"{"pods": [], "node": [], "leftSettings": ["cpuset.cpus", "cpu.idle"]}"#;
        let expected = "nothing is decided\n\n\
                        left to others by --leave-settings: cpuset.cpus, cpu.idle\n";
        assert_eq!(ledger(json).unwrap(), expected);
    }

    #[test]
    fn the_status_has_a_row_for_each_thing() {
        let json = r#"{"mode": "enforce", "runtimeUp": true, "remarks": ["one", "two"],
            "hooks": [{"name": "BatchResource"}, {"name": "GroupIdentity", "unsupported": "no"}],
            "feed": null, "policy": {"inForce": [], "error": null}}"#;
        assert_eq!(
            lines(&status(json).unwrap()),
            [
                "hooks BatchResource",
                "hooks.GroupIdentity.unsupported no",
                "mode enforce",
                "policy.inForce -",
                "remarks one",
                "remarks two",
                "runtimeUp true",
            ]
        );
    }

    #[test]
    fn that_it_is_unknown_whether_the_runtime_is_up_is_said() {
        let json = r#"{"mode": "pass-through", "runtime": null, "runtimeUp": null}"#;
        assert_eq!(
            lines(&status(json).unwrap()),
            [
                "mode pass-through",
                "runtimeUp unknown: nobody has asked it",
            ]
        );
    }

    #[test]
    fn what_there_is_nothing_of_is_said_so() {
        let ledger = ledger(r#"{"pods": [], "node": []}"#).unwrap();
        assert_eq!(ledger, "nothing is decided\n");
        let policy = policy("null").unwrap();
        assert_eq!(policy, "no policy file is named (--node-policy)\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let table = status(r#"{"mode": "\u001b[2J\nrm"}"#).unwrap();
        assert_eq!(lines(&table), ["mode \u{fffd}[2J\u{fffd}rm"]);
    }
}
