//! What the house asks of every room, asked on every change.
//!
//! Clippy and rustc hold what they can; these tests hold the rest: which room may use which, how a
//! file begins and how long it gets, and that the documents speak of things that exist. They read
//! the tree as text and need neither a runtime nor the network. Each collects all its complaints
//! before it fails, so that one run names everything.

mod dependency;
mod document;
mod event;
mod flag;
mod metric;
mod room;
mod rust;
mod source;
mod tier;
mod tree;

/// Fails with every complaint, one to a line.
#[track_caller]
fn none(complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{} complaint(s):\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}
