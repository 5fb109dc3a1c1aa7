//! The script for a block device on cgroup v2: 7:5, a loop device of which nothing was said before. Of major
//! number 200 there is none: kernels make a loop device that somebody names.

use super::script::{Step, refuses, takes};
use Step::Make;
use rustix::io::Errno;

const MAX: &str = "io.max";
const WEIGHT: &str = "io.weight";
const QOS: &str = "io.cost.qos";
const MODEL: &str = "io.cost.model";
/// The group that alone has the files of costs.
const ROOT: &str = "/";

#[rustfmt::skip]
pub(super) const SCRIPT: &[Step] = &[
    Make("d"),
    takes("d", MAX, "7:5 rbps=1048576", "7:5 rbps=1048576 wbps=max riops=max wiops=max"),
    takes("d", MAX, "7:5 wiops=7 wbps=2097152", "7:5 rbps=1048576 wbps=2097152 riops=max wiops=7"),
    takes("d", MAX, "7:5 riops=4294967294", "7:5 rbps=1048576 wbps=2097152 riops=4294967294 wiops=7"),
    // Operations are counted in 32 bits.
    takes("d", MAX, "7:5 riops=4294967295", "7:5 rbps=1048576 wbps=2097152 riops=max wiops=7"),
    takes("d", MAX, "7:5 riops=4294967296", "7:5 rbps=1048576 wbps=2097152 riops=max wiops=7"),
    refuses("d", MAX, "7:5 rbps=0", Errno::RANGE),
    refuses("d", MAX, "7:5 rbps=-1", Errno::INVAL),
    refuses("d", MAX, "7:5 rbps=x", Errno::INVAL),
    refuses("d", MAX, "7:5 rbps", Errno::INVAL),
    refuses("d", MAX, "7:5 bps=1", Errno::INVAL),
    refuses("d", MAX, "rbps=1", Errno::INVAL),
    refuses("d", MAX, "200:5 rbps=1", Errno::NODEV),
    // Whoever has no limit is not shown.
    takes("d", MAX, "7:5 rbps=max wbps=max riops=max wiops=max", ""),

    // The time of a device has to be shared out before somebody may have a part of it.
    refuses("d", WEIGHT, "7:5 50", Errno::OPNOTSUPP),
    takes(ROOT, QOS, "7:5 enable=1 ctrl=user rpct=95.00 rlat=4000 wpct=90.50 wlat=3000",
        "7:5 enable=1 ctrl=user rpct=95.00 rlat=4000 wpct=90.50 wlat=3000 min=1.00 max=10000.00"),
    refuses(ROOT, QOS, "7:5 rpct=101.00", Errno::INVAL),
    refuses(ROOT, QOS, "7:5 rlat", Errno::INVAL),
    refuses(ROOT, QOS, "7:5 latency=1", Errno::INVAL),
    refuses(ROOT, QOS, "200:5 enable=1", Errno::NODEV),
    takes("d", WEIGHT, "7:5 50", "default 100\n7:5 50"),
    takes("d", WEIGHT, "7:5 10000", "default 100\n7:5 10000"),
    refuses("d", WEIGHT, "7:5 0", Errno::INVAL),
    refuses("d", WEIGHT, "7:5 10001", Errno::INVAL),
    refuses("d", WEIGHT, "200:5 50", Errno::NODEV),
    takes("d", WEIGHT, "7:5 default", "default 100"),

    takes(ROOT, MODEL, "7:5 ctrl=user model=linear rbps=1000001 rseqiops=1002 rrandiops=1003 \
         wbps=1000004 wseqiops=1005 wrandiops=1006",
        "7:5 ctrl=user model=linear rbps=1000001 rseqiops=1002 rrandiops=1003 wbps=1000004 wseqiops=1005 \
         wrandiops=1006"),
    refuses(ROOT, MODEL, "7:5 rbps=x", Errno::INVAL),
    refuses(ROOT, MODEL, "7:5 bps=1", Errno::INVAL),
    refuses(ROOT, MODEL, "7:5 model=cubic", Errno::INVAL),
    refuses(ROOT, MODEL, "200:5 ctrl=user", Errno::NODEV),

    // What nobody says any more is the kernel's own.
    takes(ROOT, QOS, "7:5 enable=0 rlat=5000",
        "7:5 enable=0 ctrl=user rpct=95.00 rlat=5000 wpct=90.50 wlat=3000 min=1.00 max=10000.00"),
    takes(ROOT, QOS, "7:5 enable=0 ctrl=auto",
        "7:5 enable=0 ctrl=auto rpct=0.00 rlat=25000 wpct=0.00 wlat=25000 min=1.00 max=10000.00"),
];
