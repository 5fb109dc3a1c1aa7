#!/bin/sh
# Builds the kernel of the virtual machines: Debian's source of the 6.1 series with the options in
# CONFIG, and with PATCH applied. Takes some minutes on two processors; everything but the image and
# its configuration goes when it is built.
#
# usage: build.sh UNPACKED CONFIG PATCH OUT
# UNPACKED has linux-source-6.1, and of flex, bison, bc and libelf-dev what this system lacks, as
# they would lie below /.
set -eu

unpacked=$1 config=$2 patch=$3 out=$4
work=$out/work tools=$out/tools
trap 'rm -rf "$work" "$tools"' EXIT
mkdir "$work" "$tools"
tar --extract --file "$unpacked"/usr/src/linux-source-6.1.tar.xz --directory "$work" --strip-components=1
(cd "$work" && GIT_CEILING_DIRECTORIES="$out" git apply "$patch")

# The programs and the library that the build uses, from where they were unpacked or installed.
libraries=usr/lib/x86_64-linux-gnu
for library in "$unpacked/$libraries" "/$libraries"; do
    [ ! -e "$library/libelf.so.1" ] || ln -sf "$library/libelf.so.1" "$tools/libelf.so"
done
export PATH="$unpacked/usr/bin:$PATH" LD_LIBRARY_PATH="$unpacked/$libraries"
[ ! -d "$unpacked/usr/share/bison" ] || export BISON_PKGDATADIR="$unpacked/usr/share/bison"
[ ! -x "$unpacked/usr/bin/m4" ] || export M4="$unpacked/usr/bin/m4"

kernel_make() {
    make --silent --directory "$work" --jobs "$(nproc)" \
        HOSTCFLAGS="-I$unpacked/usr/include" HOSTLDFLAGS="-L$tools" "$@"
}
kernel_make tinyconfig
cat "$config" >>"$work/.config"
kernel_make olddefconfig
# What another option forbids, or what has a new name, would be dropped without a word.
if grep '^CONFIG_' "$config" | grep -vxFf "$work/.config"; then
    echo "the kernel does not take these options" >&2
    exit 1
fi
kernel_make bzImage
mv "$work/arch/x86/boot/bzImage" "$out/vmlinuz"
mv "$work/.config" "$out/config"
