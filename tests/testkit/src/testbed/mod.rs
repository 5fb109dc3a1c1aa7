//! One private place for a test's processes and files, which disappears with its owner.
//!
//! A testbed is a short directory, a cgroup root of the same name in every hierarchy, and a janitor.
//! Everything that could be left behind is found by these two: processes are started inside of the
//! cgroup root, mounts and files lie below the directory.
//!
//! Cleaning has one way for all ends. The janitor is a shell script in a process group of its own
//! that waits for the end of a pipe; the kernel closes the pipe when the owner drops the testbed,
//! returns, panics, gets SIGINT or is killed with -9. A parent-death signal would reach only direct
//! children and could not unmount; a signal handler does not survive SIGKILL. Should the janitor be
//! killed as well, the next testbed of this user finds its lock free and does the work.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::cgroup::{self, CgroupHierarchy};
use crate::setup::{Cache, SetupError};

const JANITOR: &str = include_str!("janitor.sh");

/// Moves itself into the cgroups before `--`, then becomes the program behind it: the process is
/// a member from its first instruction on, and keeps its id.
const ENTER: &str = r#"while [ "$1" != -- ]; do
    echo $$ >"$1/cgroup.procs" || exit 125
    shift
done
shift
exec "$@""#;

/// Why a testbed could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// There is no place for the registry of living testbeds.
    #[error("no registry of testbeds")]
    Registry(#[from] SetupError),
    /// A file, directory or cgroup could not be made or read.
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The janitor did not start.
    #[error("cannot start the janitor")]
    Janitor(#[source] io::Error),
}

impl TestbedError {
    pub(crate) fn file(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}

/// A directory, a cgroup root and every process started in it; see the module.
///
/// Dropping it waits until all of that is gone, and panics with the list of what is not.
#[derive(Debug)]
pub struct Testbed {
    name: String,
    directory: PathBuf,
    hierarchies: Vec<CgroupHierarchy>,
    /// Where processes are started: cgroups that count and never limit.
    entrances: Vec<PathBuf>,
    janitor: Janitor,
}

impl Testbed {
    /// Makes a testbed, after clearing away what killed owners with killed janitors left.
    ///
    /// # Errors
    ///
    /// When a directory or cgroup cannot be made; needs root.
    pub fn new() -> Result<Self, TestbedError> {
        let registry = Registry::open()?;
        registry.reap_abandoned()?;
        let (name, lock) = registry.enter()?;
        let directory = directory(&name);
        let janitor = Janitor::start(&registry, &name, lock)?;

        let hierarchies = cgroup::hierarchies().map_err(TestbedError::file(
            "read",
            Path::new("/proc/self/mountinfo"),
        ))?;
        let mut entrances = Vec::new();
        for hierarchy in hierarchies.iter().filter(|it| it.only_counts()) {
            let entrance = hierarchy.mount_point().join(&name).join("runtime");
            fs::create_dir_all(&entrance).map_err(TestbedError::file("create", &entrance))?;
            entrances.push(entrance);
        }
        Ok(Self {
            name,
            directory,
            hierarchies,
            entrances,
            janitor,
        })
    }

    /// The directory for files and sockets: short, for a socket's path ends at 107 bytes.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The cgroup below which everything of this testbed belongs, as a path below each hierarchy,
    /// such as `/ktb-4711-0`.
    pub fn cgroup_root(&self) -> String {
        format!("/{}", self.name)
    }

    /// The mounted cgroup hierarchies.
    pub fn hierarchies(&self) -> &[CgroupHierarchy] {
        &self.hierarchies
    }

    /// A command that will run `program` as part of this testbed: in its cgroup, and in a process
    /// group of its own, so that an interrupt at the terminal reaches the owner alone.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "testbed"]);
        command.args(&self.entrances);
        command.arg("--").arg(program.as_ref());
        command.process_group(0);
        command
    }

    /// Clears everything away and returns what could not be removed, one line each.
    pub fn remove(mut self) -> Vec<String> {
        self.janitor.finish()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let left = self.janitor.finish();
        if left.is_empty() {
            return;
        }
        let report = format!("left behind by testbed {}: {}", self.name, left.join(", "));
        if std::thread::panicking() {
            eprintln!("{report}");
        } else {
            panic!("{report}");
        }
    }
}

fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

/// The script that runs until its standard input ends, and the ends of the pipes to it.
#[derive(Debug)]
struct Janitor {
    process: Child,
    owner: Option<ChildStdin>,
    report: BufReader<ChildStdout>,
}

impl Janitor {
    fn start(registry: &Registry, name: &str, lock: File) -> Result<Self, TestbedError> {
        let mut process = Self::command(registry, name, lock)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(TestbedError::Janitor)?;
        let (Some(owner), Some(report)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(TestbedError::Janitor(io::ErrorKind::BrokenPipe.into()));
        };
        let mut report = BufReader::new(report);
        let mut ready = String::new();
        report
            .read_line(&mut ready)
            .map_err(TestbedError::Janitor)?;
        Ok(Self {
            process,
            owner: Some(owner),
            report,
        })
    }

    fn command(registry: &Registry, name: &str, lock: File) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", JANITOR, "janitor"]);
        command.arg(directory(name));
        command.arg(format!("/{name}"));
        command.arg(&registry.path).arg(registry.lock_path(name));
        command.stderr(lock).process_group(0);
        command
    }

    /// Lets the janitor work and returns its lines; empty when called again.
    fn finish(&mut self) -> Vec<String> {
        if self.owner.take().is_none() {
            return Vec::new();
        }
        let mut left = String::new();
        let read = self.report.read_to_string(&mut left);
        let ended = self.process.wait();
        let mut lines: Vec<String> = left.lines().map(str::to_owned).collect();
        if let Err(error) = read.and(ended) {
            lines.push(format!("all of it, the janitor failed: {error}"));
        }
        lines
    }
}

/// The number after the one in `file`, which holds it from now on. Not a number: counts from 0.
fn next_number(file: &mut File) -> io::Result<u32> {
    let mut last = Vec::new();
    file.read_to_end(&mut last)?;
    let last = std::str::from_utf8(&last).ok();
    let next = last
        .and_then(|it| it.trim().parse().ok())
        .map_or(0, |last: u32| last.wrapping_add(1));
    file.set_len(0)?;
    file.write_all(format!("{next}\n").as_bytes())?;
    file.rewind()?;
    Ok(next)
}

/// What was made, or `None` where something of that name was there already.
fn unless_there<T>(made: io::Result<T>) -> io::Result<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// The living testbeds: one locked file each. A file whose lock is free has lost owner and janitor.
#[derive(Debug)]
struct Registry {
    path: PathBuf,
}

impl Registry {
    fn open() -> Result<Self, TestbedError> {
        let path = Cache::open()?.directory("testbeds")?;
        Ok(Self { path })
    }

    fn lock_path(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.testbed"))
    }

    /// Held while names come and go, never while a janitor works.
    fn lock(&self) -> Result<File, TestbedError> {
        let path = self.path.join("registry.lock");
        let file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(TestbedError::file("open", &path))?;
        file.lock().map_err(TestbedError::file("lock", &path))?;
        Ok(file)
    }

    /// Takes a name that no testbed had before: its lock file, locked, and its directory.
    ///
    /// Were a name given again, who still looks for what its first testbed left behind would find
    /// the second one.
    fn enter(&self) -> Result<(String, File), TestbedError> {
        let mut registry = self.lock()?;
        loop {
            let number = next_number(&mut registry).map_err(TestbedError::file(
                "count in",
                &self.path.join("registry.lock"),
            ))?;
            let name = format!("ktb-{}-{number}", std::process::id());
            let path = self.lock_path(&name);
            let Some(lock) = unless_there(File::create_new(&path))
                .map_err(TestbedError::file("create", &path))?
            else {
                continue;
            };
            lock.lock().map_err(TestbedError::file("lock", &path))?;
            let directory = directory(&name);
            // Others may pass and not look, as in the directory of a runtime's socket.
            let made = unless_there(DirBuilder::new().mode(0o711).create(&directory))
                .map_err(TestbedError::file("create", &directory))?;
            if made.is_some() {
                return Ok((name, lock));
            }
            // The directory of another registry's testbed.
            fs::remove_file(&path).map_err(TestbedError::file("remove", &path))?;
        }
    }

    fn reap_abandoned(&self) -> Result<(), TestbedError> {
        for (name, lock) in self.abandoned()? {
            let output = Janitor::command(self, &name, lock)
                .stdin(Stdio::null())
                .output()
                .map_err(TestbedError::Janitor)?;
            let left = String::from_utf8_lossy(&output.stdout);
            for line in left.lines().filter(|line| *line != "ready") {
                eprintln!("left behind by abandoned testbed {name}: {line}");
            }
        }
        Ok(())
    }

    fn abandoned(&self) -> Result<Vec<(String, File)>, TestbedError> {
        let _registry = self.lock()?;
        let mut found = Vec::new();
        let entries = fs::read_dir(&self.path).map_err(TestbedError::file("list", &self.path))?;
        for entry in entries.filter_map(Result::ok) {
            let file_name = entry.file_name();
            let Some(name) = file_name
                .to_str()
                .and_then(|it| it.strip_suffix(".testbed"))
            else {
                continue;
            };
            // A file that cannot be opened has just been removed by its own janitor.
            if let Ok(lock) = File::options().append(true).open(entry.path())
                && lock.try_lock().is_ok()
            {
                found.push((name.to_owned(), lock));
            }
        }
        Ok(found)
    }
}
