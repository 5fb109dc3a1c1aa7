//! The documented table of flags is that of the program.

use crate::none;
use crate::tree;

const KEYS: &str = "proxy/src/config/key.rs";
const PAGE: &str = "docs/configuration.md";

#[test]
fn the_page_lists_every_flag_with_its_default() {
    let keys = std::fs::read_to_string(tree::root().join(KEYS)).unwrap();
    let page = std::fs::read_to_string(tree::root().join(PAGE)).unwrap();
    let said: Vec<_> = keys.lines().filter_map(key).collect();
    let listed: Vec<_> = page.lines().filter_map(row).collect();
    assert!(said.len() > 20, "{KEYS} has {} keys", said.len());
    let missing = said.iter().filter(|key| !listed.contains(key));
    let unknown = listed.iter().filter(|row| !said.contains(row));
    let complaints = missing
        .map(|(name, default)| format!("{PAGE} lacks --{name} with the default `{default}`"))
        .chain(unknown.map(|(name, default)| format!("{KEYS} lacks --{name} = {default:?}")));
    none(&complaints.collect::<Vec<_>>());
}

#[test]
fn a_key_and_its_row_are_read_alike() {
    let key_line = r#"    LIMIT "max-things" <"COUNT"> = "5" extends:"#;
    assert_eq!(key(key_line), Some(("max-things", "5")));
    assert_eq!(
        row("| `--max-things` | `5` | how many |"),
        Some(("max-things", "5"))
    );
    assert_eq!(
        row("| `--max-things` | – | how many |"),
        Some(("max-things", ""))
    );
    assert_eq!(key("    $constant:ident $name:literal"), None);
}

/// Name and default on a line of the program's table: `CONSTANT "name" <"VALUE"> = "default"`.
fn key(line: &str) -> Option<(&str, &str)> {
    let (constant, rest) = line.trim().split_once(' ')?;
    let is_constant = |c: char| c.is_ascii_uppercase() || c == '_';
    let quoted: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
    match quoted.as_slice() {
        [name, _value, default, ..] if constant.chars().all(is_constant) => Some((name, default)),
        _ => None,
    }
}

/// Name and default in a row of the page's table: `| --name | default | … |`.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix("| `--")?.split(" | ");
    let name = cells.next()?.strip_suffix('`')?;
    let default = cells.next()?;
    Some((name, default.trim_matches(['`', '–'])))
}
