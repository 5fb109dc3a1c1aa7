//! Somebody who has a page open, the README above all, and types what it says, word for word, in the
//! repository.

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{
    readme::{self, Block},
    vm::REPOSITORY,
};
use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::Path,
    process::Command,
};

/// What is not typed here, and why.
const LEFT_OUT: [(&str, &str); 3] = [
    (
        "cargo build --release --locked --package koord-runtime-proxy",
        "it was built outside, and lies where this would put it",
    ),
    (
        "crictl --runtime-endpoint unix:///var/run/koord-runtimeproxy/runtimeproxy.sock ps",
        "Debian has none, as the README says; a client of ours asks the same",
    ),
    (
        "kubectl annotate node NODE --overwrite kubeadm.alpha.kubernetes.io/cri-socket=unix:///var/run/koord-runtimeproxy/runtimeproxy.sock",
        "there is no cluster",
    ),
];

/// What a command said and how it ended.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) command: String,
    pub(super) status: Option<i32>,
    /// Standard output.
    pub(super) text: String,
    /// Standard error.
    pub(super) complaint: String,
}

/// A section of a page, read up to some block.
pub(super) struct Reader {
    heading: &'static str,
    blocks: VecDeque<Block>,
    /// What its words in capitals stand for, as far as the reader knows.
    known: BTreeMap<&'static str, String>,
}

// === impl Answer ===

impl Answer {
    pub(super) fn ended(self, status: i32) -> Result<Self> {
        let Self {
            command,
            status: ended,
            text,
            complaint,
        } = &self;
        ensure!(
            *ended == Some(status),
            "{command} ended with {ended:?}, not {status}: {text}{complaint}"
        );
        Ok(self)
    }
}

// === impl Reader ===

impl Reader {
    pub(super) fn opens(page: &str, heading: &'static str) -> Result<Self> {
        let page = fs::read_to_string(Path::new(REPOSITORY).join(page))?;
        Ok(Self {
            heading,
            blocks: readme::blocks(&page, heading)?.into(),
            known: BTreeMap::new(),
        })
    }

    /// Says what a word in capitals stands for from here on.
    pub(super) fn knows(&mut self, word: &'static str, what: &str) {
        self.known.insert(word, what.to_owned());
    }

    /// Passes over a block that is for others.
    pub(super) fn passes_over(&mut self) -> Result<()> {
        self.turns().map(drop)
    }

    /// Types the commands of the next block, each of which has to succeed.
    pub(super) fn types(&mut self) -> Result<Vec<Answer>> {
        let answers = self.types_whatever_comes()?;
        answers.into_iter().map(|it| it.ended(0)).collect()
    }

    /// Types the commands of the next block.
    pub(super) fn types_whatever_comes(&mut self) -> Result<Vec<Answer>> {
        let block = self.turns()?;
        let mut answers = Vec::new();
        for command in block.commands()? {
            if LEFT_OUT.iter().any(|(left_out, _)| *left_out == command) {
                continue;
            }
            answers.push(run(&self.filled_in(command)?)?);
        }
        Ok(answers)
    }

    /// The next block, which is part of a file in this language.
    pub(super) fn copies(&mut self, language: &str) -> Result<String> {
        let block = self.turns()?;
        ensure!(block.language == language, "{block:?}");
        Ok(block.text)
    }

    /// Fails if there is more to read.
    pub(super) fn closes(&self) -> Result<()> {
        let unread = &self.blocks;
        ensure!(
            unread.is_empty(),
            "{} has blocks that nobody typed: {unread:#?}",
            self.heading
        );
        Ok(())
    }

    fn turns(&mut self) -> Result<Block> {
        let next = self.blocks.pop_front();
        next.with_context(|| format!("{} has fewer blocks than were expected", self.heading))
    }

    fn filled_in(&self, command: &str) -> Result<String> {
        let mut filled_in = command.to_owned();
        for word in readme::placeholders(command) {
            let Some(what) = self.known.get(word) else {
                bail!("nobody knows {word} in {command}");
            };
            filled_in = filled_in.replacen(word, what, 1);
        }
        Ok(filled_in)
    }
}

/// Runs a command as a reader does: in a shell, in the repository.
pub(super) fn run(command: &str) -> Result<Answer> {
    let output = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(REPOSITORY)
        .output()
        .context("there is no shell")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Answer {
        command: command.to_owned(),
        status: output.status.code(),
        text: text(&output.stdout),
        complaint: text(&output.stderr),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = include_str!("../../../../README.md");

    #[test]
    fn what_is_not_typed_stands_in_the_readme() -> Result<()> {
        let blocks = readme::blocks(README, "## On a node")?;
        let shell = blocks.iter().filter(|it| it.language.is_empty());
        let commands: Vec<Vec<&str>> = shell.map(Block::commands).collect::<Result<_>>()?;
        let commands = commands.concat();
        for (left_out, reason) in LEFT_OUT {
            assert!(commands.contains(&left_out), "{left_out}: {reason}");
        }
        Ok(())
    }

    /// The machine types them all, and fails at one too many or too few, minutes later.
    #[test]
    fn the_readme_has_the_blocks_that_are_typed() -> Result<()> {
        let count = |heading| readme::blocks(README, heading).map(|blocks| blocks.len());
        assert_eq!(count("## On a node")?, 9);
        assert_eq!(count("### Undo")?, 4);
        assert_eq!(count("### As the runtime's NRI plugin")?, 3);
        Ok(())
    }
}
