//! Continuous integration runs the tiers of `make test`, by what weighs them there.

use crate::tree;

const WORKFLOW: &str = ".github/workflows/ci.yml";

#[test]
fn continuous_integration_runs_the_tiers_of_make_test() {
    let read = |at: &str| std::fs::read_to_string(tree::root().join(at)).unwrap();
    let (workflow, makefile) = (read(WORKFLOW), read("Makefile"));
    let tested = of_make_test(&makefile);
    assert!(tested.len() > 3, "make test has the tiers {tested:?}");
    let mut run = of_workflow(&workflow);
    run.sort_unstable();
    assert_eq!(run, tested, "{WORKFLOW}");
}

#[test]
fn tiers_are_read_as_written() {
    let makefile =
        "test: tools ## all\n\t@.ci/tiers check 'b&' a wait\n\ntools:\n\t@.ci/need c d\n";
    assert_eq!(of_make_test(makefile), ["a", "b", "check"]);
    let workflow = "      - run: make tools\n      - run: make check\n        tier: [a, b]\n      \
                    - run: .ci/tiers ${{ matrix.tier }}\n";
    assert_eq!(of_workflow(workflow), ["check", "a", "b"]);
    // Nobody would notice there that no test ran.
    let by_make = workflow.replace(".ci/tiers", "make");
    assert_eq!(of_workflow(&by_make), ["check"]);
}

/// The tiers that the target `test` hands on, by their names. Some run beside others there.
fn of_make_test(makefile: &str) -> Vec<&str> {
    let handed = makefile
        .lines()
        .filter_map(|line| line.strip_prefix("\t@.ci/tiers "));
    let names = handed.flat_map(str::split_whitespace);
    let names = names.map(|word| word.trim_matches(['\'', '&']));
    let mut names: Vec<&str> = names.filter(|name| *name != "wait").collect();
    names.sort_unstable();
    names
}

/// The tiers of the workflow: `check`, which has a job of its own, and those of the matrix.
fn of_workflow(workflow: &str) -> Vec<&str> {
    let lines: Vec<&str> = workflow.lines().map(str::trim).collect();
    let made = lines
        .iter()
        .filter_map(|line| line.strip_prefix("- run: make "));
    let check = made.filter(|target| *target == "check");
    let are_weighed = lines.contains(&"- run: .ci/tiers ${{ matrix.tier }}");
    let matrix = lines
        .iter()
        .filter_map(|line| line.strip_prefix("tier: [")?.strip_suffix(']'));
    let matrix = matrix.filter(|_| are_weighed);
    check
        .chain(matrix.flat_map(|tiers| tiers.split(", ")))
        .collect()
}
