#!/bin/sh
# Downloads Debian packages and unpacks them, installing nothing: an installed containerd would
# displace one that is there. Lists and archives live in STATE, so the system's own stay as they
# are. MODE says which packages:
#   exactly             the named ones
#   with-dependencies   these and whatever this system lacks to run them
#   behind              the one that the named metapackage stands for at present
#
# usage: unpack-debian.sh MODE STATE SUITE OUT PACKAGE...
set -eu

mode=$1 state=$2 suite=$3 out=$4
shift 4

mkdir -p "$state/lists/partial" "$out"
exec 9>"$state/lock"
flock 9

echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${KOORD_DEBIAN_MIRROR:-http://deb.debian.org/debian} $suite main" \
    >"$state/sources.list"

archives=$(mktemp -d "$state/archives.XXXXXX")
trap 'rm -rf "$archives"' EXIT
mkdir "$archives/partial"

apt() { # apt get|cache ...
    command=apt-$1
    shift
    "$command" -qq \
        -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
        -o Dir::State::status=/var/lib/dpkg/status \
        -o Dir::Cache="$state" -o Dir::Cache::archives="$archives" \
        -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Sandbox::User=root "$@" 9>&-
}

# Packages that go together come within the hour and share one download of the lists.
if [ -z "$(find "$state/updated" -mmin -60 2>/dev/null)" ]; then
    apt get update
    touch "$state/updated"
fi

case $mode in
with-dependencies) apt get install --download-only --yes --no-install-recommends "$@" >&2 ;;
behind)
    target=$(apt cache show --no-all-versions "$1" | sed -n 's/^Depends: \([^ ,]*\).*/\1/p')
    (cd "$archives" && apt get download "$target" >&2)
    ;;
exactly) (cd "$archives" && apt get download "$@" >&2) ;;
esac

for package in "$archives"/*.deb; do
    dpkg-deb --extract "$package" "$out"
    dpkg-deb --showformat '${Package} ${Version}\n' --show "$package" >>"$out/versions"
done
