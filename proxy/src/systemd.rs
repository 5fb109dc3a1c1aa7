//! What systemd and a service say to each other: readiness, status, watchdog, inherited sockets.
//!
//! The protocol is a handful of variables in the environment and datagrams of `NAME=value` lines,
//! so it is spoken here directly. The variables are read once, in `main`, and handed in; without
//! them everything here does nothing.

use std::{
    cell::RefCell,
    error::Error,
    ffi::{OsStr, OsString},
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};
use tokio::{sync::Notify, time::sleep};
use tracing::{debug, warn};

/// The variables of systemd's protocol, and one that our unit has it set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    pub listen_pid: Option<String>,
    pub listen_fds: Option<String>,
    pub notify_socket: Option<OsString>,
    pub watchdog_usec: Option<String>,
    pub watchdog_pid: Option<String>,
    /// Which boot of the machine this is. The unit says it, because it hides the kernel's own word.
    pub boot_id: Option<String>,
}

/// How soon the manager is told again what it did not take. Its queue is full for a while when many
/// services start at once, and it ends one of which it has not heard in time.
const REPEAT: Duration = Duration::from_secs(1);

/// Tells the service manager how we are; nobody where there is none.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<Manager>,
    /// What it has not taken so far.
    owed: RefCell<Option<String>>,
    is_owed: Notify,
    /// How long the manager waits for a sign of life.
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
}

// === impl Variables ===

impl Variables {
    /// Takes the variables from an environment, such as [`std::env::var_os`].
    pub fn read(environment: impl Fn(&'static str) -> Option<OsString>) -> Self {
        let text = |name| environment(name)?.into_string().ok();
        Self {
            listen_pid: text("LISTEN_PID"),
            listen_fds: text("LISTEN_FDS"),
            notify_socket: environment("NOTIFY_SOCKET"),
            watchdog_usec: text("WATCHDOG_USEC"),
            watchdog_pid: text("WATCHDOG_PID"),
            boot_id: text("BOOT_ID"),
        }
    }

    /// Whether process `pid` is handed a socket.
    pub fn hands_over(&self, pid: u32) -> bool {
        let count = self.listen_fds.as_deref();
        self.listen_pid == Some(pid.to_string()) && count.is_some_and(|count| count != "0")
    }

    /// The time within which process `pid` owes a sign of life, if it does.
    pub fn watchdog(&self, pid: u32) -> Option<Duration> {
        if let Some(meant) = &self.watchdog_pid
            && *meant != pid.to_string()
        {
            return None;
        }
        let usec: u64 = self.watchdog_usec.as_ref()?.parse().ok()?;
        (usec > 0).then(|| Duration::from_micros(usec))
    }
}

// === impl Notifier ===

impl Notifier {
    /// A manager that cannot be reached is logged and counts as none.
    pub fn new(variables: &Variables) -> Self {
        let manager = variables.notify_socket.as_deref().and_then(|name| {
            Manager::at(name)
                .inspect_err(|error| {
                    warn!(
                        error = error as &dyn Error,
                        "the service manager cannot be told anything"
                    );
                })
                .ok()
        });
        Self {
            manager,
            watchdog: variables.watchdog(std::process::id()),
            ..Self::default()
        }
    }

    /// Clients can connect; `status` is a line for `systemctl status`.
    pub fn ready(&self, status: &str) {
        self.tell(format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// A stop has begun.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=Draining: calls in flight finish".to_owned());
    }

    /// Tells again what the manager did not take, and gives signs of life; never ends. It runs on the
    /// thread that carries the data, so that a stuck one is noticed.
    pub async fn keep_telling(&self) {
        tokio::join!(self.repeat(), self.keep_watchdog());
    }

    /// Gives a sign of life twice in the time that the manager waits for one.
    async fn keep_watchdog(&self) {
        let Some(patience) = self.watchdog else {
            return std::future::pending().await;
        };
        let pause = patience / 2;
        loop {
            let is_told = self.send("WATCHDOG=1");
            sleep(if is_told { pause } else { pause.min(REPEAT) }).await;
        }
    }

    async fn repeat(&self) {
        loop {
            while !self.pay() {
                sleep(REPEAT).await;
            }
            self.is_owed.notified().await;
        }
    }

    /// Tells this in the place of what is still owed.
    fn tell(&self, message: String) {
        self.owed.replace(Some(message));
        if !self.pay() {
            self.is_owed.notify_one();
        }
    }

    /// Whether nothing is owed any more.
    fn pay(&self) -> bool {
        let mut owed = self.owed.borrow_mut();
        let is_paid = owed.as_deref().is_none_or(|message| self.send(message));
        if is_paid {
            *owed = None;
        }
        is_paid
    }

    /// Whether there is nobody who has not taken it.
    fn send(&self, message: &str) -> bool {
        let Some(Manager { socket, address }) = &self.manager else {
            return true;
        };
        let sent = socket.send_to_addr(message.as_bytes(), address);
        if let Err(error) = &sent {
            debug!(
                error = error as &dyn Error,
                message, "the service manager was not told"
            );
        }
        sent.is_ok()
    }
}

// === impl Manager ===

impl Manager {
    fn at(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up the data path.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }
}

/// A message is a line for each name, so a status has to be one line.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service manager in a directory of its own.
    struct Listening {
        socket: UnixDatagram,
        variables: Variables,
        _dir: tempfile::TempDir,
    }

    fn manager() -> Listening {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Listening {
            socket,
            variables: Variables {
                notify_socket: Some(path.into()),
                ..Variables::default()
            },
            _dir: dir,
        }
    }

    fn heard(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    #[test]
    fn the_manager_hears_readiness_and_the_stop() {
        let manager = manager();
        let notifier = Notifier::new(&manager.variables);
        notifier.ready("Two\nlines");
        notifier.stopping();
        assert_eq!(heard(&manager.socket).unwrap(), "READY=1\nSTATUS=Two lines");
        assert_eq!(
            heard(&manager.socket).unwrap(),
            "STOPPING=1\nSTATUS=Draining: calls in flight finish"
        );
    }

    #[test]
    fn a_manager_may_have_an_abstract_name() {
        let name = format!("koord-runtime-proxy-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let notifier = Notifier::new(&Variables {
            notify_socket: Some(format!("@{name}").into()),
            ..Variables::default()
        });
        notifier.stopping();
        assert!(heard(&socket).unwrap().starts_with("STOPPING=1\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_of_life_comes_twice_in_the_time_that_is_waited() {
        let mut manager = manager();
        manager.variables.watchdog_usec = Some("10000000".to_owned());
        manager.variables.watchdog_pid = Some(std::process::id().to_string());
        let notifier = Notifier::new(&manager.variables);
        let kept = notifier.keep_telling();
        let timeout = Duration::from_secs(16);
        assert!(tokio::time::timeout(timeout, kept).await.is_err());
        let mut signs = 0;
        while let Some(message) = heard(&manager.socket) {
            assert_eq!(message, "WATCHDOG=1");
            signs += 1;
        }
        // At 0, 5, 10 and 15 seconds.
        assert_eq!(signs, 4);
    }

    impl Listening {
        /// Has others fill its queue.
        fn crowd(&self) -> Vec<UnixDatagram> {
            let path = self.variables.notify_socket.as_ref().unwrap();
            let mut crowd = Vec::new();
            loop {
                let other = UnixDatagram::unbound().unwrap();
                other.set_nonblocking(true).unwrap();
                let count = (0..).take_while(|_| other.send_to(b"X", path).is_ok());
                let is_full = count.count() == 0;
                crowd.push(other);
                if is_full {
                    return crowd;
                }
            }
        }

        /// What it reads but what fills its queue.
        fn read(&self) -> Vec<String> {
            let all = std::iter::from_fn(|| heard(&self.socket));
            all.filter(|it| it != "X").collect()
        }
    }

    /// Lets a notifier repeat what was not taken for so long.
    async fn repeat(notifier: &Notifier, seconds: u64) {
        let timeout = Duration::from_secs(seconds);
        let kept = notifier.keep_telling();
        assert!(tokio::time::timeout(timeout, kept).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_whose_queue_was_full_hears_readiness_once_it_reads() {
        let manager = manager();
        let notifier = Notifier::new(&manager.variables);
        let _crowd = manager.crowd();
        notifier.ready("Serving");
        repeat(&notifier, 20).await;
        assert_eq!(manager.read(), [""; 0]);
        repeat(&notifier, 2).await;
        assert_eq!(manager.read(), ["READY=1\nSTATUS=Serving"]);
        repeat(&notifier, 20).await;
        assert_eq!(manager.read(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_of_life_that_was_not_taken_comes_again_soon() {
        let mut manager = manager();
        manager.variables.watchdog_usec = Some("10000000".to_owned());
        let notifier = Notifier::new(&manager.variables);
        let _crowd = manager.crowd();
        let kept = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(manager.read(), [""; 0]);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(manager.read(), ["WATCHDOG=1"]);
        };
        tokio::select! {
            () = notifier.keep_telling() => {}
            () = kept => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_stop_before_readiness_was_taken_the_stop_alone_is_told() {
        let manager = manager();
        let notifier = Notifier::new(&manager.variables);
        let _crowd = manager.crowd();
        notifier.ready("Serving");
        notifier.stopping();
        assert_eq!(manager.read(), [""; 0]);
        repeat(&notifier, 2).await;
        let stop = "STOPPING=1\nSTATUS=Draining: calls in flight finish";
        assert_eq!(manager.read(), [stop]);
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let variables = |pid: &str, usec: &str| Variables {
            watchdog_pid: Some(pid.to_owned()),
            watchdog_usec: Some(usec.to_owned()),
            ..Variables::default()
        };
        assert_eq!(
            variables("7", "1000").watchdog(7),
            Some(Duration::from_millis(1))
        );
        assert_eq!(variables("8", "1000").watchdog(7), None);
        assert_eq!(variables("7", "0").watchdog(7), None);
        assert_eq!(variables("7", "soon").watchdog(7), None);
        let unnamed = Variables {
            watchdog_usec: Some("1000".to_owned()),
            ..Variables::default()
        };
        assert_eq!(unnamed.watchdog(7), Some(Duration::from_millis(1)));
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        let of_another_kind = Variables {
            notify_socket: Some("vsock:2:1".into()),
            ..Variables::default()
        };
        for variables in [Variables::default(), of_another_kind] {
            let notifier = Notifier::new(&variables);
            assert!(notifier.manager.is_none(), "{variables:?}");
            assert_eq!(notifier.watchdog, None);
            notifier.ready("Serving");
        }
    }

    #[test]
    fn variables_come_from_the_environment_that_is_handed_in() {
        let variables = Variables::read(|name| Some(format!("<{name}>").into()));
        assert_eq!(variables.listen_pid.as_deref(), Some("<LISTEN_PID>"));
        assert_eq!(variables.listen_fds.as_deref(), Some("<LISTEN_FDS>"));
        assert_eq!(variables.notify_socket, Some("<NOTIFY_SOCKET>".into()));
        assert_eq!(variables.watchdog_usec.as_deref(), Some("<WATCHDOG_USEC>"));
        assert_eq!(variables.watchdog_pid.as_deref(), Some("<WATCHDOG_PID>"));
        assert_eq!(variables.boot_id.as_deref(), Some("<BOOT_ID>"));
    }
}
