# Removes one testbed when nobody owns it any longer: waits for the end of its standard input, whose
# other end the owner holds and the kernel closes however the owner dies, then clears away processes,
# mounts, sockets, cgroups and the directory. What it could not remove goes to standard output.
#
# A shell script, because a library has no program of its own to start, and an owner that is killed
# with -9 cannot clean up after itself. It is handed over whole, so no file is read at clean-up time.
#
# usage: sh -c JANITOR janitor DIRECTORY CGROUP REGISTRY LOCK
# LOCK is this testbed's file in REGISTRY; our standard error is open on it and keeps it locked.
set -u
trap '' HUP INT TERM
directory=$1 cgroup=$2 registry=$3 lock=$4
echo ready
cat >/dev/null

hierarchies=$(sed -n 's/^[0-9]* [0-9]* [^ ]* [^ ]* \([^ ]*\) .* - cgroup2\{0,1\} .*/\1/p' /proc/self/mountinfo)
state=io.containerd.runtime.v2.task
containers='' killed=''

learn() { # asks the runtime's state again: until it is dead it makes containers, and forgets some
    # Containers that were given no cgroup parent of ours are found by their ids, which no one else has.
    containers=$({
        echo "$containers"
        find "$directory" -maxdepth 5 -path "*/$state/*/*" -prune 2>/dev/null
        ls "$directory/root/overlay-containers" 2>/dev/null # CRI-O's, sandboxes without a process too
    } | sed 's|.*/||' | grep -x '[0-9a-f]\{64\}' | sort -u)
}

sockets() { # those of shims, outside of our directory
    # The runtime's state names one only once its shim has it, and none of a container that it has forgotten;
    # what it is called is known before, and the logs and the metadata have the ids of all that there were.
    # Another's is never among them: our directory is a part of what is hashed.
    named=$directory/sockets.named
    mkdir -p "$named"
    {
        echo "$containers"
        LC_ALL=C grep -aoh '[0-9a-f]\{64\}' "$directory"/*.log "$directory/root/io.containerd.metadata.v1.bolt/meta.db"
    } 2>/dev/null | sort -u | while read -r id; do
        [ -z "$id" ] || printf %s "$directory/containerd.sock/k8s.io/$id" >"$named/$id"
    done
    find "$named" -type f -exec sha256sum {} + | sed 's|^\([0-9a-f]*\).*|/run/containerd/s/\1|'
}

groups() { # every cgroup of ours, the deepest first
    for hierarchy in $hierarchies; do
        [ ! -d "$hierarchy$cgroup" ] || find "$hierarchy$cgroup" -depth -type d
        [ -z "$containers" ] || find "$hierarchy" -depth -type d | grep -F "$containers"
    done 2>/dev/null
}

processes() { # the members of our cgroups and all their descendants
    {
        groups | sed 's|$|/cgroup.procs|' | xargs -r cat
        echo descendants
        cat /proc/[0-9]*/stat | sed 's/^\([0-9]*\) (.*) . \([0-9]*\) .*/\1 \2/'
    } 2>/dev/null | awk '
        $1 == "descendants" { listed = 1; next }
        !listed { if ($1 > 1) ours[$1] = 1; next } # 0 stands for a process of another namespace
        { parent[$1] = $2 }
        END {
            do {
                found = 0
                for (pid in parent) if (!(pid in ours) && (parent[pid] in ours)) { ours[pid] = 1; found = 1 }
            } while (found)
            for (pid in ours) print pid
        }'
}

mounts() { # the mount points below our directory, the latest first
    awk -v below="$directory/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | tac
}

kill_all() { # kill_all PIDS
    # A frozen process dies no sooner than it is thawed.
    groups | while read -r group; do
        [ ! -e "$group/freezer.state" ] || echo THAWED >"$group/freezer.state"
    done
    kill -KILL $1
    killed="$killed $1"
}

dying() { # who was killed and has left its cgroup, but is not dead yet
    for pid in $killed; do
        sed -n 's/^\([0-9]*\) (.*) [^ZX] .*/\1/p' "/proc/$pid/stat"
    done 2>/dev/null
}

cleared() { # takes one step, and says whether none was left to take
    learn
    found=$(processes)
    [ -z "$found" ] || kill_all "$found"
    [ -z "$found$(dying)" ] || return 1
    mounts | xargs -r umount -l
    [ -z "$(mounts)" ] || return 1
    groups | xargs -r rmdir
    [ -z "$(groups)" ]
}

# From the first step on each time: a process that was about to enter a cgroup of ours is in it now.
end=$(($(date +%s) + 120))
until cleared || [ "$(date +%s)" -ge $end ]; do sleep 0.05; done

left=$(
    processes | sed 's/^/process /'
    mounts | sed 's/^/mount /'
    groups | sed 's/^/cgroup /'
)
if [ -z "$left" ]; then
    sockets | xargs -r rm -f
    rm -rf "$directory"
    [ ! -e "$directory" ] || left="directory $directory"
fi
if [ -n "$left" ]; then
    # It stays registered, with the state that names it: the next testbed tries again.
    echo "$left"
    exit 1
fi

# What runtimes make at fixed places goes with the last testbed, unless another runtime is here.
exec 8>>"$registry/registry.lock"
flock 8
rm -f "$lock"
if [ -z "$(find "$registry" -name '*.testbed')" ]; then
    [ "$(ls -A /run/containerd 2>/dev/null)" != s ] || rmdir /run/containerd/s /run/containerd
    for hierarchy in $hierarchies; do
        for parent in k8s.io crio; do [ ! -d "$hierarchy/$parent" ] || rmdir "$hierarchy/$parent"; done
    done
fi 2>/dev/null
