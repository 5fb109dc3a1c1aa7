//! What README.md has its readers type, as it stands there: its code blocks, section by section.

use anyhow::{Context, Result, bail, ensure};

/// One code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What stands behind its opening fence; nothing for commands of a shell.
    pub language: String,
    /// Without the indentation of the list that it is in.
    pub text: String,
}

// === impl Block ===

impl Block {
    /// The commands of a block of a shell, one on each line.
    pub fn commands(&self) -> Result<Vec<&str>> {
        ensure!(
            self.language.is_empty(),
            "this is no shell: {}",
            self.language
        );
        let lines: Vec<&str> = self.text.lines().filter(|line| !line.is_empty()).collect();
        match lines.iter().find(|line| line.ends_with('\\')) {
            Some(line) => bail!("a command of several lines: {line}"),
            None => Ok(lines),
        }
    }
}

/// The blocks below a heading, up to the next one of any level.
pub fn blocks(markdown: &str, heading: &str) -> Result<Vec<Block>> {
    let mut lines = markdown.lines();
    lines
        .find(|line| *line == heading)
        .with_context(|| format!("there is no heading {heading:?}"))?;
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with('#') {
            break;
        }
        let Some((indentation, language)) = line.split_once("```") else {
            continue;
        };
        let indentation = indentation.len();
        let mut text = String::new();
        loop {
            let line = lines.next().context("a block without an end")?;
            if line.trim_start() == "```" {
                break;
            }
            text.push_str(line.get(indentation..).unwrap_or_default());
            text.push('\n');
        }
        blocks.push(Block {
            language: language.to_owned(),
            text,
        });
    }
    Ok(blocks)
}

/// The words that stand for what a reader knows: `FILE`, `10-NAME.conf`. Those of the shell (`$HOME`) do not.
pub fn placeholders(command: &str) -> impl Iterator<Item = &str> {
    let words = command.split(|c: char| !(c.is_alphanumeric() || c == '$' || c == '_'));
    words.filter(|word| word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# One

```
not this
```

## Two

1. Do it:

   ```
   first -a
   second FILE FILE.before

   third
   ```

2. Write it:

   ```yaml
   a:
     b: c
   ```

### Three

```
nor this
```
";

    #[test]
    fn blocks_of_one_section_are_found_without_their_indentation() {
        let found = blocks(TEXT, "## Two").unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.language.as_str(), it.text.as_str()))
            .collect();
        let first = "first -a\nsecond FILE FILE.before\n\nthird\n";
        assert_eq!(found, [("", first), ("yaml", "a:\n  b: c\n")]);
        assert!(blocks(TEXT, "## Four").is_err());
    }

    #[test]
    fn commands_are_lines_of_a_shell() {
        let found = blocks(TEXT, "## Two").unwrap();
        let commands = ["first -a", "second FILE FILE.before", "third"];
        assert_eq!(found[0].commands().unwrap(), commands);
        assert!(found[1].commands().is_err(), "it is YAML");
        let long = blocks("# A\n```\na \\\n  b\n```\n", "# A").unwrap();
        assert!(long[0].commands().is_err(), "it goes on");
    }

    #[test]
    fn what_a_reader_has_to_fill_in_is_found() {
        let found = |command| placeholders(command).collect::<Vec<_>>();
        assert_eq!(found("cp -a FILE FILE.before-it"), ["FILE", "FILE"]);
        assert_eq!(found("install 10-NAME.conf"), ["NAME"]);
        assert_eq!(found("rm -rf /etc/A.B $HOME"), Vec::<&str>::new());
    }
}
