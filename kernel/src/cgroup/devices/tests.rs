use super::*;
use crate::{
    cgroup::{Change, Controller, Names, Tree, Version},
    fake::{Errno, FakeDisks, FakeTree},
};
use koord_model::{BlockName, CostRates, IoWeight, Latency, PodUid};
use std::os::fd::OwnedFd;
use tempfile::TempDir;

struct Machine {
    generation: Generation,
    tree: FakeTree,
    disks: FakeDisks,
    cgroups: Cgroups,
    at: CgroupPath,
    _directory: TempDir,
}

fn number(text: &str) -> DeviceNumber {
    text.parse().unwrap()
}

fn machine(generation: Generation, tree: FakeTree) -> Machine {
    let directory = tempfile::tempdir().unwrap();
    let disks = FakeDisks::new(directory.path());
    for (name, number) in [("vda", number("252:0")), ("vdb", number("252:16"))] {
        disks.disk(name, number);
        tree.add_device(number);
    }
    let at = CgroupPath::parse("kubepods").unwrap();
    tree.make(&at);
    Machine {
        generation,
        cgroups: Cgroups::over(tree.clone()).with_devices(disks.devices()),
        tree,
        disks,
        at,
        _directory: directory,
    }
}

fn on(generation: Generation) -> Machine {
    machine(generation, FakeTree::new(generation, 2).with_io_cost())
}

fn device(name: &str) -> Block {
    Block::Device(BlockName::device(name).unwrap())
}

fn read_bps(rates: &[(&str, i64)]) -> Value {
    let rate = |(name, rate): &(&str, i64)| (device(name), IoRate::new(*rate).unwrap());
    Value::IoReadBps(rates.iter().map(rate).collect())
}

fn write_iops(rate: i64) -> Value {
    Value::IoWriteIops(
        [(device("vda"), IoRate::new(rate).unwrap())]
            .into_iter()
            .collect(),
    )
}

impl Machine {
    fn write(&self, value: &Value) -> Applied {
        self.cgroups.write(&self.at, value)
    }

    fn shown(&self, setting: Setting) -> String {
        self.cgroups.raw(&self.at, setting).unwrap().1
    }

    /// Somebody else writes to the file of what may be read in a second.
    fn meddle(&self, text: &str) {
        let file = match self.generation {
            Generation::V1 => "blkio.throttle.read_bps_device",
            Generation::V2 => "io.max",
        };
        let written = self.tree.write(Controller::Io, &self.at, file, text);
        written.unwrap();
        self.tree.take_writes();
    }

    fn texts(&self) -> Vec<String> {
        self.tree
            .take_writes()
            .into_iter()
            .map(|it| it.text)
            .collect()
    }
}

const BOTH: [Generation; 2] = [Generation::V1, Generation::V2];

fn rate(rate: i64) -> IoRate {
    IoRate::new(rate).unwrap()
}

/// A value for the first disk, and none for any.
fn there_and_not<T: Copy>(value: T, of: fn(PerBlock<T>) -> Value) -> [Value; 2] {
    let there = [(device("vda"), value)].into_iter().collect();
    [of(there), of(PerBlock::default())]
}

#[test]
fn each_rate_is_written_in_the_words_of_its_file_and_given_back() {
    let of = |of| there_and_not(rate(1_048_576), of);
    let values = || {
        [
            of(Value::IoReadBps),
            of(Value::IoWriteBps),
            of(Value::IoReadIops),
            of(Value::IoWriteIops),
        ]
    };
    let [v1, v2] = [on(Generation::V1), on(Generation::V2)];
    for value in values() {
        assert_there_and_back(&v1, &v1.at, &value, ["252:0 1048576", "252:0 0"]);
        v1.write(&value[0]).unwrap();
        assert_eq!(v1.shown(value[0].setting()), "252:0 1048576");
        v1.tree.take_writes();
    }
    for (value, [written, shown, reset]) in values().iter().zip([
        [
            "252:0 rbps=1048576",
            "252:0 rbps=1048576 wbps=max riops=max wiops=max",
            "252:0 rbps=max",
        ],
        [
            "252:0 wbps=1048576",
            "252:0 rbps=max wbps=1048576 riops=max wiops=max",
            "252:0 wbps=max",
        ],
        [
            "252:0 riops=1048576",
            "252:0 rbps=max wbps=max riops=1048576 wiops=max",
            "252:0 riops=max",
        ],
        [
            "252:0 wiops=1048576",
            "252:0 rbps=max wbps=max riops=max wiops=1048576",
            "252:0 wiops=max",
        ],
    ]) {
        assert_there_and_back(&v2, &v2.at, value, [written, reset]);
        v2.write(&value[0]).unwrap();
        assert_eq!(v2.shown(value[0].setting()), shown);
        v2.write(&value[1]).unwrap();
        assert_eq!(v2.shown(value[0].setting()), "");
        v2.tree.take_writes();
    }
}

#[test]
fn what_shares_out_a_device_is_written_in_the_words_of_its_file_and_given_back() {
    let cost = |bytes, sequential, random| CostRates {
        bytes: rate(bytes),
        sequential: rate(sequential),
        random: rate(random),
    };
    let qos = CostQos {
        read: Latency::new(95, 3_000).unwrap(),
        write: Latency::new(90, 5_000).unwrap(),
    };
    let model = CostModel {
        read: cost(1, 2, 3),
        write: cost(4, 5, 6),
    };
    let root = CgroupPath::root();
    for generation in BOTH {
        let machine = on(generation);
        // The kernel has no part of a device for anybody before the root has this.
        let line = "252:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=90.00 wlat=5000";
        let value = there_and_not(qos, Value::IoCostQos);
        assert_there_and_back(&machine, &root, &value, [line, "252:0 enable=0 ctrl=auto"]);
        let line = "252:0 ctrl=user rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6";
        let value = there_and_not(model, Value::IoCostModel);
        assert_there_and_back(&machine, &root, &value, [line, "252:0 ctrl=auto"]);
        let value = there_and_not(IoWeight::new(50).unwrap(), Value::IoWeight);
        let reset = either(generation, "252:0 100", "252:0 default");
        assert_there_and_back(&machine, &machine.at, &value, ["252:0 50", reset]);
    }
}

/// A value is written once and given back once, by these texts.
fn assert_there_and_back(
    machine: &Machine,
    at: &CgroupPath,
    [value, nothing]: &[Value; 2],
    [written, reset]: [&str; 2],
) {
    let write = |value| machine.cgroups.write(at, value).unwrap();
    assert_eq!(write(nothing), Written::Equal);
    assert!(!machine.cgroups.holds(at, value).unwrap(), "{value}");
    assert_eq!(write(value), Written::Adjusted);
    assert!(machine.cgroups.holds(at, value).unwrap(), "{value}");
    assert!(!machine.cgroups.holds(at, nothing).unwrap(), "{value}");
    assert_eq!(write(value), Written::Equal);
    assert_eq!(write(nothing), Written::Adjusted);
    assert_eq!(write(nothing), Written::Equal);
    assert_eq!(machine.texts(), [written, reset]);
}

#[test]
fn devices_that_are_not_named_are_left_alone() {
    for generation in BOTH {
        let machine = on(generation);
        machine.meddle(either(generation, "252:16 7", "252:16 rbps=7 wiops=9"));
        machine.write(&read_bps(&[("vda", 5)])).unwrap();
        machine.write(&read_bps(&[])).unwrap();
        assert_eq!(
            machine.shown(Setting::IoReadBps),
            either(
                generation,
                "252:16 7",
                "252:16 rbps=7 wbps=max riops=max wiops=9"
            )
        );
    }
}

#[test]
fn what_a_device_had_before_comes_back_also_after_a_restart() {
    for generation in BOTH {
        let machine = on(generation);
        machine.meddle(either(generation, "252:0 7", "252:0 rbps=7"));
        machine.write(&read_bps(&[("vda", 5), ("vdb", 6)])).unwrap();
        machine.tree.take_writes();
        // Another process, which has no memory of this one.
        let later = Cgroups::over(machine.tree.clone()).with_devices(machine.disks.devices());
        let named = read_bps(&[("vdb", 6)]);
        assert_eq!(later.write(&machine.at, &named).unwrap(), Written::Adjusted);
        assert_eq!(
            machine.texts(),
            [either(generation, "252:0 7", "252:0 rbps=7")]
        );
        assert_eq!(later.write(&machine.at, &named).unwrap(), Written::Equal);
        later.write(&machine.at, &read_bps(&[])).unwrap();
        assert_eq!(
            machine.texts(),
            [either(generation, "252:16 0", "252:16 rbps=max")]
        );
    }
}

#[test]
fn latencies_that_somebody_else_has_said_come_back_whether_or_not_they_count() {
    let qos = CostQos {
        read: Latency::new(95, 3_000).unwrap(),
        write: Latency::new(90, 5_000).unwrap(),
    };
    let [ours, nothing] = there_and_not(qos, Value::IoCostQos);
    let root = CgroupPath::root();
    for before in [
        "252:0 enable=0 ctrl=user rpct=50.00 rlat=7 wpct=60.00 wlat=8",
        "252:0 enable=1 ctrl=user rpct=50.00 rlat=7 wpct=60.00 wlat=8",
        "252:0 enable=1 ctrl=auto",
        "252:0 enable=0 ctrl=auto",
    ] {
        let machine = on(Generation::V2);
        let written = machine
            .tree
            .write(Controller::Io, &root, "io.cost.qos", before);
        written.unwrap();
        let write = |value| machine.cgroups.write(&root, value).unwrap();
        assert_eq!(write(&ours), Written::Adjusted);
        machine.tree.take_writes();
        assert_eq!(write(&nothing), Written::Adjusted);
        assert_eq!(machine.texts(), [before]);
        assert_eq!(write(&nothing), Written::Equal);
    }
}

#[test]
fn a_group_that_takes_no_notes_is_remembered_until_a_restart() {
    let tree = FakeTree::new(Generation::V1, 2).without_notes();
    let machine = machine(Generation::V1, tree);
    machine.meddle("252:0 7");
    machine.write(&read_bps(&[("vda", 5)])).unwrap();
    machine.write(&read_bps(&[])).unwrap();
    assert_eq!(machine.texts(), ["252:0 5", "252:0 7"]);
    assert!(machine.cgroups.notes.lock().is_empty());

    machine.write(&read_bps(&[("vda", 5)])).unwrap();
    machine.tree.remove(&machine.at);
    let other = CgroupPath::parse("other").unwrap();
    machine.tree.make(&other);
    machine
        .cgroups
        .write(&other, &read_bps(&[("vda", 5)]))
        .unwrap();
    let notes = machine.cgroups.notes.lock();
    assert_eq!(
        notes.len(),
        1,
        "those of a group that has gone are forgotten"
    );
}

#[test]
fn what_could_not_be_noted_is_noted_with_the_next_look_at_the_group() {
    for generation in BOTH {
        let machine = on(generation);
        machine.meddle(either(generation, "252:0 7", "252:0 rbps=7"));
        let noted = || {
            let later = Cgroups::over(machine.tree.clone());
            later
                .noted(Controller::Io, &machine.at, Setting::IoReadBps)
                .unwrap()
        };
        machine.tree.refuse_notes(Some(Errno::NFILE));
        machine.write(&read_bps(&[("vda", 5)])).unwrap();
        assert_eq!(noted(), "");
        machine.tree.refuse_notes(None);
        machine.write(&read_bps(&[("vda", 5)])).unwrap();
        assert_eq!(noted(), "252:0 7\n");

        // Nor is it lost that nothing of ours is there any more, also while the note stands.
        machine.tree.refuse_notes(Some(Errno::NOMEM));
        machine.write(&read_bps(&[])).unwrap();
        assert_eq!(noted(), "252:0 7\n");
        assert_eq!(machine.cgroups.device_originals(&machine.at).unwrap(), []);
        machine.tree.refuse_notes(None);
        machine.write(&read_bps(&[])).unwrap();
        assert_eq!(noted(), "");
        assert!(machine.cgroups.notes.lock().is_empty());
    }
}

#[test]
fn what_is_too_long_for_a_note_is_remembered_in_its_place_until_it_is_shorter() {
    let machine = on(Generation::V2);
    let (cgroups, setting) = (&machine.cgroups, Setting::IoReadBps);
    let noted = |cgroups: &Cgroups| {
        let text = cgroups.noted(Controller::Io, &machine.at, setting);
        text.unwrap()
    };
    let long = "252:0\n".repeat(11_000);
    for (text, after_a_restart) in [
        ("252:16\n", "252:16\n"),
        (&long, "252:16\n"),
        ("252:0\n", "252:0\n"),
    ] {
        cgroups.set_noted(Controller::Io, (&machine.at, setting), text.to_owned());
        assert_eq!(noted(cgroups), text);
        assert_eq!(noted(&Cgroups::over(machine.tree.clone())), after_a_restart);
    }
    assert!(cgroups.notes.lock().is_empty());
}

#[test]
fn of_a_group_that_others_may_write_to_this_process_alone_remembers() {
    for generation in BOTH {
        let machine = on(generation);
        machine.tree.give_away(&machine.at);
        let had = either(generation, "252:0 7", "252:0 rbps=7");
        machine.meddle(had);
        machine.write(&read_bps(&[("vda", 5)])).unwrap();
        let later = Cgroups::over(machine.tree.clone());
        assert_eq!(later.device_originals(&machine.at).unwrap(), []);
        machine.write(&read_bps(&[])).unwrap();
        assert!(machine.shown(Setting::IoReadBps).starts_with(had));
        assert!(machine.cgroups.notes.lock().is_empty());
    }
}

#[test]
fn a_note_that_cannot_be_read_now_is_not_taken_for_none() {
    for generation in BOTH {
        let machine = on(generation);
        let named = read_bps(&[("vda", 5)]);
        machine.meddle(either(generation, "252:0 7", "252:0 rbps=7"));
        machine.write(&named).unwrap();
        machine.tree.take_writes();

        machine.tree.fail_notes(Some(Errno::MFILE));
        for value in [&named, &read_bps(&[("vda", 6)]), &read_bps(&[])] {
            let error = machine.write(value).unwrap_err();
            let errno = Some(Errno::MFILE.raw_os_error());
            assert_eq!(error.errno(), errno, "{error}");
            assert_eq!(machine.cgroups.holds(&machine.at, value), Some(false));
        }
        assert_eq!(machine.texts(), [""; 0]);

        machine.tree.fail_notes(None);
        machine.write(&read_bps(&[])).unwrap();
        assert_eq!(
            machine.texts(),
            [either(generation, "252:0 7", "252:0 rbps=7")]
        );
    }
}

#[test]
fn a_device_that_is_not_there_stops_none_of_the_others() {
    for generation in BOTH {
        let machine = on(generation);
        let value = read_bps(&[("sdx", 5), ("vda", 5), ("sdy", 5)]);
        let error = machine.write(&value).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} of cgroup /kubepods is not as it should be for /dev/sdx, /dev/sdy",
                either(generation, "blkio.throttle.read_bps_device", "io.max")
            )
        );
        let (whose, source) = error.lacking().unwrap();
        assert_eq!(whose, "/dev/sdx, /dev/sdy");
        assert_eq!(source.to_string(), "no block device is called /dev/sdx");
        assert_eq!(
            machine.texts(),
            [either(generation, "252:0 5", "252:0 rbps=5")]
        );
        assert!(!machine.cgroups.holds(&machine.at, &value).unwrap());
        // It comes.
        for (name, number) in [("sdx", number("8:0")), ("sdy", number("8:16"))] {
            machine.disks.disk(name, number);
            machine.tree.add_device(number);
        }
        assert_eq!(machine.write(&value).unwrap(), Written::Adjusted);
    }
}

#[test]
fn what_cannot_be_found_out_is_given_back_once_it_can() {
    let volume = Block::PodVolume {
        pod: PodUid::new("uid-1").unwrap(),
        volume: BlockName::volume("pvc-1").unwrap(),
    };
    let value = |of_disk| {
        let rates = [(device("vda"), rate(of_disk)), (volume.clone(), rate(6))];
        Value::IoReadBps(rates.into_iter().collect())
    };
    for generation in BOTH {
        let machine = on(generation);
        machine.disks.mount(number("252:16"), "uid-1", "pvc-1");
        machine.write(&value(5)).unwrap();
        machine.tree.take_writes();

        machine.disks.spoil("proc/self/mountinfo");
        let error = machine.write(&value(7)).unwrap_err();
        let (whose, source) = error.lacking().unwrap();
        assert_eq!(whose, "volume pvc-1");
        assert!(source.to_string().starts_with("cannot read "), "{source}");
        assert!(!machine.cgroups.holds(&machine.at, &value(7)).unwrap());
        // What is found has its new value all the same.
        assert_eq!(
            machine.texts(),
            [either(generation, "252:0 7", "252:0 rbps=7")]
        );
        machine.disks.mend("proc/self/mountinfo");
        assert_eq!(machine.write(&value(7)).unwrap(), Written::Equal);

        // Nor is anything given back by whoever knows no devices at all.
        let blind = Cgroups::over(machine.tree.clone());
        assert!(blind.write(&machine.at, &value(7)).is_err());
        assert_eq!(machine.texts(), [""; 0]);

        machine.disks.unmount_all();
        let error = machine.write(&value(7)).unwrap_err();
        let source = error.lacking().unwrap().1.to_string();
        assert!(source.starts_with("nothing is mounted at "), "{source}");
        // Its name may be one that nobody has told us yet what it means.
        assert_eq!(machine.texts(), [""; 0]);
        machine.write(&read_bps(&[("vda", 7)])).unwrap();
        assert_eq!(
            machine.texts(),
            [either(generation, "252:16 0", "252:16 rbps=max")]
        );
    }
}

#[test]
fn of_many_devices_that_are_not_there_the_first_are_named() {
    let machine = on(Generation::V2);
    let whose = |names: &[&str]| {
        let rates: Vec<(&str, i64)> = names.iter().map(|name| (*name, 5)).collect();
        let error = machine.write(&read_bps(&rates)).unwrap_err();
        error.lacking().unwrap().0.to_owned()
    };
    assert_eq!(
        whose(&["sda", "sdb", "sdc", "sdd"]),
        "/dev/sda, /dev/sdb, /dev/sdc, /dev/sdd"
    );
    assert_eq!(
        whose(&["sda", "sdb", "sdc", "sdd", "sde", "sdf"]),
        "/dev/sda, /dev/sdb, /dev/sdc, /dev/sdd and 2 more"
    );
}

#[test]
fn a_refusal_for_one_device_stops_none_of_the_others() {
    let machine = on(Generation::V2);
    machine
        .tree
        .fail_next_write(&machine.at, "io.max", Errno::NODEV);
    let error = machine
        .write(&read_bps(&[("vda", 5), ("vdb", 6)]))
        .unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENODEV));
    assert!(!error.is_gone(), "the group is there");
    let source = error.lacking().unwrap().1.to_string();
    assert_eq!(source, r#"the kernel refuses "252:0 rbps=5""#);
    assert_eq!(machine.texts(), ["252:16 rbps=6"]);

    // One that could not be given back is tried again.
    machine
        .tree
        .fail_next_write(&machine.at, "io.max", Errno::NOMEM);
    assert!(machine.write(&read_bps(&[])).is_err());
    assert_eq!(machine.write(&read_bps(&[])).unwrap(), Written::Adjusted);
    assert_eq!(machine.texts(), ["252:16 rbps=max"]);
}

#[test]
fn a_number_that_is_another_devices_now_is_left_alone() {
    for generation in BOTH {
        let machine = on(generation);
        let value = read_bps(&[("vdb", 5)]);
        machine.write(&value).unwrap();
        machine.tree.lose_device(number("252:16"));
        machine.disks.lose("vdb", number("252:16"));
        machine.disks.disk("vdc", number("252:16"));
        machine.tree.add_device(number("252:16"));
        machine.tree.take_writes();
        let error = machine.write(&value).unwrap_err();
        assert_eq!(error.lacking().unwrap().0, "/dev/vdb");
        // What somebody gives the new one is theirs.
        machine.meddle(either(generation, "252:16 7", "252:16 rbps=7"));
        machine.write(&read_bps(&[])).unwrap();
        assert_eq!(machine.texts(), [""; 0]);
    }
}

#[test]
fn what_a_device_had_before_is_not_given_to_the_next_one_of_its_number() {
    for generation in BOTH {
        let machine = on(generation);
        machine.meddle(either(generation, "252:16 7", "252:16 rbps=7"));
        let value = read_bps(&[("vdb", 5)]);
        machine.write(&value).unwrap();
        // Another one by that name and number, before anybody has looked.
        machine.tree.lose_device(number("252:16"));
        machine.tree.add_device(number("252:16"));
        machine.write(&value).unwrap();
        machine.write(&read_bps(&[])).unwrap();
        assert_eq!(machine.shown(Setting::IoReadBps).trim_end(), "");
    }
}

#[test]
fn drift_of_one_device_is_repaired_alone() {
    for generation in BOTH {
        let machine = on(generation);
        let value = read_bps(&[("vda", 5), ("vdb", 6)]);
        machine.write(&value).unwrap();
        machine.meddle(either(generation, "252:16 7", "252:16 rbps=7 wbps=1"));
        let change = Change {
            at: machine.at.clone(),
            value,
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let applied = machine.cgroups.apply(&[change]);
        assert!(
            matches!(applied[..], [Ok(Written::Adjusted)]),
            "{applied:?}"
        );
        assert_eq!(
            machine.texts(),
            [either(generation, "252:16 6", "252:16 rbps=6")]
        );
    }
}

#[test]
fn of_two_names_of_one_device_the_lesser_value_counts() {
    let machine = on(Generation::V1);
    machine.disks.partition("vda", "vda1", number("252:1"));
    machine
        .write(&read_bps(&[("vda", 9), ("vda1", 5)]))
        .unwrap();
    machine
        .write(&read_bps(&[("vda", 4), ("vda1", 5)]))
        .unwrap();
    assert_eq!(machine.texts(), ["252:0 5", "252:0 4"]);
}

#[test]
fn as_many_operations_as_the_kernel_can_count_are_no_limit() {
    for (rate, written) in [
        (4_294_967_294, &["252:0 wiops=4294967294"][..]),
        (4_294_967_295, &[]),
        (i64::MAX, &[]),
    ] {
        let machine = on(Generation::V2);
        machine.write(&write_iops(rate)).unwrap();
        assert_eq!(machine.texts(), written);
    }
}

#[test]
fn a_group_that_is_gone_or_has_no_such_file_is_told() {
    let machine = on(Generation::V2);
    machine.tree.remove(&machine.at);
    assert!(
        machine
            .write(&read_bps(&[("vda", 5)]))
            .unwrap_err()
            .is_gone()
    );
    let machine = super::tests::machine(
        Generation::V2,
        FakeTree::new(Generation::V2, 2).without("io.max"),
    );
    let error = machine.write(&read_bps(&[("vda", 5)])).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
}

/// A tree on a machine where nothing is mounted any more once something was written.
#[derive(Debug)]
struct Unmounting {
    tree: FakeTree,
    disks: FakeDisks,
}

impl Tree for Unmounting {
    fn version(&self) -> Version {
        self.tree.version()
    }

    fn generation(&self, controller: Controller) -> Option<Generation> {
        self.tree.generation(controller)
    }

    fn inode(&self, controller: Controller, at: &CgroupPath) -> io::Result<Option<u64>> {
        self.tree.inode(controller, at)
    }

    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<bool> {
        self.tree.has_file(controller, at, file)
    }

    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String> {
        self.tree.read(controller, at, file)
    }

    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()> {
        self.disks.unmount_all();
        self.tree.write(controller, at, file, text)
    }

    fn watch(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<OwnedFd> {
        self.tree.watch(controller, at, file)
    }

    fn children(&self, controller: Controller, at: &CgroupPath, most: usize) -> io::Result<Names> {
        self.tree.children(controller, at, most)
    }

    fn note(&self, controller: Controller, at: &CgroupPath, note: Note) -> io::Result<String> {
        self.tree.note(controller, at, note)
    }

    fn set_note(
        &self,
        controller: Controller,
        at: &CgroupPath,
        note: Note,
        text: &str,
    ) -> io::Result<()> {
        self.tree.set_note(controller, at, note, text)
    }
}

#[test]
fn what_is_written_together_goes_by_one_look() {
    let machine = on(Generation::V2);
    machine.disks.mount(number("252:16"), "uid-1", "pvc-1");
    let other = CgroupPath::parse("other").unwrap();
    machine.tree.make(&other);
    let tree = Unmounting {
        tree: machine.tree.clone(),
        disks: machine.disks.clone(),
    };
    let cgroups = Cgroups::over(tree).with_devices(machine.disks.devices());
    let volume = Block::PodVolume {
        pod: PodUid::new("uid-1").unwrap(),
        volume: BlockName::volume("pvc-1").unwrap(),
    };
    let value = Value::IoReadBps([(volume, rate(5))].into_iter().collect());
    let changes = [&machine.at, &other].map(|at| Change {
        at: at.clone(),
        value: value.clone(),
        gives_back: false,
        of_container: false,
        may_return: false,
    });
    let applied = cgroups.apply(&changes);
    let is_adjusted = |it: &Applied| matches!(it, Ok(Written::Adjusted));
    assert!(applied.iter().all(is_adjusted), "{applied:?}");
    let applied = cgroups.apply(&changes);
    assert!(applied.iter().all(Result::is_err), "{applied:?}");
}

fn either(generation: Generation, v1: &'static str, v2: &'static str) -> &'static str {
    match generation {
        Generation::V1 => v1,
        Generation::V2 => v2,
    }
}
