//! What a process costs: memory and CPU time, from `/proc`.

use std::{os::unix::net::UnixStream, time::Duration};

/// CPU time of a process since it started, its ended threads included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

impl CpuTime {
    /// User and system time together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }
}

/// Resident memory of `pid` in bytes, or `None` when there is no such process.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// CPU time of `pid` in steps of one clock tick (10 ms), or `None` when there is no such process.
///
/// The kernel keeps the sum exactly and splits it into user and system by sampling: trust
/// [`CpuTime::total`] first.
pub fn cpu_time(pid: u32) -> Option<CpuTime> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_cpu_time(&stat, rustix::param::clock_ticks_per_second())
}

fn parse_cpu_time(stat: &str, ticks_per_second: u64) -> Option<CpuTime> {
    // The name in brackets may hold blanks and brackets: count from the last bracket on.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let mut next = || -> Option<Duration> {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_millis(ticks * 1000 / ticks_per_second))
    };
    Some(CpuTime {
        user: next()?,
        system: next()?,
    })
}

/// The process that has had the socket at the other end listen, or that made this end's pair.
pub fn of_peer(stream: &UnixStream) -> Option<u32> {
    let peer = rustix::net::sockopt::socket_peercred(stream).ok()?;
    u32::try_from(peer.pid.as_raw_pid()).ok()
}

/// Whether a process with this id is there and not merely waiting to be reaped.
pub fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(')')?.1.trim_start().starts_with('Z')))
        .is_some_and(|is_zombie| !is_zombie)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::poll::wait_until;

    #[test]
    fn cpu_time_is_read_behind_a_name_with_brackets_and_blanks() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 75 9 9 20 0 1 0 5 6 7";
        assert_eq!(
            parse_cpu_time(stat, 100),
            Some(CpuTime {
                user: Duration::from_millis(2500),
                system: Duration::from_millis(750)
            })
        );
    }

    #[test]
    fn the_peer_of_a_socket_is_who_had_it_listen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("listens.sock");
        let _listens = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        assert_eq!(of_peer(&stream), Some(std::process::id()));
    }

    #[test]
    fn resident_memory_is_that_of_the_process_asked_about() {
        // Fills a block of 64 MiB, then waits for a reader of the pipe that never comes.
        let mut child = Command::new("dd")
            .args(["if=/dev/zero", "bs=64M", "count=1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the block to be filled", || {
            resident_bytes(child.id()).is_some_and(|bytes| bytes >= 64 << 20)
        });
        assert!(resident_bytes(child.id()).unwrap() < 72 << 20);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_is_gone_has_no_figures() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(resident_bytes(child.id()), None);
        assert_eq!(cpu_time(child.id()), None);
        assert!(!is_running(child.id()));
        assert!(is_running(std::process::id()));
    }
}
