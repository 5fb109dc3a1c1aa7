//! `docs/hooks.md` is the table of hooks, printed.

use koord_hooks::{Chain, HookMeta, OptionGate};
use std::{env, fmt::Display, fs, io, path::Path};

const WRITE: &str = "KOORD_WRITE_DOCS";

#[test]
fn the_page_of_hooks_is_the_table() -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hooks.md");
    let page = page();
    if env::var_os(WRITE).is_some() {
        write(&path, &page)?;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/hooks.md is not what the table of hooks says; write it anew:\n\
         {WRITE}=1 cargo test -p koord-hooks --test docs"
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a page under version control, written on demand"
)]
fn write(path: &Path, page: &str) -> io::Result<()> {
    fs::write(path, page)
}

fn page() -> String {
    let mut page = String::from(
        "# Hooks\n\n\
         Every built-in hook, in the order in which they run. This page is printed from the table in\n\
         `hooks/src/builtin/mod.rs`; a test fails when the two differ. How a hook is written:\n\
         [adding a hook](adding-a-hook.md).\n\n\
         A gate is moved by `--feature-gates NAME=true`, a failure policy by\n\
         `--hook-fail-policy HOOK=Closed`. `AllAlpha` and `AllBeta` move the gates of their kind; those\n\
         of the kind \"own\" are moved by their names only.\n\n\
         | Hook | What it does | Gate | Kind | Default | Stages | On failure | Sets | Reads |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for meta in Chain::builtin_table() {
        page.push_str(&row(meta));
    }
    page.push_str(
        "\nSome hooks have more to do behind further gates, all off by default:\n\n\
         | Gate | Kind | Hook | What it adds |\n\
         | --- | --- | --- | --- |\n",
    );
    for meta in Chain::builtin_table() {
        for option in meta.options {
            let OptionGate {
                gate,
                maturity,
                doc,
            } = option;
            page.push_str(&format!(
                "| `{gate}` | {maturity} | {} | {doc} |\n",
                meta.name
            ));
        }
    }
    page
}

fn row(meta: &HookMeta) -> String {
    let labels = meta
        .inputs
        .labels
        .iter()
        .map(|key| format!("label `{key}`"));
    let annotations = meta.inputs.annotations.iter();
    let annotations = annotations.map(|key| format!("annotation `{key}`"));
    format!(
        "| {} | {} | `{}` | {} | {} | {} | {} | {} | {} |\n",
        meta.name,
        meta.doc,
        meta.gate,
        meta.maturity,
        if meta.default_on { "on" } else { "off" },
        list(meta.stages.iter()),
        meta.fail_policy,
        list(meta.settings.iter().map(|setting| format!("`{setting}`"))),
        list(labels.chain(annotations)),
    )
}

fn list<T: Display>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    items.join(", ")
}
