//! The script for cgroup v2.

use super::script::{Step, refuses, takes};
use Step::{Enter, Leave, Make};
use rustix::io::Errno;

const WEIGHT: &str = "cpu.weight";
const MAX: &str = "cpu.max";
const BURST: &str = "cpu.max.burst";
const IDLE: &str = "cpu.idle";
const CPUS: &str = "cpuset.cpus";
const EFFECTIVE: &str = "cpuset.cpus.effective";
const LIMIT: &str = "memory.max";
const LEAST: &str = "memory.min";
const LOW: &str = "memory.low";
const HIGH: &str = "memory.high";
const OOM_GROUP: &str = "memory.oom.group";

#[rustfmt::skip]
pub(super) const SCRIPT: &[Step] = &[
    Make("p"),
    // Writing nothing shows what a new group has.
    takes("p", WEIGHT, "", "100"),
    takes("p", MAX, "", "max 100000"),
    takes("p", BURST, "", "0"),
    takes("p", IDLE, "", "0"),
    takes("p", CPUS, "", ""),
    takes("p", LIMIT, "", "max"),
    refuses("p", "cpu.shares", "1024", Errno::NOENT),
    refuses("p", "memory.limit_in_bytes", "1", Errno::NOENT),
    refuses("no-such-group", WEIGHT, "1", Errno::NOENT),

    // Weights outside of their range are refused.
    takes("p", WEIGHT, "1", "1"),
    takes("p", WEIGHT, "39", "39"),
    takes("p", WEIGHT, "79\n", "79"),
    takes("p", WEIGHT, "9999", "9999"),
    takes("p", WEIGHT, "10000", "10000"),
    refuses("p", WEIGHT, "0", Errno::RANGE),
    refuses("p", WEIGHT, "10001", Errno::RANGE),
    refuses("p", WEIGHT, "18446744073709551616", Errno::RANGE),
    refuses("p", WEIGHT, "-1", Errno::INVAL),
    refuses("p", WEIGHT, "max", Errno::INVAL),
    refuses("p", WEIGHT, "\n", Errno::INVAL),
    refuses("p", WEIGHT, " 5 ", Errno::INVAL),
    takes("p", WEIGHT, "0x64", "100"),

    // One number is a quota; the second, if it is there, a period.
    takes("p", MAX, "50000", "50000 100000"),
    takes("p", MAX, "50000 20000", "50000 20000"),
    takes("p", MAX, "10000", "10000 20000"),
    takes("p", MAX, "max", "max 20000"),
    takes("p", MAX, "max 100000\n", "max 100000"),
    takes("p", MAX, "5000us", "5000 100000"),
    takes("p", MAX, "6000 x", "6000 100000"),
    takes("p", MAX, "1000", "1000 100000"),
    refuses("p", MAX, "999", Errno::INVAL),
    refuses("p", MAX, "0", Errno::INVAL),
    refuses("p", MAX, "-1", Errno::INVAL),
    refuses("p", MAX, "\n", Errno::INVAL),
    refuses("p", MAX, "5000 999", Errno::INVAL),
    refuses("p", MAX, "5000 1000001", Errno::INVAL),
    takes("p", MAX, "17592186044415", "17592186044415 100000"),
    refuses("p", MAX, "17592186044416", Errno::INVAL),

    // A child may be given more than its parent; it does not get it.
    Make("p/c"),
    takes("p", MAX, "50000 100000", "50000 100000"),
    takes("p/c", MAX, "60000", "60000 100000"),
    takes("p", MAX, "40000", "40000 100000"),
    takes("p/c", MAX, "max", "max 100000"),

    // Burst lies within the quota; without a quota it does not matter.
    Make("b"),
    takes("b", MAX, "50000", "50000 100000"),
    takes("b", BURST, "50000", "50000"),
    refuses("b", BURST, "50001", Errno::INVAL),
    refuses("b", BURST, "-1", Errno::INVAL),
    refuses("b", MAX, "49999", Errno::INVAL),
    takes("b", MAX, "max", "max 100000"),
    refuses("b", MAX, "20000", Errno::INVAL),
    takes("b", BURST, "0", "0"),
    takes("b", MAX, "20000", "20000 100000"),

    // An idle group forgets its weight.
    Make("i"),
    takes("i", WEIGHT, "777", "777"),
    takes("i", IDLE, "1", "1"),
    takes("i", IDLE, "1", "1"),
    takes("i", WEIGHT, "", "0"),
    refuses("i", WEIGHT, "777", Errno::INVAL),
    refuses("i", WEIGHT, "0", Errno::RANGE),
    refuses("i", IDLE, "2", Errno::INVAL),
    refuses("i", IDLE, "-1", Errno::INVAL),
    takes("i", IDLE, "0", "0"),
    takes("i", WEIGHT, "", "100"),

    takes("p", CPUS, "0-1", "0-1"),
    takes("p", CPUS, "0", "0"),
    takes("p", CPUS, "1,0", "0-1"),
    takes("p", CPUS, " 0,,1\n", "0-1"),
    takes("p", CPUS, "0 1", "0-1"),
    takes("p", CPUS, "0,", "0"),
    refuses("p", CPUS, "9999", Errno::RANGE),
    refuses("p", CPUS, "1-0", Errno::INVAL),
    refuses("p", CPUS, "0-", Errno::INVAL),
    refuses("p", CPUS, "-1", Errno::INVAL),
    refuses("p", CPUS, "a", Errno::INVAL),
    // A child may be given a CPU that its parent lacks; it does not get it.
    takes("p/c", CPUS, "1", "1"),
    refuses("p/c", EFFECTIVE, "1", Errno::INVAL),
    takes("p", CPUS, "1", "1"),
    takes("p", CPUS, "\n", ""),
    // What was given is not taken back from a group with a process in or below it.
    takes("p", CPUS, "0-1", "0-1"),
    Enter("p/c"),
    refuses("p/c", CPUS, "\n", Errno::NOSPC),
    refuses("p", CPUS, "\n", Errno::NOSPC),
    takes("p/c", CPUS, "0", "0"),
    takes("p", CPUS, "1", "1"),
    Leave,
    takes("p/c", CPUS, "\n", ""),

    takes("p", LIMIT, "104857600", "104857600"),
    takes("p", LIMIT, "104857599", "104853504"),
    takes("p", LIMIT, "1G", "1073741824"),
    takes("p", LIMIT, "64m", "67108864"),
    takes("p", LIMIT, " 64M \n", "67108864"),
    takes("p", LIMIT, "0x4000000", "67108864"),
    refuses("p", LIMIT, "64x", Errno::INVAL),
    refuses("p", LIMIT, "1.5G", Errno::INVAL),
    refuses("p", LIMIT, "-1", Errno::INVAL),
    takes("p", LIMIT, "9223372036854771711", "9223372036854767616"),
    takes("p", LIMIT, "9223372036854775807", "max"),
    // The limit of a group that has more stands, and what it has is taken away.
    takes("p", LIMIT, "4095", "0"),
    takes("p", LIMIT, "max", "max"),

    Make("m"),
    takes("m", LEAST, "", "0"),
    takes("m", LOW, "", "0"),
    takes("m", HIGH, "", "max"),
    takes("m", LEAST, "50000000", "49999872"),
    // More than the groups above have is taken; it counts as far as they have it.
    takes("m", LOW, "max", "max"),
    takes("m", LOW, "0", "0"),
    takes("m", HIGH, "64M", "67108864"),
    takes("m", HIGH, "max", "max"),
    refuses("m", LEAST, "-1", Errno::INVAL),
    refuses("m", HIGH, "1.5G", Errno::INVAL),
    takes("m", OOM_GROUP, "", "0"),
    takes("m", OOM_GROUP, " 1\n", "1"),
    takes("m", OOM_GROUP, "0", "0"),
    refuses("m", OOM_GROUP, "2", Errno::INVAL),
    refuses("m", OOM_GROUP, "-1", Errno::INVAL),
    refuses("m", OOM_GROUP, "x", Errno::INVAL),
    refuses("m", "memory.wmark_ratio", "95", Errno::NOENT),
    refuses("m", "memory.pagecache_limit.size", "0", Errno::NOENT),
];
