//! `koord-runtime-proxy`: parse, trace, build, run, drain.
#![forbid(unsafe_code)]

use clap::{Args, Command, FromArgMatches};
use koord_kernel::process;
use koord_runtime_proxy::{
    app::{App, Handed},
    config::{Config, LOG_FILTER_VARIABLE, RawConfig, Surroundings},
    log,
    start_guard::StartGuard,
    status::chain_of,
};
use std::{error::Error, io, path::PathBuf, process::ExitCode, time::SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

/// `EX_USAGE` of sysexits: the command line or the configuration is wrong.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    process::tune_allocator();
    let config = match configure() {
        Ok(config) => config,
        Err(code) => return code,
    };
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("koord-runtime-proxy: {}", chain_of(&*error));
            ExitCode::FAILURE
        }
    }
}

fn configure() -> Result<Config, ExitCode> {
    let command = Command::new("koord-runtime-proxy")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Puts the settings of co-located pods in force between the kubelet and its runtime")
        .arg(
            clap::Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("YAML with the same keys; flags win"),
        );
    let matches = RawConfig::augment_args(command)
        .try_get_matches()
        .map_err(|error| {
            // Where this cannot be printed, nothing can.
            error.print().ok();
            ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
        })?;
    let surroundings = Surroundings {
        host_name: rustix::system::uname().nodename().to_string_lossy().into(),
        log_filter: std::env::var(LOG_FILTER_VARIABLE).ok(),
    };
    let flags = RawConfig::from_arg_matches(&matches).unwrap_or_default();
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    Config::resolve(flags, file, &surroundings).map_err(|error| {
        eprintln!("{error}");
        ExitCode::from(USAGE)
    })
}

fn run(config: Config) -> Result<(), Box<dyn Error>> {
    let (dispatch, log) = log::dispatch(&config.log, io::stderr)?;
    tracing::dispatcher::set_global_default(dispatch)?;
    process::raise_nofile()?;
    let handed = Handed {
        listen_pid: std::env::var("LISTEN_PID").ok(),
        listen_fds: std::env::var("LISTEN_FDS").ok(),
    };
    let (guard, verdict, noted) = StartGuard::begin(&config.state_dir, SystemTime::now());
    if let Err(error) = noted {
        warn!(
            error = &error as &dyn Error,
            "this start could not be noted"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (mut term, mut int) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let stop = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        let app = App::build(config, verdict, &handed, log)?;
        app.run(stop, || {}).await;
        Ok::<_, Box<dyn Error>>(())
    })?;
    Ok(guard.clean_stop()?)
}
