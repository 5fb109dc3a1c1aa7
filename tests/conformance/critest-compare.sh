#!/usr/bin/env bash
# Runs a critest binary straight at a runtime and through a proxy in front of it, and fails when a
# spec passes directly but not through the proxy.
#
#   critest-compare.sh CRITEST RUNTIME_SOCKET PROXY_SOCKET REPORT_DIR [critest flags...]
#
# The runtime must be able to pull critest's images; `conformance registry` stands in for public
# registries where none can be reached.
set -euo pipefail

if [ $# -lt 4 ]; then
    sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2
    exit 64
fi
critest=$(realpath "$1") runtime=$(realpath "$2") proxy=$(realpath "$3")
mkdir -p "$4"
reports=$(realpath "$4")
shift 4

run() { # run NAME SOCKET FLAGS...: specs may fail, but there has to be a report
    local name=$1 socket=$2 status=0
    shift 2
    rm -f "$reports/$name.xml"
    # One seed: the order of the specs is the same both ways.
    "$critest" --runtime-endpoint "unix://$socket" --image-endpoint "unix://$socket" \
        --ginkgo.seed 1 --ginkgo.no-color --ginkgo.junit-report "$reports/$name.xml" "$@" \
        >"$reports/$name.log" 2>&1 || status=$?
    if [ ! -s "$reports/$name.xml" ]; then
        tail -n 20 "$reports/$name.log" >&2
        echo "critest wrote no report ($name, exit status $status)" >&2
        return 1
    fi
}

run direct "$runtime" "$@"
run through "$proxy" "$@"
cd "$(dirname "$0")"
GOTOOLCHAIN=local go run -mod=readonly . junit "$reports/direct.xml" "$reports/through.xml"
