//! A virtual machine with a kernel of our choice that runs one program and then switches itself
//! off. What it prints on its serial console is its result, unless a person sits at that.

use anyhow::{Context, Result, bail};
use koord_testkit::setup::Qemu;
use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    convert::Infallible,
    env,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Condvar, Mutex,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// No run lasts longer. It takes seconds, or minutes with a container runtime; on a machine that is busy with
/// builds and other tests several times as long. One that hangs is to be told of while there is somebody to
/// be told, before whoever runs all tests ends them.
pub const BOUND: Duration = Duration::from_secs(1_500);

/// Set to anything, it shows the console as it comes.
const SHOW: &str = "KOORD_VM_SHOW";

/// How much of the console is shown when a run does not end.
const TAIL: usize = 40;

/// How many machines of this process are on: its tests share nothing else.
static ON: Mutex<usize> = Mutex::new(0);

/// One of them was switched off.
static OFF: Condvar = Condvar::new();

/// What a machine needs to be on; dropping it lets the next one have it.
struct Turn;

// === impl Turn ===

impl Turn {
    /// Waits until another machine may be on: one for each processor, and one more since a machine's
    /// programs wait for something for a third of their time.
    fn wait() -> Self {
        let limit = thread::available_parallelism().map_or(1, usize::from) + 1;
        let on = ON.lock().expect("nobody panics with it");
        let full = |on: &mut usize| *on >= limit;
        let mut on = OFF.wait_while(on, full).expect("nobody panics with it");
        *on += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *ON.lock().expect("nobody panics with it") -= 1;
        OFF.notify_one();
    }
}

/// A machine that is on; dropping it pulls the plug.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Boots a kernel with an initramfs whose `/init` is to switch the machine off, and returns the
/// lines of the console. `hardware` are QEMU's arguments for processors and memory.
pub(super) fn run(
    qemu: &Qemu,
    hardware: &[&str],
    kernel: &Path,
    initramfs: &Path,
    variables: &str,
) -> Result<Vec<String>> {
    let _turn = Turn::wait();
    let mut command = command(qemu, hardware, kernel, initramfs, variables);
    command
        .args(["-serial", "stdio"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut machine = Machine(command.spawn().context("cannot start the emulator")?);
    let console = machine.0.stdout.take().context("the console is a pipe")?;
    let lines = read_to_end(&follow(console))?;
    let status = machine.0.wait().context("cannot wait for the emulator")?;
    if !status.success() {
        bail!("the emulator ended with {status}:\n{}", tail(&lines));
    }
    Ok(lines)
}

/// Becomes a machine whose console is ours, keys and all (Ctrl-A X switches it off), and which leaves
/// nothing behind however it ends: there is no other process and no file. Returns if there is none.
pub(super) fn become_one(
    qemu: &Qemu,
    hardware: &[&str],
    kernel: &Path,
    initramfs: &[u8],
    variables: &str,
) -> Result<Infallible> {
    // Open in whatever this process becomes.
    let memory = memfd_create("initramfs", MemfdFlags::empty());
    let mut memory = File::from(memory.context("no memory for the initramfs")?);
    memory.write_all(initramfs)?;
    let initramfs = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let mut command = command(qemu, hardware, kernel, Path::new(&initramfs), variables);
    command.args(["-serial", "mon:stdio"]);
    Err(command.exec()).context("cannot start the emulator")
}

fn command(
    qemu: &Qemu,
    hardware: &[&str],
    kernel: &Path,
    initramfs: &Path,
    variables: &str,
) -> Command {
    let mut command = qemu.command();
    command
        .args(hardware)
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-append")
        // The kernel tests its timer in a few milliseconds of ours, which a busy machine may not give it;
        // then it panics. Under a hypervisor that it knows it does without the test by itself. Errors of its
        // own pass `quiet`, amid a line of the program's: the level behind it has only a panic shown.
        .arg(format!(
            "console=ttyS0 quiet loglevel=1 no_timer_check panic=-1 {variables}"
        ));
    command
}

fn follow(console: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let show = env::var_os(SHOW).is_some();
    thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if show {
                eprintln!("{line}");
            }
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

fn read_to_end(console: &Receiver<String>) -> Result<Vec<String>> {
    let start = Instant::now();
    let mut lines = Vec::new();
    loop {
        match console.recv_timeout(BOUND.saturating_sub(start.elapsed())) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => return Ok(lines),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the machine is still on after {BOUND:?}:\n{}", tail(&lines))
            }
        }
    }
}

pub(super) fn tail(lines: &[String]) -> String {
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
