//! Times that are promised. A test tells how long a thing took; whether that is soon enough is asked by
//! `make bench`, which has the machine to itself, and by nobody else.

use anyhow::{Result, ensure};
use std::{env, time::Duration};

/// Set to anything, it has what takes longer than promised fail.
const HOLD: &str = "KOORD_HOLD_TIMES";

/// Whether what takes longer than promised fails: the machine is for that alone then.
pub fn are_held() -> bool {
    env::var_os(HOLD).is_some()
}

/// Tells how long a thing took. Fails if that is longer than is promised, where promises are held.
pub fn within(what: &str, took: Duration, most: Duration) -> Result<()> {
    println!("promise: {what}: {took:?} (at most {most:?})");
    ensure!(
        !are_held() || took <= most,
        "{what}: {took:?}, and not {most:?} at most"
    );
    Ok(())
}
