//! The command line: running the proxy, asking one that runs, and giving back what it has set.
//!
//! Without a subcommand the process serves, or with `--revert` gives back and ends. A subcommand puts one
//! question to the admin socket of a running proxy and prints the answer for a person, or as JSON for a
//! program.

mod ask;
mod table;

pub use self::ask::AskError;

use crate::{
    config::{Config, ConfigError, Front, LOG_FILTER_VARIABLE, Mode, RawConfig, Surroundings},
    front::nri::{LaunchError, Launched},
    status::chain_of,
    systemd::Variables,
};
use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};
use thiserror::Error;

/// `EX_USAGE` of sysexits: the command line or the configuration is wrong.
pub const EXIT_USAGE: u8 = 64;

/// What the process was called for.
#[derive(Debug)]
pub enum Invocation {
    Serve {
        config: Box<Config>,
        /// By the runtime whose plugin we are to be.
        launched: Option<Box<Launched>>,
        /// What is wrong with the configuration, for which hooks are off.
        complaint: Option<ConfigError>,
    },
    Ask {
        admin: PathBuf,
        question: Question,
    },
    Revert {
        config: Box<Config>,
    },
}

/// Why it cannot be done.
#[derive(Debug, Error)]
pub enum InvocationError {
    /// Also `--help` and `--version`, which end a process as well.
    #[error(transparent)]
    CommandLine(clap::Error),
    #[error("{error}")]
    Config {
        error: ConfigError,
        /// The process was to serve.
        is_to_serve: bool,
    },
    #[error("the launch by the runtime comes to nothing")]
    Launch(#[source] LaunchError),
}

#[derive(Debug, Parser)]
#[command(
    name = "koord-runtime-proxy",
    version,
    about = "Puts the settings of co-located pods in force between the kubelet and its runtime",
    subcommand_help_heading = "Questions to a proxy that runs",
    subcommand_value_name = "QUESTION"
)]
struct CommandLine {
    /// YAML with the same keys as the flags; flags win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    keys: RawConfig,
    /// Give back what hooks have set on this node, say what, and end; the proxy must not run
    #[arg(long)]
    revert: bool,
    #[command(subcommand)]
    question: Option<Question>,
}

/// A question to a proxy that runs.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Question {
    /// What runs, in which mode, and what a person should know
    Status {
        /// The whole answer, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Every setting of every pod and of the node: asked, desired, by whom, and what the kernel holds
    Ledger {
        /// The whole answer, as JSON
        #[arg(long)]
        json: bool,
    },
    /// The settings of one pod or container, or of the node
    Explain {
        /// UID or name of a pod or NAMESPACE/NAME, at least 8 characters of a sandbox's or
        /// container's id, the directory of a tier or host application, or `node` for all of these
        #[arg(value_name = "POD-OR-CONTAINER", value_parser = id)]
        id: String,
        /// The whole answer, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Which policy documents are in force, and what is wrong with the policy file
    Policy {
        /// The whole answer, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Whether it is ready; the exit code says so, too
    Health,
    /// Switches a hook off, which gives back what it had decided, or on again; until a restart
    Hook {
        /// As `status` names it
        name: String,
        /// on or off
        #[arg(value_parser = ["on", "off"])]
        state: String,
    },
    /// The log filter, or a new one
    Log {
        /// Such as info,koord_runtime_proxy::hub=debug; until a restart
        filter: Option<String>,
    },
    /// Any page of the admin socket, such as /metrics
    Get {
        /// Begins with a slash
        path: String,
    },
}

/// An answer: what is printed, and whether it is good news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub good: bool,
}

// === impl Invocation ===

impl Invocation {
    /// What this process was called for: by a command line, or by a runtime that has launched it.
    ///
    /// # Errors
    ///
    /// When the launch by a runtime comes to nothing, and as [`parse`](Self::parse). But with a configuration
    /// that is wrong a process that is to serve does so in pass-through, if a runtime has launched it, or if
    /// the socket for clients was handed over and the error [spares sockets](ConfigError::spares_sockets).
    pub fn of_process(
        args: impl IntoIterator<Item = OsString>,
        environment: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, InvocationError> {
        let mut surroundings = surroundings(&environment);
        let is_handed = Variables::read(&environment).hands_over(std::process::id());
        let launched = Launched::take(environment).map_err(InvocationError::Launch)?;
        surroundings.launch = launched.as_ref().map(Launched::said);
        // An older runtime does not start when a plugin that it launches fails, and who waits in a socket
        // that was handed over waits for as long as nobody serves it: so where the configuration is bad,
        // we serve without hooks and say why. But for a runtime that may be another than the one that was
        // meant: on that a kubelet would start every pod once more.
        let serves = |error: &ConfigError| {
            let is_awaited = is_handed && error.rest.front == Front::Cri;
            launched.is_some() || is_awaited && error.spares_sockets()
        };
        let (config, complaint) = match Self::parse(args, &surroundings) {
            Ok(Self::Serve { config, .. }) => (config, None),
            Err(InvocationError::Config {
                error,
                is_to_serve: true,
            }) if serves(&error) => {
                let mut config = error.rest.clone();
                config.mode = Mode::PassThrough;
                (config, Some(error))
            }
            other => return other,
        };
        Ok(Self::Serve {
            config,
            launched: launched.map(Box::new),
            complaint,
        })
    }

    /// Whether a process with this command line acts on the runtime whose endpoint `is_ours`; `None` where
    /// its configuration cannot be read from here: what is by that path is not the file that it `shares`.
    pub(crate) fn acts_on(
        words: &[String],
        is_ours: impl Fn(&Path) -> bool,
        shares: impl Fn(&Path) -> bool,
    ) -> Option<bool> {
        let said = CommandLine::try_parse_from(words).ok()?;
        let is_readable = said.config.as_deref().is_none_or(shares);
        let surroundings = Surroundings {
            host_name: "its-own".to_owned(),
            ..Surroundings::default()
        };
        match Self::parse(words.iter().map(OsString::from), &surroundings) {
            Ok(Self::Serve { config, .. } | Self::Revert { config }) => {
                is_readable.then(|| is_ours(&config.runtime_endpoint))
            }
            Ok(Self::Ask { .. }) => Some(false),
            Err(_) => None,
        }
    }

    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    ///
    /// When this is no command line of ours, or asks for help or for the version; and when the configuration
    /// is wrong, be it for a question or for `--revert`.
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        surroundings: &Surroundings,
    ) -> Result<Self, InvocationError> {
        let said = CommandLine::try_parse_from(args).map_err(InvocationError::CommandLine)?;
        if said.revert && said.question.is_some() {
            let reason = "--revert goes with no question: it is for when no proxy runs";
            let error = CommandLine::command().error(ErrorKind::ArgumentConflict, reason);
            return Err(InvocationError::CommandLine(error));
        }
        let config =
            Config::resolve(said.keys, said.config.as_deref(), surroundings).map_err(|error| {
                InvocationError::Config {
                    error,
                    is_to_serve: !said.revert && said.question.is_none(),
                }
            })?;
        Ok(match said.question {
            None if said.revert => Self::Revert {
                config: Box::new(config),
            },
            None => Self::Serve {
                config: Box::new(config),
                launched: None,
                complaint: None,
            },
            Some(question) => Self::Ask {
                admin: config.admin_endpoint,
                question,
            },
        })
    }
}

// === impl InvocationError ===

impl InvocationError {
    /// Prints what a person needs to see, and says the exit code that goes with it.
    pub fn report(&self) -> u8 {
        match self {
            Self::CommandLine(error) => {
                // Where this cannot be printed, nothing can.
                error.print().ok();
                if error.use_stderr() { EXIT_USAGE } else { 0 }
            }
            Self::Config { error, .. } => {
                eprintln!("{error}");
                EXIT_USAGE
            }
            Self::Launch(error) => {
                eprintln!("koord-runtime-proxy: {self}: {}", chain_of(error));
                1
            }
        }
    }
}

// === impl Question ===

impl Question {
    /// Asks the proxy behind the socket `admin`. Must run within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When nobody can be reached there, or no whole answer comes within 15 s or in 256 MiB; when the page
    /// cannot be asked for, as by an id with a space; and when an answer that is shown as a table is not of
    /// the form that this version knows. A refusal is an answer.
    pub async fn ask(&self, admin: &Path) -> Result<Answer, AskError> {
        let reply = match self {
            Self::Status { .. } => ask::status(admin).await?,
            Self::Ledger { .. } => ask::get(admin, "/ledger").await?,
            Self::Explain { id, .. } => ask::get(admin, &format!("/explain?id={id}")).await?,
            Self::Policy { .. } => ask::get(admin, "/policy").await?,
            Self::Health => ask::get(admin, "/readyz").await?,
            Self::Hook { name, state } => {
                ask::put(admin, "/hooks", &format!("{name}={state}")).await?
            }
            Self::Log { filter: None } => ask::get(admin, "/log").await?,
            Self::Log {
                filter: Some(filter),
            } => ask::put(admin, "/log", filter).await?,
            Self::Get { path } => ask::get(admin, path).await?,
        };
        let text = if reply.good {
            self.show(&reply.text)?
        } else {
            reply.text
        };
        Ok(Answer {
            text,
            good: reply.good,
        })
    }

    fn show(&self, text: &str) -> Result<String, AskError> {
        Ok(match self {
            Self::Status { json: false } => table::status(text)?,
            Self::Policy { json: false } => table::policy(text)?,
            Self::Ledger { json: false } | Self::Explain { json: false, .. } => {
                table::ledger(text)?
            }
            Self::Status { json: true }
            | Self::Policy { json: true }
            | Self::Ledger { json: true }
            | Self::Explain { json: true, .. }
            | Self::Health
            | Self::Hook { .. }
            | Self::Log { .. }
            | Self::Get { .. } => text.to_owned(),
        })
    }
}

// === impl Answer ===

impl Answer {
    /// Writes the answer out; the exit code says whether it is good news.
    ///
    /// # Errors
    ///
    /// When it cannot be written, unless whoever reads has seen enough (`… ledger | head`).
    pub fn print(&self, mut to: impl Write) -> io::Result<ExitCode> {
        match to.write_all(self.text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(ExitCode::from(u8::from(!self.good))),
        }
    }
}

/// What `explain` asks for, in a query of which it would not be all.
fn id(text: &str) -> Result<String, &'static str> {
    match text.contains(['#', '&']) {
        true => Err("what has # or & in it cannot be asked for"),
        false => Ok(text.to_owned()),
    }
}

/// What the process finds around it, once.
fn surroundings(environment: impl Fn(&'static str) -> Option<OsString>) -> Surroundings {
    Surroundings {
        host_name: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        log_filter: environment(LOG_FILTER_VARIABLE).and_then(|filter| filter.into_string().ok()),
        launch: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_acts_on_the_runtime_that_its_command_line_says() {
        let acts = |words: &[&str]| {
            let words = ["koord-runtime-proxy"].iter().chain(words);
            let words: Vec<String> = words.map(|&word| word.to_owned()).collect();
            let shares = |it: &Path| it != Path::new("/in/its/container.yaml");
            Invocation::acts_on(&words, |it| it == Path::new("/run/crio/crio.sock"), shares)
        };
        let crio = "--remote-runtime-service-endpoint=/run/crio/crio.sock";
        assert_eq!(acts(&[crio]), Some(true));
        assert_eq!(acts(&[crio, "--front=watch"]), Some(true));
        assert_eq!(acts(&[crio, "--revert"]), Some(true));
        // What it was told elsewhere may say so.
        assert_eq!(acts(&["--config=/not/there/config.yaml"]), None);
        assert_eq!(acts(&[crio, "--config=/in/its/container.yaml"]), None);
        assert_eq!(acts(&["--of-another-version"]), None);
        assert_eq!(acts(&[crio, "status"]), Some(false));
        let other = "--remote-runtime-service-endpoint=/run/other.sock";
        assert_eq!(acts(&[other]), Some(false));
        assert_eq!(acts(&[]), Some(false));
    }

    #[test]
    fn half_of_a_word_is_not_explained_for_the_whole() {
        let parsed = |id| CommandLine::try_parse_from(["koord-runtime-proxy", "explain", id]);
        for id in ["web#1", "web&id=shop"] {
            let error = parsed(id).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ValueValidation);
            assert!(error.to_string().contains(id), "{error}");
        }
        assert!(parsed("default/web-1.x_y").is_ok());
    }

    #[test]
    fn the_help_of_every_question_says_what_each_of_its_words_is_for() {
        let command = CommandLine::command();
        assert_eq!(command.get_subcommands().count(), 8);
        for question in command.get_subcommands() {
            for argument in question.get_arguments() {
                let (question, name) = (question.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{question} {name}");
            }
        }
    }
}
