//! `koord-runtime-proxy`: parse, trace, build, run, drain; or ask one that runs; or give back what one
//! has set.
#![forbid(unsafe_code)]

use koord_kernel::process;
use koord_runtime_proxy::{
    app::{App, OWN_PROC},
    cli::{Answer, Invocation},
    config::{Config, ConfigError},
    front::nri::{Launched, Pulse},
    log::{self, Flush, LogControl},
    panic_report, revert,
    shutdown::Signals,
    start_guard::{Start, StartGuard},
    state_lock::State,
    status::chain_of,
    systemd::Variables,
};
use std::{error::Error, io, path::Path, process::ExitCode};
use tokio::runtime::Builder;
use tracing::warn;

fn main() -> ExitCode {
    process::tune_allocator();
    let called = Invocation::of_process(std::env::args_os(), std::env::var_os);
    let ended = match called {
        Ok(Invocation::Serve {
            config,
            launched,
            complaint,
        }) => serve(*config, launched, complaint),
        Ok(Invocation::Ask { admin, question }) => print(question.ask(&admin)),
        Ok(Invocation::Revert { config }) => {
            begin_log(&config).and_then(|_log| print(revert::run(*config)))
        }
        Err(error) => return ExitCode::from(error.report()),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("koord-runtime-proxy: {}", chain_of(&*error));
        ExitCode::FAILURE
    })
}

/// Has what is said from here on go to standard error, all of it as long as the second is there.
fn begin_log(config: &Config) -> Result<(LogControl, Flush), Box<dyn Error>> {
    let (lines, flush) = log::Queue::new(io::stderr())?;
    let (dispatch, log) = log::dispatch(&config.log, lines)?;
    tracing::dispatcher::set_global_default(dispatch)?;
    panic_report::install();
    Ok((log, flush))
}

fn serve(
    config: Config,
    launched: Option<Box<Launched>>,
    complaint: Option<ConfigError>,
) -> Result<ExitCode, Box<dyn Error>> {
    let (log, _flush) = begin_log(&config)?;
    if let Err(error) = process::raise_nofile() {
        let error = &error as &dyn Error;
        warn!(error, "the limit of descriptors stays");
    }
    let systemd = Variables::read(std::env::var_os);
    let may_overlap = launched.is_some() || systemd.hands_over(std::process::id());
    let mut state = State::take(&config.state_dir, may_overlap)?;
    let watchdog = systemd.watchdog(std::process::id());
    let start = Start::now(systemd.boot_id.as_deref(), Path::new(OWN_PROC));
    let (guard, verdict) = StartGuard::begin(&config.state_dir, start, watchdog);
    let pulse = Pulse::new()?;
    let ended = pulse.runtime()?.block_on(async {
        let signals = Signals::install()?;
        let wrong = (verdict, complaint);
        let app = App::build(config, wrong, &systemd, (launched, pulse.clone()), log)?;
        tokio::select! {
            ended = app.run(signals) => Ok::<_, Box<dyn Error>>(ended),
            never = state.keep(|| guard.note_again()) => match never {},
        }
    });
    guard.end(&ended);
    ended??;
    Ok(ExitCode::SUCCESS)
}

fn print<E: Error + 'static>(
    answer: impl Future<Output = Result<Answer, E>>,
) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(answer)?;
    Ok(answer.print(io::stdout())?)
}
