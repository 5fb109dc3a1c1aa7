//! Times that are promised. A test tells how long a thing took; whether that is soon enough is asked by
//! `make bench`, which has the machine to itself, and by nobody else.

use anyhow::{Result, ensure};
use std::{env, time::Duration};

/// Set to anything, it has what takes longer than promised fail.
const HOLD: &str = "KOORD_HOLD_TIMES";

/// Tells how long a thing took. Fails if that is longer than is promised, where promises are held.
pub fn within(what: &str, took: Duration, most: Duration) -> Result<()> {
    println!("promise: {what}: {took:?} (at most {most:?})");
    let holds = env::var_os(HOLD).is_some();
    ensure!(
        !holds || took <= most,
        "{what}: {took:?}, and not {most:?} at most"
    );
    Ok(())
}
