//! The machine for people: `make vm` as somebody at a terminal meets it.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{binary, vm::BOUND};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    process::{Child, Command},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// A person at a terminal; without them the machine is off.
struct Terminal {
    keys: File,
    shown: Receiver<Vec<u8>>,
    text: String,
    machine: Child,
}

// === impl Terminal ===

impl Terminal {
    fn of(mut machine: Command) -> Result<Self> {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&keys)?;
        unlockpt(&keys)?;
        let name = ptsname(&keys, Vec::new())?;
        let screen = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name.to_str()?)?;
        machine
            .stdin(screen.try_clone()?)
            .stdout(screen.try_clone()?)
            .stderr(screen);
        let machine = machine.spawn()?;
        let keys = File::from(keys);
        let (sender, shown) = mpsc::channel();
        let mut screen = keys.try_clone()?;
        thread::spawn(move || {
            let mut some = [0; 4096];
            // It ends with an error once nobody has the terminal any more.
            while let Ok(read @ 1..) = screen.read(&mut some) {
                if sender.send(some[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            keys,
            shown,
            text: String::new(),
            machine,
        })
    }

    /// Reads on until this is shown, and returns what was shown until then.
    fn see(&mut self, what: &str) -> Result<String> {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.text.find(what) {
                let rest = self.text.split_off(at + what.len());
                return Ok(std::mem::replace(&mut self.text, rest));
            }
            let left = BOUND.saturating_sub(begin.elapsed());
            match self.shown.recv_timeout(left) {
                Ok(some) => self.text += &String::from_utf8_lossy(&some),
                Err(_) => bail!("no {what:?} was shown, but:\n{}", self.text),
            }
        }
    }

    fn say(&mut self, keys: &str) -> io::Result<()> {
        self.keys.write_all(keys.as_bytes())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.machine.kill().ok();
        self.machine.wait().ok();
    }
}

const PROMPT: &str = "node-1 # ";

#[test]
fn whoever_looks_has_the_demo_and_a_shell_that_knows_the_node() -> Result<()> {
    let mut terminal = Terminal::of(Command::new(binary("vm")?))?;
    let shown = terminal.see(PROMPT)?;
    for line in [
        "all 15 values are what they should be",
        "This is a node with cgroup v2",
    ] {
        ensure!(shown.contains(line), "no {line:?} in:\n{shown}");
    }
    for (command, answer) in [
        // Decided by the class of the pod, and there now.
        ("koord-runtime-proxy explain web", "CPUSetAllocator"),
        ("koord-runtime-proxy status", "BatchResource"),
        // Four pods, each with its sandbox and a container.
        ("ctr -n k8s.io tasks ls | grep -c RUNNING", "\n8\n"),
    ] {
        terminal.say(&format!("{command}\n"))?;
        // What was typed is shown first.
        terminal.see(command)?;
        let shown = terminal.see(PROMPT)?;
        // The guest's terminal and ours each put a return before the end of a line.
        let shown = shown.replace('\r', "");
        ensure!(shown.contains(answer), "{command}: {shown}");
    }
    terminal.say("exit\n")?;
    let (begin, mut ended) = (Instant::now(), None);
    while ended.is_none() && begin.elapsed() < BOUND {
        thread::sleep(Duration::from_millis(100));
        ended = terminal.machine.try_wait()?;
    }
    let status = ended.context("the machine is still on")?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[test]
fn without_a_terminal_there_is_no_machine() -> Result<()> {
    let output = Command::new(binary("vm")?)
        .stdin(std::process::Stdio::null())
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "{told}");
    ensure!(
        told.contains("it is for people: standard input is no terminal"),
        "{told}"
    );
    Ok(())
}
