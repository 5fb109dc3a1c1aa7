//! A node whose first program is systemd. As the machine's first program this one becomes systemd; as a
//! service of that it makes the checks that `KOORD_CHECKS` names, says on the console how each went, and
//! switches the machine off.
//!
//! What its users type is taken from the README, word for word (`reader.rs`).
#![forbid(unsafe_code)]

mod demo;
mod drop_ins;
mod machine;
mod node;
mod on_a_node;
mod plugin;
mod reader;
mod remnant;
mod service;

use anyhow::{Result, ensure};
use koord_testkit::poll::comes_true;
use std::{any::Any, future::Future, panic, process, time::Instant};

/// What is checked, by the name that the host knows.
type Check<S> = (&'static str, fn(&mut S) -> Result<()>);

fn main() {
    if process::id() == 1 {
        let Err(error) = machine::become_systemd();
        println!("koord-guest: broken: {error:#}");
        machine::power_off();
    }
    if let Err(reason) = panic::catch_unwind(run) {
        println!("koord-guest: broken: {}", message(&*reason));
    }
    machine::power_off();
}

fn run() {
    let wanted = machine::told("KOORD_CHECKS").expect("the command line says what to check");
    let went = match wanted.as_str() {
        "demo" => all(Ok(demo::Stage), demo::CHECKS),
        "drop-ins" => all(drop_ins::Stage::new(), drop_ins::CHECKS),
        "on-a-node" => all(on_a_node::Stage::new(), on_a_node::CHECKS),
        "plugin" => all(plugin::Stage::new(), plugin::CHECKS),
        other => panic!("there are no checks of {other}"),
    };
    match went {
        Ok(()) => println!("koord-guest: end"),
        Err(reason) => println!("koord-guest: {}", reason.replace('\n', "\nkoord-guest: ")),
    }
}

/// Makes one check after the other. What follows one that failed stands on nothing, so it is the last.
fn all<S>(stage: Result<S>, checks: &[Check<S>]) -> Result<(), String> {
    let mut stage = stage.map_err(|error| format!("{error:?}"))?;
    for (name, check) in checks {
        let start = Instant::now();
        let went = panic::catch_unwind(panic::AssertUnwindSafe(|| check(&mut stage)));
        let went = match went {
            Ok(went) => went.map_err(|error| format!("{error:?}")),
            Err(reason) => Err(message(&*reason)),
        };
        went.map_err(|reason| format!("failed {name}\n{reason}\n{}", machine::journal()))?;
        println!("koord-guest: ok {name}");
        println!("{name} took {:.1?}", start.elapsed());
    }
    Ok(())
}

/// Waits until nothing is wrong any more.
fn wait(when: &str, mut wrong: impl FnMut() -> Vec<String>) -> Result<()> {
    let start = Instant::now();
    let came = comes_true(|| wrong().is_empty());
    ensure!(came, "{when}: {:#?}", wrong());
    println!("{when}: within {:.1?}", start.elapsed());
    Ok(())
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()?.block_on(future)
}

fn message(reason: &(dyn Any + Send)) -> String {
    let text = reason.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| reason.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}
