//! Other programs, run to their end.
//!
//! One place turns "started, failed, said why" into one error that names the command, so that a
//! failed download or import is understood from the test's output alone.

use std::io;
use std::process::{Command, ExitStatus};

/// Why a helper program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started at all.
    #[error("cannot run {program}")]
    Start { program: String, source: io::Error },
    /// The program ran and failed; `output` is all that it printed.
    #[error("{program} ended with {status}: {output}")]
    Failed {
        program: String,
        status: ExitStatus,
        output: String,
    },
}

/// Runs `command` to its end and returns what it printed on standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, CommandError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = match command.output() {
        Ok(done) => done,
        Err(source) => return Err(CommandError::Start { program, source }),
    };
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(stdout);
    }
    Err(CommandError::Failed {
        program,
        status: done.status,
        output: stdout + &String::from_utf8_lossy(&done.stderr),
    })
}
