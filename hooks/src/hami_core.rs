//! HAMi-core on the node, of which containers are given a part.
//!
//! A runtime mounts whatever a path leads to, as root, and makes a directory where nothing is. So
//! containers are given no path of which another user of the node could have made something else.

/// Where HAMi-core keeps processes of a node from one another.
pub const HAMI_CORE_LOCK: &str = "/tmp/vgpulock";

/// Where each container has a folder in which it is counted what it uses, below that of the library.
pub const HAMI_CORE_FOLDERS: &str = "containers";

/// What stands between the pod's UID and the container's name in what its folder is called.
pub const HAMI_CORE_SEPARATOR: char = '_';
