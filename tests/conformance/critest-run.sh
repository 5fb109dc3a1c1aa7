#!/usr/bin/env bash
# Runs a critest binary at one CRI socket: straight at a runtime, or through a proxy in front of it.
# `conformance junit DIRECT.xml THROUGH.xml` then names what differs between two such runs.
#
#   critest-run.sh CRITEST SOCKET REPORT.xml [critest flags...]
#
# The runtime must be able to pull critest's images; `conformance registry` stands in for public
# registries where none can be reached.
set -euo pipefail

if [ $# -lt 3 ]; then
    sed '1d; /^[^#]/Q; s/^# \{0,1\}//' "$0" >&2
    exit 64
fi
critest=$(realpath "$1") socket=$(realpath "$2")
mkdir -p "$(dirname "$3")"
report=$(realpath "$3")
log=${report%.xml}.log
shift 3

# Specs may fail, but there has to be a report. One seed: the order of the specs is the same each time.
rm -f "$report"
status=0
"$critest" --runtime-endpoint "unix://$socket" --image-endpoint "unix://$socket" \
    --ginkgo.seed 1 --ginkgo.no-color --ginkgo.junit-report "$report" "$@" >"$log" 2>&1 || status=$?
if [ ! -s "$report" ]; then
    tail -n 20 "$log" >&2
    echo "critest wrote no report (exit status $status)" >&2
    exit 1
fi
