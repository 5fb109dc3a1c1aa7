//! A device of device-mapper, as LVM makes one for each of its volumes: for checks that need one, in
//! a machine that is theirs.

use koord_model::DeviceNumber;
use rustix::{
    fs::{Mode, OFlags, open},
    ioctl::{Opcode, Updater, ioctl, opcode},
};
use std::{io, os::fd::OwnedFd};

/// A `struct dm_ioctl`, and behind it one `struct dm_target_spec` with its parameters.
type Request = [u8; LENGTH];

const HEAD: usize = 312;
const TARGET: usize = 40;
const LENGTH: usize = HEAD + TARGET + 64;

// As `linux/dm-ioctl.h` numbers them.
const CREATE: Opcode = command(3);
const RESUME: Opcode = command(6);
const LOAD: Opcode = command(9);

/// Makes a device of this name and identifier that is the first so many sectors of 512 bytes of
/// another one. It goes with the machine.
///
/// # Errors
///
/// When device-mapper cannot be asked, has one of this name already, or the other one is not there. What was
/// made until then stays.
pub fn map_linear(name: &str, uuid: &str, below: DeviceNumber, sectors: u64) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = open("/dev/mapper/control", flags, Mode::empty())?;
    let mut create = request(name);
    put(&mut create, 176, uuid.as_bytes());
    send::<CREATE>(&control, &mut create)?;

    let mut load = request(name);
    // One target, from the first sector on; its status and where the next one is stay 0.
    put(&mut load, 20, &1_u32.to_ne_bytes());
    put(&mut load, HEAD + 8, &sectors.to_ne_bytes());
    put(&mut load, HEAD + 24, b"linear");
    let parameters = format!("{below} 0");
    put(&mut load, HEAD + TARGET, parameters.as_bytes());
    send::<LOAD>(&control, &mut load)?;
    send::<RESUME>(&control, &mut request(name))
}

const fn command(number: u8) -> Opcode {
    opcode::read_write::<[u8; HEAD]>(0xfd, number)
}

/// One about the device of this name: version 4.0.0, how long it is and where targets begin.
fn request(name: &str) -> Request {
    let mut request = [0; LENGTH];
    let number = |number: usize| u32::try_from(number).expect("it is short").to_ne_bytes();
    put(&mut request, 0, &number(4));
    put(&mut request, 12, &number(LENGTH));
    put(&mut request, 16, &number(HEAD));
    put(&mut request, 48, name.as_bytes());
    request
}

fn put(request: &mut Request, at: usize, bytes: &[u8]) {
    request[at..at + bytes.len()].copy_from_slice(bytes);
}

fn send<const COMMAND: Opcode>(control: &OwnedFd, request: &mut Request) -> io::Result<()> {
    // SAFETY: each command reads and writes the bytes that the request says it has, which it has.
    let update = unsafe { Updater::<COMMAND, Request>::new(request) };
    // SAFETY: as above; the commands are those of the device that is open.
    unsafe { ioctl(control, update) }?;
    Ok(())
}
