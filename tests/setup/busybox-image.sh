#!/bin/sh
# Packs one static busybox into a docker-archive that `ctr images import` takes: no image registry
# can be reached from a test machine. One layer, two images: the pause image that runtimes ask for,
# and the image of the test pods. Times and owners are fixed, so the digests never change.
#
# usage: busybox-image.sh BUSYBOX OUT.tar
set -eu

busybox=$1 out=$2
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT

pack() { # pack DIRECTORY OUT: the directory as a tar with nothing in it that varies
    tar --create --file "$2" --directory "$1" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner .
}
digest() { sha256sum "$1" | cut -d' ' -f1; }

root=$work/root image=$work/image
mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/root" "$image"
chmod 1777 "$root/tmp"
cp "$busybox" "$root/bin/busybox"
"$busybox" --list | grep -vx busybox | while read -r applet; do
    ln -s busybox "$root/bin/$applet"
done
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"

pack "$root" "$image/layer.tar"
layer=$(digest "$image/layer.tar")

config() { # config NAME KEY COMMAND: writes NAME.json, with the command as Entrypoint or Cmd
    cat >"$image/$1.json" <<JSON
{"architecture":"$(dpkg --print-architecture)","os":"linux","created":"1970-01-01T00:00:00Z",
 "config":{"Env":["PATH=/bin"],"$2":$3},
 "rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
JSON
}
config pause Entrypoint '["/bin/sleep","2147483647"]'
config busybox Cmd '["/bin/sh","-c","trap \"exit 0\" TERM; sleep 2147483647 & wait"]'

cat >"$image/manifest.json" <<JSON
[{"Config":"pause.json","RepoTags":["registry.k8s.io/pause:3.9"],"Layers":["layer.tar"]},
 {"Config":"busybox.json","RepoTags":["koord.test/busybox:1"],"Layers":["layer.tar"]}]
JSON
pack "$image" "$work/image.tar"
mv "$work/image.tar" "$out"
