//! The demo as its user runs it: the same table by each front, which is README's; a status that tells of
//! a wrong value; and nothing left behind, also when it is interrupted.

use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Node, binary, classes, demo, promise};
use koord_testkit::{ContainerdVersion, poll::wait_until, process::is_running};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    env,
    fs::{self, Permissions},
    io::{BufRead as _, BufReader},
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// From its start to its end, cleaning up included, as promised; a tenth of it is usual.
const WARM: Duration = Duration::from_secs(30);

const CLEANS: &str = "cleaning up, which takes some seconds";
const INTERRUPTED: &str = "interrupted; cleaning up, which takes some seconds";

/// Starts it as a terminal does: an interrupt reaches its whole process group.
fn start(front: &str) -> Result<Child> {
    let mut command = Command::new(binary("demo")?);
    command.arg(front).process_group(0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("start the demo")
}

/// The lines from the table's upper edge to its lower one.
fn table(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| !line.starts_with('┌'));
    let mut rows: Vec<_> = lines
        .take_while(|line| line.starts_with(['┌', '│', '╞', '└']))
        .collect();
    if let Some(edge) = rows.iter().position(|line| line.starts_with('└')) {
        rows.truncate(edge + 1);
    }
    rows
}

/// What bears the name of a testbed that this process made: members of its control groups, mounts,
/// control groups and directories.
fn traces(owner: u32) -> Result<Vec<String>> {
    // A number follows, and no other process has this one's.
    let name = format!("ktb-{owner}-");
    let mut traces = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let groups = fs::read_to_string(process.path().join("cgroup")).unwrap_or_default();
        let pid = process.file_name().to_string_lossy().parse().ok();
        if pid.is_some_and(is_running) {
            let ours = groups.lines().filter(|group| group.contains(&name));
            traces.extend(ours.map(|group| format!("process {pid:?} in {group}")));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let ours = mounts.lines().filter(|mount| mount.contains(&name));
    traces.extend(ours.map(str::to_owned));
    let hierarchies = fs::read_dir("/sys/fs/cgroup")?.flatten();
    let mut places: Vec<_> = hierarchies.map(|it| it.path()).collect();
    places.extend([env::temp_dir(), "/sys/fs/cgroup".into()]);
    for place in places.iter().filter(|it| it.is_dir()) {
        let entries = fs::read_dir(place)?.flatten();
        let ours = entries.filter(|it| it.file_name().to_string_lossy().starts_with(&name));
        traces.extend(ours.map(|it| it.path().display().to_string()));
    }
    Ok(traces)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn each_front_prints_the_table_of_the_readme_and_leaves_nothing() -> Result<()> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme)?;
    // Its edges, the header, and a row for each of the 15 values.
    assert_eq!(table(&readme).len(), 19);
    for front in ["cri", "nri", "watch"] {
        let demo = start(front)?;
        let owner = demo.id();
        let Output {
            status,
            stdout,
            stderr,
        } = demo.wait_with_output()?;
        ensure!(status.success(), "{front}: {status}: {}", text(&stderr));
        assert_eq!(table(&text(&stdout)), table(&readme), "{front}");
        assert_eq!(traces(owner)?, Vec::<String>::new(), "{front}");
    }
    Ok(())
}

#[test]
fn the_demo_takes_seconds_once_all_that_it_needs_is_there() -> Result<()> {
    let run = || -> Result<()> {
        let output = start("cri")?.wait_with_output()?;
        ensure!(output.status.success(), "{}", text(&output.stderr));
        Ok(())
    };
    // Unpacks what is not there yet.
    run()?;
    let begun = Instant::now();
    run()?;
    promise::within("the demo, started again", begun.elapsed(), WARM)
}

#[tokio::test]
async fn a_value_that_is_not_what_it_should_be_fails_the_demo() -> Result<()> {
    let node = Node::start(ContainerdVersion::V1_7, demo::options(Front::Cri)?)?;
    let mut pod = classes::be("batch");
    let shares = &mut pod.expected[3];
    assert_eq!((shares.setting, &*shares.v1), ("cpu.shares", "512"));
    shares.v1 = "513".to_owned();
    // The ledger has another word for what was asked.
    let memory = &mut pod.expected[5];
    assert_eq!(
        (memory.setting, &*memory.asked),
        ("memory.limit_in_bytes", "default")
    );
    memory.asked = "-".to_owned();
    let failed = demo::show(&node, &[pod]).await.map_err(|it| it.to_string());
    let expected = "2 of 6 values are not what they should be";
    assert_eq!(failed, Err(expected.to_owned()));
    Ok(())
}

#[test]
fn what_fails_the_demo_is_told_and_is_its_status() -> Result<()> {
    let output = start("docker")?.wait_with_output()?;
    assert_eq!(output.status.code(), Some(1));
    let expected = "demo failed: no front docker; cri, nri or watch\n";
    assert_eq!(text(&output.stderr), expected);
    Ok(())
}

#[test]
fn a_demo_whose_reader_stops_fails_and_leaves_nothing() -> Result<()> {
    let mut demo = start("cri")?;
    let owner = demo.id();
    let mut first = String::new();
    BufReader::new(demo.stdout.take().context("its output")?).read_line(&mut first)?;
    assert!(first.contains("behind koord-runtime-proxy at "), "{first}");
    let output = demo.wait_with_output()?;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert_eq!(
        said,
        format!("{CLEANS}\ndemo failed: Broken pipe (os error 32)\n")
    );
    assert_eq!(traces(owner)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn the_demo_says_what_it_does_and_starts_nothing() -> Result<()> {
    for flag in ["-h", "--help"] {
        let output = start(flag)?.wait_with_output()?;
        assert_eq!(output.status.code(), Some(0));
        let said = text(&output.stdout);
        assert!(said.contains("usage: demo [cri|nri|watch]"), "{said}");
        assert_eq!(text(&output.stderr), "");
    }
    Ok(())
}

#[test]
fn a_demo_without_root_says_so_before_anything_is_fetched() -> Result<()> {
    // What is built may lie where nobody else can look.
    let dir = tempfile::tempdir()?;
    fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
    let (demo, cache) = (dir.path().join("demo"), dir.path().join("cache"));
    fs::copy(binary("demo")?, &demo)?;
    fs::create_dir(&cache)?;
    chown(&cache, Some(65_534), Some(65_534))?;
    let mut command = Command::new(&demo);
    command.uid(65_534).gid(65_534).current_dir("/");
    let output = command.env("KOORD_TEST_CACHE", &cache).output()?;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "demo failed: containerd 1.7 needs root, for its control groups and mounts\n"
    );
    assert_eq!(fs::read_dir(&cache)?.count(), 0);
    Ok(())
}

#[test]
fn the_machine_for_people_says_what_it_is_and_starts_nothing() -> Result<()> {
    for flag in ["-h", "--help"] {
        let output = Command::new(binary("vm")?).arg(flag).output()?;
        assert_eq!(output.status.code(), Some(0));
        let said = text(&output.stdout);
        assert!(said.contains("usage: vm [1|2]"), "{said}");
        assert_eq!(text(&output.stderr), "");
    }
    Ok(())
}

/// Reads what it says of errors and of cleaning up, up to this line. What is returned has to be kept: it
/// fails where nobody takes its words.
fn says(demo: &mut Child, line: &str) -> Result<BufReader<ChildStderr>> {
    let stderr = demo.stderr.take().context("its standard error is ours")?;
    let mut stderr = BufReader::new(stderr);
    let mut said = String::new();
    while !said.lines().any(|it| it == line) {
        let length = stderr.read_line(&mut said)?;
        ensure!(length > 0, "it does not say {line:?}: {said}");
    }
    Ok(stderr)
}

#[test]
fn an_interrupted_demo_leaves_nothing() -> Result<()> {
    let mut demo = start("cri")?;
    let owner = demo.id();
    wait_until("a container of a pod runs", || {
        traces(owner).is_ok_and(|all| all.iter().any(|it| it.contains("/kubepods/")))
    });
    kill_process_group(Pid::from_child(&demo), Signal::INT)?;
    let _stderr = says(&mut demo, INTERRUPTED)?;
    assert_ne!(traces(owner)?, Vec::<String>::new(), "it is told late");
    let Output { status, .. } = demo.wait_with_output()?;
    assert_eq!(status.code(), Some(130));
    assert_eq!(traces(owner)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_demo_that_is_interrupted_while_it_cleans_up_says_so_by_its_status() -> Result<()> {
    let mut demo = start("cri")?;
    let owner = demo.id();
    let _stderr = says(&mut demo, CLEANS)?;
    assert_ne!(traces(owner)?, Vec::<String>::new(), "it is told late");
    kill_process_group(Pid::from_child(&demo), Signal::INT)?;
    let Output { status, stdout, .. } = demo.wait_with_output()?;
    let all_right = "all 15 values are what they should be\n";
    assert!(text(&stdout).ends_with(all_right));
    assert_eq!(status.code(), Some(130));
    assert_eq!(traces(owner)?, Vec::<String>::new());
    Ok(())
}
