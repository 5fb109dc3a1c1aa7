//! Functions of PCI devices, by their place on the buses of a machine.

use std::{fmt, ops::RangeInclusive, str::FromStr};
use thiserror::Error;

/// Where a function of a PCI device is. Whoever creates a pod may say it, so it is a number and
/// leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text is no such place.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a PCI address is domain, bus, device and function, such as 0000:65:00.1")]
pub struct PciAddressError;

const MAX_DEVICE: u32 = 0x1f;
const MAX_FUNCTION: u32 = 7;

// === impl PciAddress ===

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// As the kernel writes it. A domain has four digits, and more behind some bridges.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(PciAddressError);
        let (domain, bus, last) = (part()?, part()?, part()?);
        let (device, function) = last.split_once('.').ok_or(PciAddressError)?;
        Ok(Self {
            domain: number(domain, 4..=8, u32::MAX)?,
            bus: small(bus, 2, u8::MAX.into())?,
            device: small(device, 2, MAX_DEVICE)?,
            function: small(function, 1, MAX_FUNCTION)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

fn small(text: &str, digits: usize, max: u32) -> Result<u8, PciAddressError> {
    let number = number(text, digits..=digits, max)?;
    u8::try_from(number).map_err(|_| PciAddressError)
}

fn number(text: &str, digits: RangeInclusive<usize>, max: u32) -> Result<u32, PciAddressError> {
    let is_one = digits.contains(&text.len()) && text.bytes().all(|it| it.is_ascii_hexdigit());
    let number = u32::from_str_radix(text, 16).ok();
    let number = number.filter(|number| is_one && *number <= max);
    number.ok_or(PciAddressError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_as_the_kernel_writes_it_and_leads_nowhere() {
        for (text, shown) in [
            ("0000:65:00.1", "0000:65:00.1"),
            ("0000:AF:1f.7", "0000:af:1f.7"),
            ("10000:01:00.0", "10000:01:00.0"),
            ("ffffffff:ff:1f.7", "ffffffff:ff:1f.7"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "65:00.1",
            "000:65:00.1",
            "0000:65:00",
            "0000:65:20.0",
            "0000:65:00.8",
            "0000:65:00.10",
            "0000:165:00.0",
            "0000:65:0.0",
            "+000:65:00.0",
            "0000:65:00.0 ",
            "0000:65:00.0/..",
            "../0:65:00.0",
            "100000000:65:00.0",
            "mlx5_0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(PciAddressError), "{text}");
        }
    }
}
