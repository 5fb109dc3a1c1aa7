# Becomes a kubelet that leaves no trace on the machine: in a mount namespace of its own, where what
# it makes at fixed places and the system controls that it sets are files of the testbed. What it
# mounts goes with it; what its runtime mounts, it sees.
#
# usage: unshare --mount --propagation slave sh -c ENTER enter DIRECTORY PROGRAM [ARGUMENT]...
set -eu
directory=$1
shift

for place in /var/lib /var/log; do
    own=$directory/places$place
    mkdir -p "$own/made" "$own/work"
    mount -t overlay -o "lowerdir=$place,upperdir=$own/made,workdir=$own/work" overlay "$place"
done
# As it wants them, so that it finds nothing to write.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    own=$directory/settings/${setting%=*}
    mkdir -p "${own%/*}"
    echo "${setting#*=}" >"$own"
    mount --bind "$own" "/proc/sys/${setting%=*}"
done
# Where its root is no shared mount it makes it one as it starts, and what it renames there at that moment
# is on two devices: now and then it ended by that.
mkdir -p "$directory/root"
mount --bind "$directory/root" "$directory/root"
mount --make-shared "$directory/root"
exec "$@"
