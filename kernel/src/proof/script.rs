//! One script of writes, with what a kernel answers to each: the text that the file shows then, or
//! the error. The answers were taken from kernels, 6.18 for cgroup v1 and Debian's 6.1 for v2.

use super::{Ground, generation, script_io, script_v1, script_v2};
use crate::cgroup::{Cgroups, Controller, Generation};
use koord_model::CgroupPath;
use rustix::io::Errno;

/// One step. Groups are named below the base, but for `/`, which is the root.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Make(&'static str),
    /// A process goes into the group.
    Enter(&'static str),
    /// All processes end.
    Leave,
    Write {
        at: &'static str,
        file: &'static str,
        text: &'static str,
        answer: Result<&'static str, Errno>,
    },
}

pub(super) const fn takes(
    at: &'static str,
    file: &'static str,
    text: &'static str,
    shown: &'static str,
) -> Step {
    Step::Write {
        at,
        file,
        text,
        answer: Ok(shown),
    }
}

pub(super) const fn refuses(
    at: &'static str,
    file: &'static str,
    text: &'static str,
    errno: Errno,
) -> Step {
    Step::Write {
        at,
        file,
        text,
        answer: Err(errno),
    }
}

/// Every difference is reported, not only the first: with them a script is written.
pub(super) fn raw_writes_are_answered_as_the_script_says(ground: &mut dyn Ground) {
    let script = match generation(ground) {
        Generation::V1 => script_v1::SCRIPT,
        Generation::V2 => script_v2::SCRIPT,
    };
    run(ground, script);
}

/// On cgroup v2 and a machine with a block device 7:5 of which nothing was said before.
pub fn raw_writes_about_a_device_are_answered_as_the_script_says(ground: &mut dyn Ground) {
    run(ground, script_io::SCRIPT);
}

fn run(ground: &mut dyn Ground, script: &[Step]) {
    let mut differences = Vec::new();
    for step in script {
        let path = |name: &str| match name {
            "/" => CgroupPath::root(),
            name => ground.base().join(name).expect("a name of the script"),
        };
        match *step {
            Step::Make(name) => ground.make(&path(name)),
            Step::Enter(name) => ground.enter(&path(name)),
            Step::Leave => ground.leave(),
            Step::Write {
                at,
                file,
                text,
                answer,
            } => {
                let got = write(ground.cgroups(), &path(at), file, text);
                if got != answer.map(ToOwned::to_owned) {
                    differences.push(format!("{step:?} was answered {got:?}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Writes a text and reads the file back. A refused write must leave the file as it was.
fn write(cgroups: &Cgroups, at: &CgroupPath, file: &str, text: &str) -> Result<String, Errno> {
    let controller = Controller::ALL
        .iter()
        .find(|controller| {
            let names = [Generation::V1, Generation::V2].map(|it| controller.name(it));
            file.split('.').next().is_some_and(|it| names.contains(&it))
        })
        .expect("a file of the script is named after its controller");
    let shown = || cgroups.tree.read(*controller, at, file).unwrap_or_default();
    let before = shown();
    match cgroups.tree.write(*controller, at, file, text) {
        Ok(()) => Ok(shown().trim_end().to_owned()),
        Err(error) => {
            assert_eq!(
                shown(),
                before,
                "{file} changed though {text:?} was refused"
            );
            let errno = error.raw_os_error().expect("the error of a system call");
            Err(Errno::from_raw_os_error(errno))
        }
    }
}
