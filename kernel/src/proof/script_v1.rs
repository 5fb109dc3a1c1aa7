//! The script for cgroup v1.

use super::script::{Step, refuses, takes};
use Step::{Enter, Leave, Make};
use rustix::io::Errno;

const SHARES: &str = "cpu.shares";
const QUOTA: &str = "cpu.cfs_quota_us";
const PERIOD: &str = "cpu.cfs_period_us";
const BURST: &str = "cpu.cfs_burst_us";
const IDLE: &str = "cpu.idle";
const CPUS: &str = "cpuset.cpus";
const LIMIT: &str = "memory.limit_in_bytes";

#[rustfmt::skip]
pub(super) const SCRIPT: &[Step] = &[
    Make("p"),
    // Writing nothing shows what a new group has.
    takes("p", SHARES, "", "1024"),
    takes("p", QUOTA, "", "-1"),
    takes("p", PERIOD, "", "100000"),
    takes("p", BURST, "", "0"),
    takes("p", IDLE, "", "0"),
    takes("p", CPUS, "", ""),
    takes("p", LIMIT, "", "9223372036854771712"),
    refuses("p", "cpu.weight", "1", Errno::NOENT),
    refuses("p", "memory.min", "1", Errno::NOENT),
    refuses("p", "memory.oom.group", "1", Errno::NOENT),
    refuses("p", "cpu.no_such_file", "1", Errno::NOENT),
    refuses("no-such-group", SHARES, "1", Errno::NOENT),

    // Shares outside of their range are bent into it.
    takes("p", SHARES, "2048", "2048"),
    takes("p", SHARES, "512\n", "512"),
    takes("p", SHARES, "1", "2"),
    takes("p", SHARES, "0", "2"),
    takes("p", SHARES, "262144", "262144"),
    takes("p", SHARES, "262145", "262144"),
    takes("p", SHARES, "18446744073709551615", "262144"),
    refuses("p", SHARES, "18446744073709551616", Errno::RANGE),
    refuses("p", SHARES, "-1", Errno::INVAL),
    refuses("p", SHARES, "max", Errno::INVAL),
    refuses("p", SHARES, "\n", Errno::INVAL),
    refuses("p", SHARES, " 512 ", Errno::INVAL),
    refuses("p", SHARES, "5 6", Errno::INVAL),
    refuses("p", SHARES, "1.5", Errno::INVAL),
    takes("p", SHARES, "0x400", "1024"),
    takes("p", SHARES, "010", "8"),
    refuses("p", SHARES, "08", Errno::INVAL),
    takes("p", SHARES, "+7", "7"),

    takes("p", QUOTA, "50000", "50000"),
    takes("p", QUOTA, "-5", "-1"),
    takes("p", QUOTA, "1000", "1000"),
    refuses("p", QUOTA, "999", Errno::INVAL),
    refuses("p", QUOTA, "0", Errno::INVAL),
    refuses("p", QUOTA, "max", Errno::INVAL),
    takes("p", QUOTA, "17592186044415", "17592186044415"),
    refuses("p", QUOTA, "17592186044416", Errno::INVAL),
    refuses("p", QUOTA, "9223372036854775808", Errno::RANGE),
    takes("p", QUOTA, "-1", "-1"),

    takes("p", PERIOD, "1000", "1000"),
    refuses("p", PERIOD, "999", Errno::INVAL),
    takes("p", PERIOD, "1000000", "1000000"),
    refuses("p", PERIOD, "1000001", Errno::INVAL),
    refuses("p", PERIOD, "-1", Errno::INVAL),
    takes("p", PERIOD, "100000", "100000"),

    // A child has no greater part of a CPU than its parent, at no moment.
    Make("p/c"),
    takes("p", QUOTA, "50000", "50000"),
    refuses("p/c", QUOTA, "60000", Errno::INVAL),
    takes("p/c", QUOTA, "50000", "50000"),
    refuses("p", QUOTA, "40000", Errno::INVAL),
    takes("p", QUOTA, "-1", "-1"),
    takes("p/c", QUOTA, "70000", "70000"),
    refuses("p", QUOTA, "60000", Errno::INVAL),
    takes("p", PERIOD, "50000", "50000"),
    takes("p", QUOTA, "60000", "60000"),
    refuses("p/c", PERIOD, "40000", Errno::INVAL),
    takes("p/c", QUOTA, "-1", "-1"),
    takes("p", QUOTA, "1000", "1000"),
    // Through one without a limit, too.
    Make("p/c/d"),
    refuses("p/c/d", QUOTA, "50000", Errno::INVAL),
    takes("p/c/d", QUOTA, "2000", "2000"),
    refuses("p", PERIOD, "100000", Errno::INVAL),

    // Burst lies within the quota; without a quota it does not matter.
    Make("b"),
    takes("b", QUOTA, "50000", "50000"),
    takes("b", BURST, "50000", "50000"),
    refuses("b", BURST, "50001", Errno::INVAL),
    refuses("b", BURST, "-1", Errno::INVAL),
    refuses("b", QUOTA, "49999", Errno::INVAL),
    takes("b", QUOTA, "-1", "-1"),
    refuses("b", QUOTA, "20000", Errno::INVAL),
    takes("b", BURST, "0", "0"),
    takes("b", QUOTA, "20000", "20000"),

    // An idle group forgets its shares.
    Make("i"),
    takes("i", SHARES, "777", "777"),
    takes("i", IDLE, "1", "1"),
    takes("i", IDLE, "1", "1"),
    takes("i", SHARES, "", "3"),
    refuses("i", SHARES, "777", Errno::INVAL),
    refuses("i", SHARES, "3", Errno::INVAL),
    refuses("i", IDLE, "2", Errno::INVAL),
    refuses("i", IDLE, "-1", Errno::INVAL),
    takes("i", IDLE, "0", "0"),
    takes("i", SHARES, "", "1024"),

    takes("p", CPUS, "0-1", "0-1"),
    takes("p", CPUS, "0", "0"),
    takes("p", CPUS, "1,0", "0-1"),
    takes("p", CPUS, " 0,,1\n", "0-1"),
    takes("p", CPUS, "0 1", "0-1"),
    takes("p", CPUS, "0,", "0"),
    refuses("p", CPUS, "9999", Errno::RANGE),
    refuses("p", CPUS, "0-9999", Errno::RANGE),
    refuses("p", CPUS, "1-0", Errno::INVAL),
    refuses("p", CPUS, "0-", Errno::INVAL),
    refuses("p", CPUS, "-1", Errno::INVAL),
    refuses("p", CPUS, "a", Errno::INVAL),
    // A child has no CPU that its parent lacks, at no moment.
    refuses("p/c", CPUS, "1", Errno::ACCESS),
    refuses("p/c", CPUS, "0-1", Errno::ACCESS),
    takes("p/c", CPUS, "0", "0"),
    refuses("p", CPUS, "1", Errno::BUSY),
    refuses("p", CPUS, "\n", Errno::BUSY),
    takes("p", CPUS, "0-1", "0-1"),
    // A process needs a CPU.
    Enter("p/c"),
    refuses("p/c", CPUS, "\n", Errno::NOSPC),
    takes("p/c", CPUS, "1", "1"),
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
    refuses("p", LIMIT, "max", Errno::INVAL),
    refuses("p", LIMIT, "-2", Errno::INVAL),
    // A new group has a few pages already, and its limit is not set below what it has.
    refuses("p", LIMIT, "4096", Errno::BUSY),
    refuses("p", LIMIT, "0", Errno::BUSY),
    refuses("p", LIMIT, "\n", Errno::BUSY),
    takes("p", LIMIT, "9223372036854771711", "9223372036854767616"),
    takes("p", LIMIT, "9223372036854775807", "9223372036854771712"),
    takes("p", LIMIT, "64M", "67108864"),
    takes("p", LIMIT, "-1", "9223372036854771712"),
];
