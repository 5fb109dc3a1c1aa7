//! The figures as a table and as JSON, held against what was promised.

use crate::{
    load::{Kind, Load, Sample},
    nri::{Asked, Nri, Order},
    parts::Target,
    pod_start::PodStarts,
    rest::{PODS, Rest},
    state::{State, median},
};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;
use std::fmt;

const MIB: f64 = 1024.0 * 1024.0;

/// What a plugin knows of when it is measured.
pub(crate) const NRI_CONTAINERS: usize = 5_000;

/// The medians of one target for one kind of call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    target: String,
    p50_us: f64,
    p99_us: f64,
    calls_per_second: f64,
    cpu_us_per_call: Option<f64>,
    /// Of the process on the way, after these calls.
    resident_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Group {
    stack: String,
    kind: String,
    callers: usize,
    rows: Vec<Row>,
}

/// One promise and what was measured.
#[derive(Debug, Serialize)]
struct Promise {
    what: String,
    measured: f64,
    at_most: f64,
    kept: bool,
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    groups: Vec<Group>,
    /// Of each process that was started, before its first load.
    pub(crate) idle_bytes: Vec<u64>,
    state: Option<State>,
    nri: Option<Nri>,
    /// In front of a real containerd.
    real: Vec<Group>,
    /// From manifest to Ready, by a kubelet.
    pub(crate) pod_starts: Vec<PodStarts>,
    rest: Option<Rest>,
    promises: Vec<Promise>,
}

// === impl Row ===

impl Row {
    pub(crate) fn median(target: &Target, samples: &[Sample]) -> Self {
        Self {
            resident_bytes: target.resident_bytes(),
            ..Self::named(&target.name, samples)
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "nanoseconds of one call are far below 2^52"
    )]
    pub(crate) fn named(target: &str, samples: &[Sample]) -> Self {
        let of = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
        let cpu: Vec<f64> = samples.iter().filter_map(|s| s.cpu_us_per_call).collect();
        Self {
            target: target.to_owned(),
            p50_us: of(|s| s.p50_ns as f64 / 1e3),
            p99_us: of(|s| s.p99_ns as f64 / 1e3),
            calls_per_second: of(|s| s.per_second),
            cpu_us_per_call: (!cpu.is_empty()).then(|| median(cpu)),
            resident_bytes: None,
        }
    }
}

// === impl Group ===

impl Group {
    fn of(stack: &impl fmt::Display, kind: Kind, callers: usize, rows: Vec<Row>) -> Self {
        Self {
            stack: stack.to_string(),
            kind: kind.to_string(),
            callers,
            rows,
        }
    }
}

// === impl Report ===

impl Report {
    pub(crate) fn add(&mut self, load: &Load, rows: Vec<Row>) {
        let group = Group::of(&load.stack, load.kind, load.callers, rows);
        self.promises.extend(promises(load.kind, &group));
        self.groups.push(group);
    }

    pub(crate) fn add_real(&mut self, kind: Kind, callers: usize, rows: Vec<Row>) {
        let group = Group::of(&"containerd", kind, callers, rows);
        self.promises.extend(promises(kind, &group));
        self.real.push(group);
    }

    /// The figures of a plugin and what was promised of them: of itself, whatever an echo took.
    pub(crate) fn add_nri(&mut self, nri: Nri) {
        if nri.has_groups {
            self.promises.extend(plugin_promises(&nri));
        }
        self.nri = Some(nri);
    }

    /// The figures of pods that want nothing and what was promised of them.
    pub(crate) fn add_rest(&mut self, rest: Rest) {
        let mut promise = |what: &str, measured, at_most| {
            let what = format!("{PODS} pods {what}");
            self.promises.push(Promise::new(what, measured, at_most));
        };
        promise("at rest, values written", rest.written, 0.0);
        let touched = f64::from(u32::try_from(rest.touched).unwrap_or(u32::MAX));
        promise("at rest, files written as the kernel tells", touched, 0.0);
        promise("at rest, CPU, percent of a core", rest.cpu_percent, 1.0);
        promise("have another policy's values, ms", rest.policy_ms, 200.0);
        self.rest = Some(rest);
    }

    /// The figures of a node full of pods and what was promised of them.
    #[allow(
        clippy::cast_precision_loss,
        reason = "the memory of a process is far below 2^52"
    )]
    pub(crate) fn add_state(&mut self, state: State) {
        let mut promise = |what: &str, measured: f64, at_most: f64| {
            self.promises
                .push(Promise::new(what.to_owned(), measured, at_most));
        };
        let mib = |bytes: u64| bytes as f64 / MIB;
        promise(
            "resident with 1,000 pods, MiB",
            mib(state.resident_bytes),
            16.0,
        );
        promise(
            "resident after 64 callers, MiB",
            mib(state.loaded_bytes),
            20.0,
        );
        promise("exec to first answer, ms", state.first_answer_ms, 100.0);
        promise(
            "exec to first update that arrives adjusted, ms",
            state.first_update_ms,
            1000.0,
        );
        self.state = Some(state);
    }

    /// The promise about a process that has nothing to do yet, once all ends were measured.
    #[allow(
        clippy::cast_precision_loss,
        reason = "the memory of a process is far below 2^52"
    )]
    pub(crate) fn weigh(&mut self) {
        let Some(most) = self.idle_bytes.iter().max() else {
            return;
        };
        let what = "resident idle, MiB".to_owned();
        let measured = *most as f64 / MIB;
        self.promises.push(Promise::new(what, measured, 8.0));
    }
}

/// The same in front of whatever answers.
fn promises(kind: Kind, group: &Group) -> Vec<Promise> {
    let Group {
        stack,
        callers,
        rows,
        ..
    } = group;
    let row = |name: &str| rows.iter().find(|row| row.target == name);
    let (Some(direct), Some(relay), Some(proxy)) = (row("direct"), row("relay"), row("proxy"))
    else {
        return Vec::new();
    };
    let added = |figure: fn(&Row) -> f64| (figure(proxy) - figure(direct)) / figure(direct);
    let times = |figure: fn(&Row) -> f64| figure(proxy) / figure(relay);
    let relayed = |figure: fn(&Row) -> f64| {
        let added = (figure(relay) - figure(direct)) / figure(direct);
        format!("direct round trips added (the relay adds {added:.2})")
    };
    let one = |what: &str, measured, at_most| {
        Promise::new(
            format!("{stack}, {kind}, {callers} caller(s): {what}"),
            measured,
            at_most,
        )
    };
    if *callers > 1 {
        let slower = relay.calls_per_second / proxy.calls_per_second;
        return vec![one("the relay's throughput over ours", slower, 1.0)];
    }
    match kind {
        Kind::Unary => vec![
            one(&(relayed(|r| r.p50_us) + ", p50"), added(|r| r.p50_us), 0.6),
            one(&(relayed(|r| r.p99_us) + ", p99"), added(|r| r.p99_us), 0.8),
        ],
        Kind::Create => vec![
            one(&(relayed(|r| r.p50_us) + ", p50"), added(|r| r.p50_us), 0.8),
            one(&(relayed(|r| r.p99_us) + ", p99"), added(|r| r.p99_us), 1.0),
        ],
        Kind::List => vec![
            one("times the relay, p50", times(|r| r.p50_us), 1.05),
            one("times the relay, p99", times(|r| r.p99_us), 1.2),
        ],
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the memory of a process is far below 2^52"
)]
fn plugin_promises(nri: &Nri) -> Vec<Promise> {
    let asked = nri.asked.iter().filter_map(|it| {
        let (event, pods) = (it.event, it.pods);
        let asked = match it.order {
            Order::Turns => "by turns, as runtimes ask",
            Order::Together => "all at once",
            // Shown beside an echo, for what the machine takes then.
            Order::Churn => return None,
        };
        let what = format!("nri, {event}, {pods} pod(s) {asked}: event in to reply out, p99 µs");
        Some(Promise::new(what, it.row.p99_us, 300.0))
    });
    let what = format!("nri, resident with {NRI_CONTAINERS} containers, MiB");
    let resident = Promise::new(what, nri.resident_bytes as f64 / MIB, 24.0);
    let what = format!("nri, resident with {NRI_CONTAINERS} containers that CRI lists too, MiB");
    let listed = Promise::new(what, nri.listed_bytes as f64 / MIB, 24.0);
    asked.chain([resident, listed]).collect()
}

// === impl Promise ===

impl Promise {
    fn new(what: String, measured: f64, at_most: f64) -> Self {
        Self {
            kept: measured <= at_most,
            what,
            measured,
            at_most,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = styled([
            "ends",
            "call",
            "callers",
            "way",
            "p50 µs",
            "p99 µs",
            "calls/s",
            "CPU µs/call",
            "resident MiB",
        ]);
        for group in &self.groups {
            for row in &group.rows {
                add(&mut table, group, row);
            }
        }
        let (lives, creations): (Vec<_>, Vec<_>) = self
            .nri
            .iter()
            .flat_map(|nri| &nri.asked)
            .partition(|asked| asked.echo.is_some());
        for asked in creations {
            let group = Group {
                stack: "nri".to_owned(),
                kind: asked.event.to_owned(),
                callers: asked.pods,
                rows: Vec::new(),
            };
            add(&mut table, &group, &asked.row);
        }
        for group in &self.real {
            for row in &group.rows {
                add(&mut table, group, row);
            }
        }
        writeln!(f, "{table}")?;
        if !lives.is_empty() {
            writeln!(f, "{}", beside_echo(&lives))?;
        }
        if !self.pod_starts.is_empty() {
            writeln!(f, "{}", starts(&self.pod_starts))?;
        }
        let mut table = styled(["promise", "measured", "at most", ""]);
        for promise in &self.promises {
            table.add_row([
                promise.what.clone(),
                format!("{:.2}", promise.measured),
                format!("{:.2}", promise.at_most),
                if promise.kept { "kept" } else { "MISSED" }.to_owned(),
            ]);
        }
        write!(f, "{table}")
    }
}

fn styled<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn starts(all: &[PodStarts]) -> Table {
    let mut table = styled(["kubelet's way", "pods", "p50 ms", "p95 ms", "most ms"]);
    for starts in all {
        let ms = [starts.p50_ms, starts.p95_ms, starts.most_ms].map(|ms| format!("{ms:.0}"));
        let [p50, p95, most] = ms;
        table.add_row([
            starts.way.to_owned(),
            starts.pods.to_string(),
            p50,
            p95,
            most,
        ]);
    }
    table
}

/// Events beside what the machine takes to ask about them and to answer: what is left is the plugin's,
/// with the kernel's part where it writes.
fn beside_echo(lives: &[&Asked]) -> Table {
    let mut table = styled([
        "nri event",
        "pods",
        "plugin p50 µs",
        "p99 µs",
        "echo p50 µs",
        "p99 µs",
        "difference p50 µs",
    ]);
    for asked in lives {
        let Some(echo) = &asked.echo else {
            continue;
        };
        let plugin = &asked.row;
        let figures = [
            plugin.p50_us,
            plugin.p99_us,
            echo.p50_us,
            echo.p99_us,
            plugin.p50_us - echo.p50_us,
        ];
        let figures = figures.map(|us| format!("{us:.0}"));
        let event = match asked.order {
            Order::Churn => format!("{} amid churn", asked.event),
            Order::Turns | Order::Together => asked.event.to_owned(),
        };
        let cells = [event, asked.pods.to_string()];
        table.add_row(cells.into_iter().chain(figures));
    }
    table
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the memory of a process is far below 2^52"
)]
fn add(table: &mut Table, group: &Group, row: &Row) {
    table.add_row([
        group.stack.clone(),
        group.kind.clone(),
        group.callers.to_string(),
        row.target.clone(),
        format!("{:.0}", row.p50_us),
        format!("{:.0}", row.p99_us),
        format!("{:.0}", row.calls_per_second),
        row.cpu_us_per_call
            .map(|us| format!("{us:.1}"))
            .unwrap_or_default(),
        row.resident_bytes
            .map(|bytes| format!("{:.1}", bytes as f64 / MIB))
            .unwrap_or_default(),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: &str, p50_us: f64, p99_us: f64, calls_per_second: f64) -> Row {
        Row {
            target: target.to_owned(),
            p50_us,
            p99_us,
            calls_per_second,
            cpu_us_per_call: None,
            resident_bytes: None,
        }
    }

    /// A peer is shown beside us and promises nothing.
    #[test]
    fn a_real_runtime_is_held_to_the_limits_of_one_that_answers_at_once() {
        let rows = |proxy| {
            vec![
                row("direct", 100.0, 200.0, 1_000.0),
                row("relay", 110.0, 220.0, 900.0),
                proxy,
                row("peer", 900.0, 900.0, 100.0),
            ]
        };
        let mut report = Report::default();
        let slow = row("proxy", 181.0, 400.0, 900.0);
        report.add_real(Kind::Create, 1, rows(slow.clone()));
        report.add_real(Kind::Unary, 1, rows(row("proxy", 160.0, 361.0, 900.0)));
        report.add_real(Kind::List, 64, rows(slow));
        let weighed: Vec<_> = report
            .promises
            .iter()
            .map(|it| (it.at_most, it.kept))
            .collect();
        let expected = [
            (0.8, false),
            (1.0, true),
            (0.6, true),
            (0.8, false),
            (1.0, true),
        ];
        assert_eq!(weighed, expected);
        let first = "containerd, CreateContainer, 8 KiB, 1 caller(s): direct round trips added";
        assert!(report.promises[0].what.starts_with(first));
        assert_eq!(report.to_string().matches("peer").count(), 3);
    }

    #[test]
    fn questions_at_once_have_the_limit_of_those_by_turns_and_a_miss_of_their_own() {
        let asked = |order, p99_us| Asked {
            event: "CreateContainer",
            pods: 16,
            order,
            row: row("plugin", 100.0, p99_us, 10_000.0),
            echo: None,
        };
        let mut report = Report::default();
        report.add_nri(Nri {
            asked: vec![asked(Order::Turns, 300.0), asked(Order::Together, 301.0)],
            has_groups: true,
            resident_bytes: 17 << 20,
            listed_bytes: 25 << 20,
        });
        let promises = report.promises.iter();
        let kept: Vec<_> = promises.map(|it| (it.what.as_str(), it.kept)).collect();
        let expected = [
            (
                "nri, CreateContainer, 16 pod(s) by turns, as runtimes ask: event in to reply out, p99 µs",
                true,
            ),
            (
                "nri, CreateContainer, 16 pod(s) all at once: event in to reply out, p99 µs",
                false,
            ),
            ("nri, resident with 5000 containers, MiB", true),
            (
                "nri, resident with 5000 containers that CRI lists too, MiB",
                false,
            ),
        ];
        assert_eq!(kept, expected);
        assert_eq!(report.to_string().matches("MISSED").count(), 2);
    }

    fn started(has_groups: bool) -> Nri {
        let started = |order, p99_us| Asked {
            event: "StartContainer",
            pods: 16,
            order,
            row: row("plugin", 390.0, p99_us, 2_000.0),
            echo: Some(row("echo", 61.0, 190.0, 10_000.0)),
        };
        Nri {
            // Of what no node does nothing is promised.
            asked: vec![started(Order::Turns, 301.0), started(Order::Churn, 302.0)],
            has_groups,
            resident_bytes: 17 << 20,
            listed_bytes: 18 << 20,
        }
    }

    #[test]
    fn an_echo_is_shown_beside_the_plugin_and_takes_nothing_off_its_promise() {
        let mut report = Report::default();
        report.add_nri(started(true));
        let promises = report.promises.iter();
        let kept: Vec<_> = promises.map(|it| (it.measured, it.kept)).collect();
        assert_eq!(kept, [(301.0, false), (17.0, true), (18.0, true)]);

        let shown = report.to_string();
        let line = shown.lines().find(|line| line.contains("StartContainer"));
        let cells = line.unwrap().split(['│', '┆']).map(str::trim);
        let cells: Vec<_> = cells.filter(|cell| !cell.is_empty()).collect();
        let expected = ["StartContainer", "16", "390", "301", "61", "190", "329"];
        assert_eq!(cells, expected);
        assert!(shown.contains("StartContainer amid churn"));

        let figures = serde_json::json!(report);
        let asked = &figures["nri"]["asked"][0];
        assert_eq!(asked["row"]["p99_us"], 301.0);
        assert_eq!(asked["echo"]["p99_us"], 190.0);
    }

    #[test]
    fn of_lives_without_control_groups_nothing_is_promised() {
        let mut report = Report::default();
        report.add_nri(started(false));
        assert!(report.promises.is_empty());
        assert!(report.to_string().contains("StartContainer"));
    }
}
